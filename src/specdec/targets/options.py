"""Arguments of a call of `generate`: by name, looked up where `generate` does, and refused where they cannot work."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import GenerationConfig
from transformers.generation import GenerationMixin, GenerationMode

from specdec.core.errors import UnsupportedOptionError

_CACHES = ("quantized", "offloaded", "offloaded_static", "offloaded_hybrid", "paged")


def by_name(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call of `generate` by name; raises TypeError where one is given twice."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = [
        parameter.name
        for parameter in inspect.signature(GenerationMixin.generate).parameters.values()
        if parameter.kind not in kinds and parameter.name not in ("self", "custom_generate")
    ]
    if len(args) > len(names):
        raise TypeError(f"generate takes at most {len(names)} positional arguments, found {len(args)}")
    named = dict(zip(names, args, strict=False))
    if twice := sorted(named.keys() & kwargs.keys()):
        raise TypeError(f"generate got {', '.join(twice)} by position and by name")
    return {**named, **kwargs}


def set_aside(
    model: Any, kwargs: Mapping[str, Any], names: Sequence[str]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Take options out of a call: the model and arguments to prepare it with, and the values taken out.

    An option counts as `generate` counts it: in the call, else in the config given, else in the model's own config.
    In the last case a shallow copy of the model, weights shared, prepares the call, for nothing on the model changes.
    """
    kwargs = dict(kwargs)
    given, own = kwargs.get("generation_config"), getattr(model, "generation_config", None)
    taken: dict[str, Any] = {}
    in_given, in_own = [], []
    for name in names:
        found = [kwargs.pop(name, None), getattr(given, name, None), getattr(own, name, None)]
        taken[name] = next((value for value in found if value is not None), None)
        in_given += [name] if found[1] is not None else []
        in_own += [name] if found[2] is not None else []
    if in_given:
        kwargs["generation_config"] = _without(given, in_given)
    if hasattr(model, "get_base_model"):  # PEFT writes the wrapper's config into the model below it: no copy then
        if "stop_strings" in in_own:
            refuse(["stop_strings in the generation config of a PEFT model: remove them there, pass stop_strings=..."])
    elif in_own:
        model = copy.copy(model)
        model.generation_config = _without(own, in_own)
    return model, kwargs, taken


def _without(config: Any, names: Sequence[str]) -> GenerationConfig:
    config = copy.copy(config)
    for name in names:
        setattr(config, name, None)
    return config  # type: ignore[no-any-return]


def refuse_arguments(model: Any, kwargs: Mapping[str, Any]) -> None:
    """Refuse, all at once, arguments of the call that would be silently wrong; raises UnsupportedOptionError."""
    configs = (kwargs.get("generation_config"), getattr(model, "generation_config", None))

    def effective(name: str) -> Any:
        found = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
        return next((value for value in found if value is not None), None)

    found = [text for name, text in _ARGUMENTS.items() if _given(kwargs.get(name))]
    found.extend(problems_of(effective))
    if effective("guidance_scale") not in (None, 1, 1.0):
        found.append(_GUIDANCE)
    refuse(found)


def problems_of(effective: Callable[[str], Any]) -> list[str]:
    """Why options, looked up by name, cannot work with a decoder; empty if all can."""
    found = []
    if (beams := effective("num_beams") or 1) != 1:
        found.append(f"num_beams={beams}: beams share no single path to verify; use num_return_sequences for samples")
    if effective("use_cache") is False:
        found.append("use_cache=False: verifying several tokens in one pass needs the key-value cache")
    if (kind := effective("cache_implementation")) in _CACHES:
        found.append(f"cache_implementation={kind!r}: specdec keeps its own cache of slots; leave the option out")
    if effective("return_dict_in_generate"):
        found.extend(
            f"{name}: those of rejected tokens would be mixed in; run the model on the result"
            for name in ("output_attentions", "output_hidden_states")
            if effective(name)
        )
    found.extend(f"{name}: {text}" for name, text in _MODES.items() if _given(effective(name)))
    return found


def refuse_mode(config: GenerationConfig) -> list[str]:
    """Why a prepared config asks for a way of decoding that is neither greedy search nor sampling; empty if not."""
    mode = config.get_generation_mode()
    if mode in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE) or (config.num_beams or 1) != 1:
        return []
    return [f"{mode.value}: only greedy search and sampling are decoded; the drafter is chosen in Decoder(...)"]


def refuse(found: Sequence[str]) -> None:
    """Raise UnsupportedOptionError with every problem found; nothing if there is none."""
    if found:
        text = "\n".join(f"  - {problem}" for problem in found)
        raise UnsupportedOptionError(f"this call asks for what specdec does not do:\n{text}")


def _given(value: Any) -> bool:
    return value is not None and value is not False


_ASSISTANT = "the decoder has a drafter of its own; compose it with drafter=DraftModel(model)"
_GUIDANCE = (
    "guidance_scale: the processor of classifier-free guidance, UnbatchedClassifierFreeGuidanceLogitsProcessor, runs "
    "the model itself and keeps a state from call to call; leave it out"
)
_ARGUMENTS = {
    "assistant_model": f"assistant_model: {_ASSISTANT}",
    "assistant_tokenizer": f"assistant_tokenizer: {_ASSISTANT}",
    "inputs_embeds": "inputs_embeds: drafters need token ids; pass input_ids",
    "synced_gpus": "synced_gpus: rows that finish at different rounds cannot be kept in step over processes",
    "custom_generate": "custom_generate: this call is one already",
    "negative_prompt_ids": "negative_prompt_ids: guidance runs the model itself and keeps a state of its own",
    "token_type_ids": "token_type_ids: they have no meaning for drafted tokens; leave them out",
    "streamer": "streamer: stream() yields rounds itself; pass the streamer to generate()",
}
_MODES = {
    "prompt_lookup_num_tokens": "the drafter is chosen in Decoder(...); use drafter=PromptLookup()",
    "assistant_early_exit": "the drafter is chosen in Decoder(...); leave the option out",
    "use_mtp": "the drafter is chosen in Decoder(...); leave the option out",
    "penalty_alpha": "contrastive search looks at hidden states of several candidates; use greedy search or sampling",
    "dola_layers": "DoLa decodes from several layers; use greedy search or sampling",
    "constraints": "constrained beam search is not decoded; use prefix_allowed_tokens_fn",
    "token_healing": "heal the prompt first: model.heal_tokens(input_ids, tokenizer)",
    "force_words_ids": "constrained beam search is not decoded; use prefix_allowed_tokens_fn",
}
