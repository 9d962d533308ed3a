"""Reader of EAGLE-3 checkpoints in all the dialects whose layers are Llama's or Qwen3's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from specdec.core.errors import CheckpointError
from specdec.heads.formats.boundaries import boundaries
from specdec.heads.formats.conventions import Conventions
from specdec.heads.formats.format import Format
from specdec.heads.formats.layers import base_name, head_dim, layer_fields, with_output_bias
from specdec.heads.formats.names import split_fused
from specdec.heads.formats.plan import Plan
from specdec.heads.formats.vocabulary import draft_ids

__all__ = ["read_eagle3"]

_RENAMED = {"draft_id_to_target_id": "d2t"}


def read_eagle3(
    form: Format, config: Mapping[str, Any], weights: Mapping[str, Tensor], conventions: Conventions, where: str
) -> Plan:
    """Counts from weights; norms by presence; `norm_output` and missing flags by who wrote the checkpoint."""
    speculators = form.name == "eagle3-speculators"
    outer = config
    if speculators:
        inner = config.get("transformer_layer_config")
        if not isinstance(inner, Mapping):
            raise CheckpointError(f"{where}: transformer_layer_config is {inner!r}, expected the config of the layers")
        config = {**inner, **{key: value for key, value in config.items() if key != "architectures"}}
    weights = {_RENAMED.get(name, name.replace("midlayer.", "layers.0.")): value for name, value in weights.items()}
    weights = split_fused(weights, config.get("num_attention_heads") or 1, head_dim(config), where)
    for name in ("fc.weight", "layers.0.hidden_norm.weight"):
        if name not in weights:
            raise CheckpointError(f"{where}: {name} is missing")
    fields, remarks = layer_fields(config, weights, where)
    width, joined = map(int, weights["fc.weight"].shape)
    found, more = boundaries(outer if not speculators else config, speculators, conventions, where)
    size, taps = _sizes(config, joined, width, found, where)
    if found is None and taps != 3:
        raise CheckpointError(f"{where}: its fc joins {taps} states and no layer ids say which; give layer_ids")
    if found is not None and len(found) != taps:
        raise CheckpointError(f"{where}: {len(found)} layer ids, but its fc joins {taps} states of size {size}")

    lm_rows = int(weights["lm_head.weight"].shape[0]) if "lm_head.weight" in weights else None
    vocab = _vocab(config, weights)
    ids, notes = draft_ids(weights, lm_rows, vocab, conventions.vocabulary, where)
    remarks += more + notes
    out = {name: value for name, value in weights.items() if name not in ("d2t", "t2d")}
    if ids is not None:
        out["draft_ids"] = ids
    final = _flag(conventions.final_norm, None, True) and "norm.weight" in out
    # Servers carry the normed state on where `norm_output` says so; one trainer meant a norm before the LM head by it.
    carried = config.get("norm_output") if speculators or "fc_norm.0.weight" in out else None
    if final and config.get("norm_output") is not None and not speculators and carried is None:
        remarks.append(
            f"norm_output is {config['norm_output']}, which is read in two ways: taken is that a norm stands before "
            "the LM head, as its tensor is there, and is not carried on. `specdec doctor` measures it"
        )
    if not final:
        out.pop("norm.weight", None)
        remarks.append("no norm stands before its LM head")
    fields |= {
        "hidden_size": width if width != size else None,
        "fc_bias": "fc.bias" in out,
        "norm_before_fc": "input_norm.weight" in out,
        "fc_norm": any(name.startswith("fc_norm.") for name in out),
        "norm_before_residual": _flag(
            conventions.norm_before_residual, config.get("norm_before_residual"), speculators
        ),
        "norm_output": final and _flag(conventions.norm_output, carried, False),
        "final_norm": final,
        "own_embed": "embed_tokens.weight" in out,
        "own_lm_head": lm_rows is not None,
    }
    for name in ("norm_before_fc", "fc_norm"):
        if config.get(name) is not None and bool(config[name]) != fields[name]:
            remarks.append(f"its config says {name} {config[name]}, its weights say {fields[name]}")
    layers = config.get("num_target_layers")
    return Plan(
        "eagle3",
        fields,
        with_output_bias(out, fields["attention_bias"]),
        hidden_size=size,
        vocab_size=vocab,
        layers=layers if isinstance(layers, int) else None,
        boundaries=found,
        taps=taps,
        base=base_name(config),
        remarks=tuple(remarks),
    )


def _sizes(
    config: Mapping[str, Any], joined: int, width: int, found: tuple[int, ...] | None, where: str
) -> tuple[int, int]:
    """Width of the target's states and how many of them `fc` joins."""
    said = config.get("target_hidden_size")
    size = said or (joined // len(found) if found else width if joined % width == 0 else joined // 3)
    if joined % size:
        raise CheckpointError(f"{where}: its fc reads {joined} values, which is no multiple of a state's {size}")
    return int(size), joined // int(size)


def _vocab(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> int | None:
    """Rows of the target's vocabulary, as far as the checkpoint says."""
    if "embed_tokens.weight" in weights:
        return int(weights["embed_tokens.weight"].shape[0])
    if "t2d" in weights and weights["t2d"].dim() == 1:
        return len(weights["t2d"])
    said = config.get("vocab_size")
    return said if isinstance(said, int) else None


def _flag(chosen: bool | None, said: Any, otherwise: bool) -> bool:
    if chosen is not None:
        return chosen
    return otherwise if said is None else bool(said)
