"""Writers: a head as a directory that vLLM serves, in speculators' layout or in the raw one of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from specdec.core.errors import CheckpointError
from specdec.heads import files
from specdec.heads.base import Head, embedded
from specdec.heads.decoder import DecoderHead
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.formats.vocabulary import offsets
from specdec.heads.medusa import MedusaHead

__all__ = ["EXPORTS", "export_head"]

EXPORTS = {"medusa": ("vllm",), "eagle": ("vllm",), "eagle3": ("speculators", "vllm")}
"""Kind of head to the formats in which it can be written, the usual one first."""

_VERSION = "0.9.0"  # of speculators, whose layout is written


def export_head(
    head: Head,
    folder: str | Path,
    form: Literal["speculators", "vllm"] | None = None,
    *,
    verifier: str = "",
    architectures: tuple[str, ...] = (),
    speculative_tokens: int = 3,
) -> None:
    """Write `head` to `folder`; an earlier save there stays whole if anything fails.

    form: "speculators" (EAGLE-3; `vllm serve FOLDER` needs nothing else) or "vllm", the raw layout that vLLM takes as
    the `model` of a speculative config. By default the first that there is for its kind.
    verifier, architectures: hub id or folder, and classes, of the target; speculators' layout names them.
    A head that borrows what a layout has to hold must be bound to its target (`Head.bind`).

    Raises CheckpointError, naming the option, where the layout has no place for something that the head has.
    """
    known = EXPORTS.get(head.kind, ())
    form = form or (known[0] if known else None)  # type: ignore[assignment]
    if form not in known:
        raise CheckpointError(
            f"a head of kind '{head.kind}' cannot be written as {form!r}; expected one of {', '.join(known) or 'none'}"
        )
    if isinstance(head, MedusaHead):
        config, weights = _medusa(head)
    elif isinstance(head, DecoderHead):
        config, weights = _layers(head, form == "speculators")
        if form == "speculators":
            config = _speculators(config, head, verifier, architectures, speculative_tokens)
    else:
        raise CheckpointError(f"there is no writer for a {type(head).__name__}")
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    try:
        files.write(Path(folder), config, plain, {})
    except Exception as error:  # safetensors has no type of its own for a full disk
        raise CheckpointError(
            f"the {head.kind} head could not be exported to {folder}: {error}. What was there before is unchanged; "
            "make room, or choose another folder"
        ) from error


def _medusa(head: MedusaHead) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, weights = head.config, {}
    if config.lm_head_bias:
        raise CheckpointError("lm_head_bias: vLLM's Medusa heads have no bias in their LM heads")
    biased = bool(head.bias.any())
    for layer in range(config.blocks):
        for number in range(config.heads):
            weights[f"blocks.{number}.layers.{layer}.weight"] = head.weight[layer, number]
            if biased:
                weights[f"blocks.{number}.layers.{layer}.bias"] = head.bias[layer, number]
    if head.lm_head is not None:
        weights |= {f"lm_heads.{number}.weight": rows for number, rows in enumerate(head.lm_head)}
    else:
        rows, bias = head.lm_rows()
        if bias is not None:
            raise CheckpointError("the target's LM head has a bias, and vLLM's Medusa heads have no place for one")
        weights["lm_head.weight"] = rows
    if head.draft_ids is not None:
        weights["token_map"] = head.draft_ids
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "base_model_name_or_path": config.target,
        "hidden_size": config.target_hidden_size,
        "vocab_size": config.target_vocab_size,
        "truncated_vocab_size": head.vocab_size,
        "num_heads": config.heads,
        "num_hidden_layers": config.blocks,
        "medusa_fc_bias": biased,
        "original_lm_head": head.lm_head is None,
        "max_paths": 64,
        "topk": 10,
        "dtype": _dtype(head),
    }, weights


def _layers(head: DecoderHead, speculators: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config of the layers and weights under the usual names, for a head of either kind."""
    config = head.config
    weights = dict(head.state_dict())
    ids = weights.pop("draft_ids", None)
    if config.embed_scale != 1.0:  # no layout knows it: it goes into the embeddings, which then are the head's own
        own = head.embed_tokens if head.embed_tokens is not None else head.borrowed.embed_tokens
        if own is None:
            raise CheckpointError("embed_scale: the head has to be bound to its target's embed_tokens")
        weights["embed_tokens.weight"] = torch.cat([*embedded(own)]).to(head.dtype) * config.embed_scale
    found = {
        "architectures": ["Eagle3LlamaForCausalLM" if head.kind == "eagle3" else "EagleLlamaForCausalLM"],
        "model_type": "qwen3" if config.qk_norm else "llama",
        "hidden_size": config.width,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": config.head_dim or config.width // config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "vocab_size": config.target_vocab_size,
        "tie_word_embeddings": False,
        "dtype": _dtype(head),
        **_rope(config.rope_parameters),
    }
    if not speculators:
        found["base_model_name_or_path"] = config.target
    if isinstance(head, Eagle3Head):
        return _eagle3(head, found, weights, ids, speculators)
    if ids is not None:
        raise CheckpointError("draft_vocab_size: EAGLE's layout has no place for a trimmed vocabulary")
    found["bias"] = config.fc_bias
    if config.attention_bias:
        outs = [name for name in weights if name.endswith("o_proj.bias")]
        if not any(bool(weights[name].any()) for name in outs):  # EAGLE's layout has biases for q, k and v only
            found |= {"qkv_bias": True, "attention_bias": False}
            weights = {name: value for name, value in weights.items() if name not in outs}
    return found, weights


def _eagle3(
    head: Eagle3Head, found: dict[str, Any], weights: dict[str, Tensor], ids: Tensor | None, speculators: bool
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = head.config
    if config.fc_bias:
        raise CheckpointError("fc_bias: the layouts of EAGLE-3 have no bias in fc")
    if "final" in config.taps:
        raise CheckpointError("taps: the state after the final norm has no number in the layouts of EAGLE-3")
    if config.norm_output and not speculators:
        raise CheckpointError("norm_output: only speculators' layout says it; write that one")
    if not config.final_norm and speculators:
        raise CheckpointError("final_norm: speculators' layout always has a norm before the LM head")
    if "lm_head.weight" not in weights:
        rows, bias = head.lm_rows()
        if bias is not None:
            raise CheckpointError("the target's LM head has a bias, and the layouts of EAGLE-3 have no place for one")
        weights["lm_head.weight"] = rows.to(head.dtype)
    if ids is not None:
        members = torch.zeros(config.target_vocab_size, dtype=torch.bool, device=ids.device)
        members[ids] = True
        weights |= {"d2t": offsets(ids.cpu()), "t2d": members}
    found |= {
        "draft_vocab_size": head.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "eagle_aux_hidden_state_layer_ids": [_boundary(tap) for tap in config.taps],
    }
    if speculators:
        found["norm_output"] = config.norm_output
    else:
        found["eagle_aux_layer_semantics"] = "vllm"
    return found, weights


def _boundary(tap: str) -> int:
    return 0 if tap == "embed" else int(tap.removeprefix("layer:")) + 1


_OUTER = (
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "eagle_aux_hidden_state_layer_ids",
    "tie_word_embeddings",
)


def _speculators(
    found: Mapping[str, Any], head: DecoderHead, verifier: str, architectures: tuple[str, ...], tokens: int
) -> dict[str, Any]:
    name = verifier or head.config.target
    if not name:
        raise CheckpointError("speculators' layout names its target, and the head does not say it: give verifier")
    family = "Qwen3ForCausalLM" if head.config.qk_norm else "LlamaForCausalLM"
    inner = {key: value for key, value in found.items() if key not in _OUTER}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": _VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": name, "architectures": list(architectures)},
        },
        **{key: found[key] for key in _OUTER},
        "transformer_layer_config": {**inner, "architectures": [family]},
        "dtype": found["dtype"],
    }


def _rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Both spellings: servers read the one from before transformers 5."""
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    plain = scaling.get("rope_type", "default") == "default"
    return {
        "rope_parameters": dict(parameters),
        "rope_theta": parameters.get("rope_theta", 10000.0),
        "rope_scaling": None if plain else {**scaling, "type": scaling["rope_type"]},
    }


def _dtype(head: Head) -> str:
    return str(head.dtype).removeprefix("torch.")
