"""Which format a checkpoint has, told from its config and from names and shapes of its tensors together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from specdec.heads.formats.format import FORMATS, Format
from specdec.heads.formats.names import bare

__all__ = ["detect"]

_SPECULATORS = {
    "eagle3": "eagle3-speculators",
    "eagle": "eagle-speculators",
    "peagle": "p-eagle",
    "mtp": "mtp-speculators",
    "dflash": "dflash",
    "dflash2": "dflash-2",
    "dspark": "dspark-speculators",
    "xpress": "xpress",
    "mlp": "mlp",
    "independent": "language-model",
}
_FEW = 4  # layers: a model with a trimmed vocabulary and no more of them is a head


def detect(config: Mapping[str, Any], shapes: Mapping[str, Collection[int]], files: Collection[str] = ()) -> Format:
    """The format of a checkpoint. shapes: of its tensors, by stored name. files: names of the folder's files.

    Neither `architectures` nor counts in the config are trusted alone: published heads call themselves
    LlamaForCausalLM, and say numbers of layers and heads that their weights do not have.
    """
    return FORMATS[_name(config, shapes, files)]


def _name(config: Mapping[str, Any], shapes: Mapping[str, Collection[int]], files: Collection[str]) -> str:
    tensors = {bare(name): tuple(shape) for name, shape in shapes.items()}
    architectures = " ".join(map(str, config.get("architectures") or ()))
    if "kind" in config and "format_version" in config:
        return "specdec"
    if (speculators := config.get("speculators_model_type")) is not None:
        return _SPECULATORS.get(str(speculators), "unknown")
    return (
        _block(config, architectures)
        or _eagle(config, architectures, tensors)
        or _medusa(config, shapes, tensors)
        or _other(config, shapes, tensors, files)
    )


def _block(config: Mapping[str, Any], architectures: str) -> str | None:
    flash = config.get("dflash_config")
    projector = flash.get("projector_type") if isinstance(flash, dict) else None
    if architectures.startswith("DFlash2"):
        return "dflash-2"
    if "DSpark" in architectures or projector == "dspark":
        return "dspark-specforge" if "DSparkDraftModel" in architectures or projector else "dspark-deepspec"
    if "Domino" in architectures or projector == "domino":
        return "domino"
    return "dflash" if architectures.startswith("DFlash") or "dflash_config" in config else None


def _eagle(config: Mapping[str, Any], architectures: str, tensors: Mapping[str, tuple[int, ...]]) -> str | None:
    if "PEagle" in architectures or "mask_hidden" in tensors:
        return "p-eagle"
    layers = _count(tensors, r"layers\.(\d+)\.")
    fused = "fc.weight" in tensors and "layers.0.hidden_norm.weight" in tensors
    # vLLM's Medusa and early EAGLE configs have a trimmed vocabulary, too.
    trimmed = ("draft_vocab_size" in config or "truncated_vocab_size" in config) and 0 < layers <= _FEW
    trimmed = trimmed and config.get("model_type") not in ("medusa", "eagle") and not _pair(tensors)
    named = "Eagle3" in architectures or "EAGLE3" in architectures
    if named or fused or trimmed or any(name.startswith("midlayer.") for name in tensors):
        return _eagle3(config, architectures, tensors)
    if _pair(tensors) and config.get("model_type") != "eagle":
        return "eagle"
    old = config.get("model_type") == "eagle" and isinstance(config.get("model"), dict)
    return "eagle-speculators" if old or "fusion_fc.weight" in tensors else None


def _eagle3(config: Mapping[str, Any], architectures: str, tensors: Mapping[str, tuple[int, ...]]) -> str:
    more = config.get("eagle_config")
    if any("kv_a_proj_with_mqa" in name or "kv_b_proj" in name for name in tensors):
        return "eagle3-mla"
    if any(name.startswith("parallel_draft_heads.") for name in tensors):
        return "eagle3-parallel"
    if "gemma" in str(config.get("model_type", "")).lower() or "Gemma" in architectures:
        return "eagle3-gemma"
    if isinstance(more, dict) and more.get("use_aux_hidden_state") is False:
        return "eagle3-plain"
    return "eagle3-deepspec" if "target_layer_ids" in config else "eagle3"


def _pair(tensors: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether `fc` joins an embedding and a state, and the first layer has no norm before its attention."""
    shape = tensors.get("fc.weight", ())
    return len(shape) == 2 and shape[1] == 2 * shape[0] and "layers.0.input_layernorm.weight" not in tensors


def _medusa(
    config: Mapping[str, Any], shapes: Mapping[str, Collection[int]], tensors: Mapping[str, tuple[int, ...]]
) -> str | None:
    if any(re.match(r"(?:medusa_heads\.)?blocks\.0\.layers\.0\.", name) for name in tensors):
        return "medusa-vllm"
    if any(name.startswith("medusa_heads.") for name in tensors):
        return "medusa-modelopt"
    if any(name.startswith("medusa_head.") for name in tensors):
        # Also where somebody has cut the heads out of such a model, with their names as they were.
        return "medusa-2"
    if config.get("model_type") == "medusa" and "medusa_num_heads" not in config:
        return "medusa-vllm"
    if any(re.fullmatch(r"0\.0\.linear\.weight", name) for name in tensors):
        own = any(re.fullmatch(r"\d+\.\d+\.weight", name) for name in tensors)
        return "medusa-1" if own else "medusa-v2"
    return None


def _other(
    config: Mapping[str, Any],
    shapes: Mapping[str, Collection[int]],
    tensors: Mapping[str, tuple[int, ...]],
    files: Collection[str],
) -> str:
    if "hydra_num_heads" in config or any(name.startswith("hydra_lm_head.") for name in files):
        return "hydra"
    if config.get("model_type") == "recurrent_drafting_drafter":
        return "redrafter"
    count = config.get("num_hidden_layers")
    beyond = isinstance(count, int) and _count(tensors, r"layers\.(\d+)\.") > count and "embed_tokens.weight" in tensors
    if beyond or any(name.startswith(("mtp.", "mtp_layers.")) for name in tensors):
        return "mtp"
    if any(name.startswith("layers.") for name in tensors) and "embed_tokens.weight" in tensors:
        return "language-model"
    return "unknown"


def _count(names: Iterable[str], pattern: str) -> int:
    """One more than the highest number that the pattern finds at the beginning of a name."""
    found = [int(match[1]) for name in names if (match := re.match(pattern, name))]
    return max(found, default=-1) + 1
