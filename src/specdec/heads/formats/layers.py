"""Sizes of decoder layers, counted from their weights; the config says only what weights cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specdec.core.errors import CheckpointError

__all__ = ["base_name", "head_dim", "layer_fields", "rope", "with_output_bias"]

_KNOWN = ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "eagle", "medusa", "")
_OTHER_NORMS = ("gemma", "qwen3_next", "qwen3_5")


def layer_fields(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], where: str
) -> tuple[dict[str, Any], list[str]]:
    """Fields of `DecoderHeadConfig` for the layers in `weights`, and remarks where the config says otherwise."""
    remarks: list[str] = []
    family = str(config.get("model_type") or "")
    if family.startswith(_OTHER_NORMS):
        raise CheckpointError(
            f"{where}: its layers are of the family {family!r}, whose norms multiply by 1 + weight; specdec's heads "
            "have Llama or Qwen3 layers"
        )
    if family not in _KNOWN:
        remarks.append(f"its model_type is {family!r}; its tensors are those of Llama layers, and are read as such")

    def rows(name: str) -> int:
        if name not in weights:
            raise CheckpointError(f"{where}: {name} is missing")
        return int(weights[name].shape[0])

    at = "layers.0.self_attn."
    heads = config.get("num_attention_heads")
    if not isinstance(heads, int) or heads < 1:
        raise CheckpointError(f"{where}: num_attention_heads is {heads!r}; weights alone do not say it")
    queries, keys = rows(f"{at}q_proj.weight"), rows(f"{at}k_proj.weight")
    size = config.get("head_dim") or queries // heads
    if queries != heads * size or keys % size:
        raise CheckpointError(
            f"{where}: {queries} rows of q_proj and {keys} of k_proj do not divide into {heads} heads of {size}"
        )
    count = 1 + max(int(match[1]) for name in weights if (match := re.match(r"layers\.(\d+)\.", name)))
    counted = {
        "num_hidden_layers": count,
        "num_key_value_heads": keys // size,
        "intermediate_size": rows("layers.0.mlp.gate_proj.weight"),
    }
    for name, found in counted.items():
        said = config.get(name, found)
        if said != found:
            remarks.append(f"its config says {name} {said}, its weights have {found}")
    norms = [f"{at}q_norm.weight" in weights, f"{at}k_norm.weight" in weights]
    fields = {
        **counted,
        "num_attention_heads": heads,
        "head_dim": size,
        "hidden_act": config.get("hidden_act") or "silu",
        "rms_norm_eps": config.get("rms_norm_eps") or 1e-6,
        "max_position_embeddings": config.get("max_position_embeddings") or 2048,
        "rope_parameters": rope(config, where),
        "attention_bias": any(f"{at}{name}_proj.bias" in weights for name in "qkvo"),
        "mlp_bias": "layers.0.mlp.gate_proj.bias" in weights,
        "qk_norm": any(norms),
    }
    return fields, remarks


def rope(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The rotary embedding as transformers 5 writes it, from any spelling; a base of 10000 where none is said."""
    said = config.get("rope_parameters")
    if isinstance(said, Mapping) and said and all(isinstance(value, Mapping) for value in said.values()):
        said = said.get("full_attention") or next(iter(said.values()))  # a mapping for each type of layer
    found = dict(said or config.get("rope_scaling") or {})
    kind = found.pop("type", None)
    found.setdefault("rope_type", kind or "default")
    if found.get("rope_theta") is None:
        found["rope_theta"] = float(config.get("rope_theta") or 10000.0)
    part = found.pop("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
    if part != 1.0:
        raise CheckpointError(f"{where}: only {part} of each head is rotated, which specdec's heads do not do")
    return found


def with_output_bias(weights: Mapping[str, Tensor], biased: bool) -> dict[str, Tensor]:
    """The weights with an output bias of zero in each layer that has biases for queries, keys and values only."""
    out = dict(weights)
    for name, value in weights.items():
        if biased and name.endswith("self_attn.o_proj.weight"):
            out.setdefault(name.replace(".weight", ".bias"), torch.zeros(value.shape[0], dtype=value.dtype))
    return out


def head_dim(config: Mapping[str, Any]) -> int | None:
    """Width of an attention head, where the config says it; it is not always hidden size / heads."""
    size, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return config.get("head_dim") or (size // heads if size and heads else None)


def base_name(config: Mapping[str, Any]) -> str:
    """The model that a checkpoint was made for, as it says; "" where it does not."""
    spec = config.get("speculators_config")
    verifier = spec.get("verifier") if isinstance(spec, Mapping) else None
    named = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return str(named or config.get("base_model_name_or_path") or "")
