"""What specdec needs to know of a causal LM before it runs it, read from its config and its public signature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from specdec.core.errors import UnsupportedModelError
from specdec.targets import compat
from specdec.targets.masks import Windows


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    """Facts of one model. `of` raises UnsupportedModelError, naming the cause, where it cannot be decoded.

    cache_name: keyword under which `forward` takes the cache. windows: layer type to window.
    takes_mask: whether its attention honours a mask of our own.
    """

    name: str
    cache_name: str
    keeps_logits: bool
    windows: Windows
    takes_mask: bool
    vocab_size: int

    @classmethod
    def of(cls, model: nn.Module) -> ModelSpec:
        config = getattr(model, "config", None)
        name = type(model).__name__
        if config is None or not hasattr(model, "forward"):
            hint = f"; load it first: load_model({model!r})[0]" if isinstance(model, str) else ""
            raise UnsupportedModelError(f"expected a Hugging Face causal LM, found {name} without a config{hint}")
        if getattr(config, "is_encoder_decoder", False):
            raise UnsupportedModelError(f"{name} is an encoder-decoder model; specdec decodes decoder-only causal LMs")
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise UnsupportedModelError(
                f"{name} puts virtual tokens of a PEFT prompt in front of every pass, so positions and cache are not "
                "those of the text. specdec needs an adapter that changes weights only, such as LoRA"
            )
        text = config.get_text_config(decoder=True)
        names = compat.parameters(model)
        kinds = compat.layer_kinds(text)
        if others := [kind for kind in kinds if kind not in compat.KINDS]:
            raise UnsupportedModelError(
                f"{name} has layers of type {', '.join(others)}, whose memory is not the keys and values of single "
                "tokens but a recurrent state or a compressed one: a rejected token cannot be taken out of it. "
                f"specdec knows layers of type {', '.join(compat.KINDS)}"
            )
        cache_name = compat.cache_keyword(names)
        if cache_name is None:
            raise UnsupportedModelError(
                f"{name}.forward takes no key-value cache (neither 'cache' nor 'past_key_values'): it keeps a "
                "recurrent state, out of which a rejected token cannot be taken, or no memory at all"
            )
        if "position_ids" not in names or getattr(text, "alibi", False):
            raise UnsupportedModelError(
                f"{name} takes no position_ids but derives positions from the attention mask (ALiBi) or by counting, "
                "so the nodes of a draft cannot be given their positions"
            )
        return cls(
            name=name,
            cache_name=cache_name,
            keeps_logits="logits_to_keep" in names,
            windows={kind: _size(kind, text) for kind in kinds},
            takes_mask=_takes_mask(str(getattr(text, "_attn_implementation", ""))),
            vocab_size=_vocab(model, text),
        )


def _takes_mask(kernel: str) -> bool:
    """False for flash kernels, from the hub too, and for paged ones. For all others the probe finds out."""
    return "flash" not in kernel and not kernel.startswith("paged|")


def _size(kind: str, config: Any) -> int | None:
    if kind == "chunked_attention":
        return int(config.attention_chunk_size)
    return compat.sliding_window(config) if kind == "sliding_attention" else None


def _vocab(model: Any, config: Any) -> int:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    rows = getattr(head, "out_features", None)
    return int(rows if rows is not None else config.vocab_size)


def dtype_of(model: nn.Module) -> torch.dtype:
    """The dtype in which a model computes: that of its first floating-point parameter."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.get_default_dtype()
