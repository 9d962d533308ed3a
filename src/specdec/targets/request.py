"""A call of `generate`, prepared by transformers itself and caught before it decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, StopStringCriteria

from specdec.core.errors import InvalidPromptError, UnsupportedOptionError
from specdec.core.state import Criterion, Row
from specdec.targets import compat
from specdec.targets.options import problems_of, refuse, refuse_mode
from specdec.targets.processors import samplings_of

# What `generate` hands to a decoding method besides inputs that a decoder-only LM does not have.
_KNOWN = {
    "attention_mask", "position_ids", "use_cache", "logits_to_keep", "cache_position", "output_attentions",
    "output_hidden_states", "return_dict", "synced_gpus", "tokenizer", "streamer",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Request:
    """Everything that a generation needs, as plain `generate` would have understood the call.

    input_ids: `[rows, length]`, expanded for several samples a prompt. past: keys and values `[1, heads, length,
    size]` a layer of an earlier turn.
    """

    model: Any
    input_ids: Tensor
    rows: tuple[Row, ...]
    config: GenerationConfig
    greedy: bool
    pad: int
    past: list[tuple[Tensor, Tensor]] | None = None

    @property
    def prefill_chunk(self) -> int | None:
        return getattr(self.config, "prefill_chunk_size", None)

    @property
    def returns_dict(self) -> bool:
        return bool(self.config.return_dict_in_generate)

    @property
    def wants_scores(self) -> bool:
        return self.returns_dict and bool(self.config.output_scores)

    @property
    def wants_logits(self) -> bool:
        return self.returns_dict and bool(self.config.output_logits)


@dataclass(frozen=True, eq=False)
class Caught:
    """What `generate` had prepared when it reached the decoding method."""

    model: Any
    input_ids: Tensor
    processors: Sequence[Any]
    criteria: Sequence[Any]
    config: GenerationConfig
    model_kwargs: dict[str, Any]


def catch(model: Any, kwargs: Mapping[str, Any]) -> Caught:
    """Let `model.generate` prepare a call, and stop it where decoding would begin."""

    def stop(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> Caught:
        return Caught(
            model, input_ids, tuple(logits_processor), tuple(stopping_criteria), generation_config, model_kwargs
        )

    found: Caught = model.generate(**kwargs, custom_generate=stop)
    return found


def build(caught: Caught, extra: Sequence[Criterion] = ()) -> Request:
    """Turn what `generate` prepared into rows of the engine; raises for every option that would be wrong.

    extra: further criteria, called for every row.
    """
    config, kwargs, ids = caught.config, dict(caught.model_kwargs), caught.input_ids
    cache = compat.cache_of(kwargs)
    _refuse_config(config, kwargs, ids)
    mask = kwargs.get("attention_mask")
    _check_length(config, ids, mask)
    prompts, paddings = _prompts(ids, mask)
    _check_ids(prompts, caught.model)
    _check_positions(kwargs.get("position_ids"), ids, mask)
    past = _past(cache, ids, len(paddings[0]), max(1, config.num_return_sequences or 1))
    samplings = samplings_of(caught.processors, len(prompts), config.do_sample)
    group_size = max(1, config.num_return_sequences or 1)
    rows: list[Row] = []
    seen: list[tuple[int, ...]] = []
    for index, (prompt, padding) in enumerate(zip(prompts, paddings, strict=True)):
        criteria, eos, longest = _criteria(caught.criteria, config)
        if longest - len(padding) <= len(prompt):
            raise InvalidPromptError(
                f"the prompt has {ids.shape[1]} tokens and max_length is {longest}: there is no room to generate. "
                "Raise max_new_tokens or max_length"
            )
        rows.append(
            Row(
                index=index,
                tokens=list(prompt),
                sampling=samplings[index],
                max_length=longest - len(padding),
                copy=seen.count(prompt),
                group=index // group_size,
                padding=padding,
                criteria=(*criteria, *extra),
                eos=eos,
            )
        )
        seen.append(prompt)
    return Request(caught.model, ids, tuple(rows), config, not config.do_sample, _pad_id(config, rows), past)


def stop_string_criterion(tokenizer: Any, stop_strings: Any) -> Criterion:
    """The criterion that `generate` builds from stop strings; raises UnsupportedOptionError without a tokenizer."""
    if tokenizer is None:
        raise UnsupportedOptionError("stop_strings need the tokenizer of the model: pass tokenizer=...")
    return StopStringCriteria(tokenizer=tokenizer, stop_strings=stop_strings)  # type: ignore[no-any-return]


def _refuse_config(config: GenerationConfig, kwargs: Mapping[str, Any], ids: Tensor) -> None:
    found = problems_of(lambda name: getattr(config, name, None)) or refuse_mode(config)
    if kwargs.get("use_cache") is False and config.use_cache is not False:
        found += problems_of({"use_cache": False}.get)
    if ids.ndim != 2 or 0 in ids.shape:
        raise InvalidPromptError(f"expected input_ids [rows, length] with at least one token, found {list(ids.shape)}")
    found.extend(
        f"{name}: only token ids go into a draft, so inputs of other kinds cannot be decoded"
        for name, value in kwargs.items()
        if name not in _KNOWN and value is not None and value is not False
    )
    refuse(found)


def _prompts(ids: Tensor, mask: Tensor | None) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Real tokens of each row, and the pad tokens on its left."""
    shown = [[1] * ids.shape[1]] * len(ids) if mask is None else mask.long().tolist()
    prompts, paddings = [], []
    for index, (row, seen) in enumerate(zip(ids.tolist(), shown, strict=True)):
        real = sum(1 for flag in seen if flag)
        if real == 0:
            raise InvalidPromptError(f"row {index} is empty: its attention mask hides every token")
        if not all(seen[len(seen) - real :]):
            raise InvalidPromptError(
                f"row {index} is padded on the right or has holes in its attention mask; decoder-only models are "
                "padded on the left: set tokenizer.padding_side = 'left'. Where no mask is passed, `generate` takes "
                "every pad token for padding: pass attention_mask=torch.ones_like(input_ids) if they are text"
            )
        prompts.append(tuple(row[len(row) - real :]))
        paddings.append(tuple(row[: len(row) - real]))
    return prompts, paddings


def _check_length(config: GenerationConfig, ids: Tensor, mask: Tensor | None) -> None:
    """`generate` also takes the new tokens alone, beside a cache, with a mask over the whole text; rows hold all."""
    whole = mask.shape[1] if mask is not None else getattr(config, "_mask_length", None) or ids.shape[1]
    if whole != ids.shape[1]:
        refuse([
            f"input_ids of {ids.shape[1]} tokens with an attention mask of {whole}: pass the whole text as input_ids, "
            "the tokens that a cache holds too"
        ])  # fmt: skip


def _check_ids(prompts: Sequence[Sequence[int]], model: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    for index, prompt in enumerate(prompts):
        if bad := [token for token in prompt if not 0 <= token < rows]:
            raise InvalidPromptError(
                f"row {index} holds token id {bad[0]}; the model knows ids 0 to {rows - 1}. "
                "Was the text encoded with another model's tokenizer?"
            )


def _check_positions(positions: Tensor | None, ids: Tensor, mask: Tensor | None) -> None:
    if positions is None or positions.shape[-1] != ids.shape[1] or positions.ndim != 2:
        return
    mask = torch.ones_like(ids) if mask is None else mask.long()
    usual = (mask.cumsum(-1) - 1) * mask
    if not torch.equal((positions * mask).expand_as(usual), usual):
        refuse(["position_ids: only the positions that follow from the attention mask are supported; leave them out"])


def _past(cache: Any, ids: Tensor, padding: int, copies: int) -> list[tuple[Tensor, Tensor]] | None:
    """Keys and values of an earlier turn, one row's, without those of its `padding`; None without an earlier turn."""
    if cache is None or cache.get_seq_length() == 0:
        return None
    length = int(cache.get_seq_length())
    layers = compat.cached_layers(cache)
    if layers is None:
        refuse([
            f"the cache given ({type(cache).__name__}) has dropped or transformed keys of earlier tokens, which "
            "drafted tokens need; pass the token ids without a cache"
        ])  # fmt: skip
    if len(ids) != copies:  # samples of one prompt are several rows, too
        refuse(["a cache of an earlier turn for several prompts: decode them one at a time, or without the cache"])
    if length >= ids.shape[1]:
        refuse([
            f"the cache given holds {length} tokens and the prompt has {ids.shape[1]}: the prompt must contain the "
            "cached tokens and at least one more"
        ])  # fmt: skip
    if length <= padding:
        return None
    return [(keys[:1, :, padding:], values[:1, :, padding:]) for keys, values in layers or []]


def _criteria(criteria: Sequence[Any], config: GenerationConfig) -> tuple[tuple[Any, ...], frozenset[int], int]:
    """Criteria that must be called, eos ids, and the padded length limit."""
    called: list[Any] = []
    eos: set[int] = set()
    limits: list[int] = []
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            limits.append(int(criterion.max_length))  # the caller's own takes the place of generate's
        elif type(criterion) is EosTokenCriteria:
            eos.update(int(token) for token in criterion.eos_token_id.flatten().tolist())
        else:
            called.append(criterion)
    return tuple(called), frozenset(eos), min(limits, default=int(config.max_length))


def _pad_id(config: GenerationConfig, rows: Sequence[Row]) -> int:
    for given in (config.pad_token_id, config.eos_token_id):
        if given is not None:  # the first end token takes the place of a pad token, as in `generate`
            return int(torch.as_tensor(given).flatten()[0])
    return min(rows[0].eos, default=0)
