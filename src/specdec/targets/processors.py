"""Logits processors of transformers, sorted by what they look at."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.errors import UnsupportedOptionError
from specdec.core.sampling import Processor, Sampling
from specdec.targets import compat


def samplings_of(processors: Sequence[Any], rows: int, do_sample: bool | None) -> list[Sampling]:
    """The sampling of each row of a batch; raises UnsupportedOptionError for processors that keep a state.

    Rows share one object unless a processor is bound to its row, for equal objects are applied in one call.
    Processors that transformers does not ship are called twice on their first position, to see whether they do.
    """
    if stateful := [type(p).__name__ for p in processors if isinstance(p, compat.STATEFUL)]:
        raise UnsupportedOptionError(
            f"{', '.join(stateful)} keeps a state from call to call or runs the model itself; a verification pass "
            "looks at several tokens at once, some of which are rejected, so its state would be wrong"
        )
    if rows == 1 or not any(compat.prefix_function(p) is not None or _per_prompt(p) for p in processors):
        return [_sampling(processors, 0, do_sample)] * rows
    return [_sampling([_of_row(p, row, rows) for p in processors], row, do_sample) for row in range(rows)]


def _sampling(processors: Sequence[Any], row: int, do_sample: bool | None) -> Sampling:
    made: list[Processor] = []
    mirrored: list[Processor] = []
    strict = False
    for processor in processors:
        if (allowed := compat.prefix_function(processor)) is not None:
            # Copies of one prompt have one batch id, as `generate` counts.
            made.append(_OwnRow(allowed, row // max(1, getattr(processor, "_num_beams", 1))))
            strict = True
        elif type(processor) in compat.PURE:  # a subclass may do anything
            made.append(processor)
            mirrored.append(processor)
        else:
            made.append(_Watched(processor))
            strict = True
    return Sampling(
        processors=tuple(made),
        elementwise=all(type(p) in compat.WARPERS for p in processors),
        greedy=not do_sample,
        strict=strict,
        mirrored=tuple(mirrored),
        mirrored_elementwise=all(type(p) in compat.WARPERS for p in mirrored),
    )


def _of_row(processor: Any, row: int, rows: int) -> Any:
    """A processor that remembers every prompt of the batch, cut to the prompt of one row; others as they are.

    Preparing each row by a call of `generate` of its own would give the same and cost milliseconds a row; it would
    also lose processors of the caller that were built for the batch.
    """
    if not (remembered := _per_prompt(processor)):
        return processor
    own = copy.copy(processor)
    for name, prompts in remembered.items():
        at = row * len(prompts) // rows  # prompts need not be repeated for several samples
        setattr(own, name, prompts[at : at + 1])
    if hasattr(own, "batch_size"):
        own.batch_size = 1
    return own


def _per_prompt(processor: Any) -> dict[str, Any]:
    """What a processor of transformers remembers of each prompt of a batch, by attribute name."""
    if type(processor) not in compat.PURE:
        return {}
    found = {name: getattr(processor, name, None) for name in _REMEMBERED}
    return {name: value for name, value in found.items() if isinstance(value, (list, Tensor))}


_REMEMBERED = ("encoder_input_ids", "generated_ngrams", "prompt_ignore_length")


class _OwnRow:
    """`prefix_allowed_tokens_fn` for one row, called with the batch id that `generate` would give it."""

    def __init__(self, allowed: Any, batch_id: int) -> None:
        self._allowed, self._batch_id = allowed, batch_id

    def __call__(self, prefix: Tensor, scores: Tensor) -> Tensor:
        out = torch.full_like(scores, -torch.inf)
        for index, sentence in enumerate(prefix):
            tokens = self._allowed(self._batch_id, sentence)
            if len(tokens) == 0:
                raise ValueError(
                    f"prefix_allowed_tokens_fn returned an empty list for batch id {self._batch_id}: the constraint "
                    "cannot be met. Return the eos token where generation should end"
                )
            keep = torch.as_tensor(tokens, dtype=torch.int64, device=scores.device)
            out[index, keep] = scores[index, keep]
        return out


class _Watched:
    """A processor of unknown nature: refused if two first calls with the same input differ."""

    def __init__(self, processor: Any) -> None:
        self._processor, self._known = processor, False

    def __call__(self, prefix: Tensor, scores: Tensor) -> Tensor:
        if self._known:
            return self._processor(prefix, scores)  # type: ignore[no-any-return]
        first = self._processor(prefix, scores.clone()).clone()
        second = self._processor(prefix, scores.clone())
        if not host.is_true(torch.isclose(first, second, rtol=0, atol=0, equal_nan=True).all()):
            raise UnsupportedOptionError(
                f"logits processor {type(self._processor).__name__} gave two results for one input, so it keeps a "
                "state from call to call. A verification pass calls it for several tokens, some of which are "
                "rejected; make it a function of prefix and scores"
            )
        self._known = True
        return second
