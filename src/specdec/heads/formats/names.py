"""Tensor names of published heads: prefixes without meaning, what is left out, fused projections, quantisation."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor

from specdec.core.errors import CheckpointError

__all__ = ["bare", "cleaned", "quantised", "split_fused"]

_PREFIX = re.compile(r"^(?:module|_orig_mod|draft_model|eagle_module|dflash_module|model)\.")
# Recomputed from the config, or copies of the target's own modules.
_DROPPED = re.compile(r"(^|\.)rotary_emb\.inv_freq$|^verifier_")
_SCALES = re.compile(
    r"\.(?:weight_scale(?:_inv|_2)?|input_scale|qweight|qzeros|scales|weight_packed|SCB|absmax|g_idx|quant_state.*)$"
)
_WHOLE = {"F64", "F32", "F16", "BF16"}


def bare(name: str) -> str:
    """The name without the prefixes that wrappers, compilation and training frameworks put before it."""
    while (shorter := _PREFIX.sub("", name)) != name:
        name = shorter
    return name


def cleaned(names: Iterable[str], where: str) -> dict[str, str]:
    """Bare name to stored name, of all but what is left out; raises CheckpointError where two names become one."""
    found: dict[str, str] = {}
    for stored in names:
        name = bare(stored)
        if _DROPPED.search(name):
            continue
        if name in found:
            raise CheckpointError(f"{where}: {found[name]} and {stored} are both {name}; which one counts is not said")
        found[name] = stored
    return found


def quantised(config: Mapping[str, Any], types: Mapping[str, str], files: Collection[str]) -> str | None:
    """What shows that the weights are quantised, or None. types: tensor names to safetensors' names of types."""
    if config.get("quantization_config"):
        return "its config has a quantization_config"
    if "hf_quant_config.json" in files:
        return "there is a hf_quant_config.json"
    for name, kind in sorted(types.items()):
        if _SCALES.search(name):
            return f"it holds {name}"
        if name.endswith(".weight") and kind not in _WHOLE:
            return f"{name} is stored as {kind}"
    return None


def split_fused(weights: Mapping[str, Tensor], heads: int, head_dim: int | None, where: str) -> dict[str, Tensor]:
    """The weights with `qkv_proj` and `gate_up_proj` cut into the projections that they are made of.

    head_dim: null where the config does not say it; then that of a fused projection is not known.
    """
    out: dict[str, Tensor] = {}
    for name, value in weights.items():
        if ".qkv_proj." in name:
            q = heads * (head_dim or 0)
            rest = value.shape[0] - q
            if not q or rest <= 0 or rest % (2 * head_dim):  # type: ignore[operator]
                raise CheckpointError(
                    f"{where}: {name} has {value.shape[0]} rows, which {heads} heads of {head_dim} do not divide into "
                    "queries, keys and values; give num_attention_heads and head_dim in the config"
                )
            parts = dict(zip("qkv", value.split([q, rest // 2, rest // 2]), strict=True))
            out |= {name.replace("qkv_proj", f"{part}_proj"): rows for part, rows in parts.items()}
        elif ".gate_up_proj." in name:
            if value.shape[0] % 2:
                raise CheckpointError(f"{where}: {name} has {value.shape[0]} rows, expected two halves")
            for part, rows in zip(("gate", "up"), value.chunk(2), strict=True):
                out[name.replace("gate_up_proj", f"{part}_proj")] = rows
        else:
            out[name] = value
    return out
