"""Every difference between transformers versions that specdec cares about: one function each, one test each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.generation import logits_process

KINDS = ("full_attention", "sliding_attention", "chunked_attention")
"""Layer types whose memory is keys and values alone, as `config.layer_types` names them."""


def parameters(module: Any) -> frozenset[str]:
    """Names of the parameters of a model's public `forward`, looked up below a PEFT wrapper."""
    base = module.get_base_model() if hasattr(module, "get_base_model") else module
    return frozenset(inspect.signature(base.forward).parameters)


def input_device(model: Any) -> torch.device:
    """Where input ids go: the device of the embedding, or that on which accelerate runs it where it is offloaded."""
    embedding: Any = model.get_input_embeddings()
    device = next(iter(embedding.parameters())).device
    if device.type != "meta":
        return device
    hooks = [embedding._hf_hook, *getattr(embedding._hf_hook, "hooks", ())] if hasattr(embedding, "_hf_hook") else []
    runs_on = next((h.execution_device for h in hooks if getattr(h, "execution_device", None) is not None), "cpu")
    return torch.device(runs_on)


def cache_keyword(names: frozenset[str]) -> str | None:
    """How `forward` calls its cache: `cache` in recent releases, `past_key_values` before; None without one."""
    return next((name for name in ("cache", "past_key_values") if name in names), None)


def query_length(argument: int | Tensor) -> int:
    """Width of a pass as `Cache.get_mask_sizes` is told it: a number, or `cache_position` in early 5.x."""
    return argument if isinstance(argument, int) else int(argument.shape[0])


def layer_kinds(config: PretrainedConfig) -> tuple[str, ...]:
    """The distinct layer types of a decoder config; layers that keep a recurrent state show up by their name."""
    # Hybrids of early 5.x have only `layers_block_type`, which calls a layer of keys and values "attention".
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if types:
        return tuple(dict.fromkeys("full_attention" if kind == "attention" else kind for kind in types))
    if getattr(config, "attention_chunk_size", None):
        return ("chunked_attention",)
    return ("sliding_attention",) if sliding_window(config) else ("full_attention",)


def sliding_window(config: PretrainedConfig) -> int | None:
    """Number of positions, its own included, that a token of a sliding layer sees; None without a window."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    window = getattr(config, "sliding_window", None)
    return window if isinstance(window, int) else None


def length_edge(config: PretrainedConfig) -> tuple[str, int | None]:
    """What of a model depends on the length of a pass, and where it changes; `("", None)` if nothing does.

    Rotary frequencies, in one set of options or one a layer type; the scale of queries, which Llama 4 takes from a
    count of its own.
    """
    if getattr(config, "attn_temperature_tuning", None) and getattr(config, "floor_scale", None):
        return "attention temperature", int(config.floor_scale)
    given: dict[str, Any] = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for options in (given, *(value for value in given.values() if isinstance(value, dict))):
        kind = str(options.get("rope_type", options.get("type", "")))
        if kind in ("longrope", "dynamic"):
            found = options.get("original_max_position_embeddings")
            found = found or getattr(config, "original_max_position_embeddings", None)
            return kind, int(found or config.max_position_embeddings)
    return "", None


def filled_cache(config: PretrainedConfig, layers: list[tuple[Tensor, Tensor]]) -> DynamicCache:
    """A DynamicCache that holds `layers` (keys, values) and that plain `generate` can continue from."""
    cache = DynamicCache(config=config)
    for index, (keys, values) in enumerate(layers):
        cache.update(keys, values, index)
    return cache


def cache_of(model_kwargs: dict[str, Any]) -> Any:
    """The cache that `generate` prepared or the user passed, whatever this release calls it; None without one."""
    found = [model_kwargs.pop(name, None) for name in ("cache", "past_key_values")]
    return next((cache for cache in found if cache is not None), None)


def cached_layers(cache: Any) -> list[tuple[Tensor, Tensor]] | None:
    """Keys and values `[batch, heads, length, size]` a layer; None where a layer does not keep all of them."""
    layers = getattr(cache, "layers", None)
    if not layers:
        return None
    found = []
    for layer in layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if type(layer).__name__ not in ("DynamicLayer", "DynamicSlidingWindowLayer"):
            return None
        if keys is None or values is None:
            return None
        if keys.shape[2] != layer.get_seq_length():
            return None
        found.append((keys, values))
    return found


def _classes(*names: str) -> tuple[type, ...]:
    return tuple(getattr(logits_process, name) for name in names if hasattr(logits_process, name))


WARPERS = _classes(
    "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TopHLogitsWarper",
    "TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "LogitNormalization",
)  # fmt: skip
"""Processors that look at the scores alone."""

PURE = WARPERS + _classes(
    "MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "RepetitionPenaltyLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor",
    "EncoderNoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor",
    "PrefixConstrainedLogitsProcessor", "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor",
    "InfNanRemoveLogitsProcessor", "ExponentialDecayLengthPenalty", "SuppressTokensLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor", "WatermarkLogitsProcessor",
)  # fmt: skip
"""Processors of transformers whose result depends on prefix and scores alone."""

STATEFUL = _classes(
    "UnbatchedClassifierFreeGuidanceLogitsProcessor", "ClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor", "WhisperTimeStampLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor", "AlternatingCodebooksLogitsProcessor",
    "BarkEosPrioritizerLogitsProcessor",
)  # fmt: skip
"""Processors of transformers that remember earlier calls, or that run the model themselves."""


def prefix_function(processor: Any) -> Callable[[int, Tensor], list[int]] | None:
    """The `prefix_allowed_tokens_fn` inside a processor, or None for every other processor."""
    if isinstance(processor, logits_process.PrefixConstrainedLogitsProcessor):
        return getattr(processor, "_prefix_allowed_tokens_fn", None)
    return None


def min_dtype(dtype: torch.dtype) -> float:
    """The number that hides a key in an additive mask."""
    return torch.finfo(dtype).min
