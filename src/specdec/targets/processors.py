"""Logits processors of transformers, sorted by what they look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.errors import UnsupportedOptionError
from specdec.core.sampling import Processor, Sampling
from specdec.targets import compat


def sampling_of(processors: Sequence[Any], row: int, do_sample: bool | None) -> Sampling:
    """The sampling of row `row` of a batch; raises UnsupportedOptionError for processors that keep a state.

    Processors that transformers does not ship are called twice on their first position, to see whether they do.
    """
    if stateful := [type(p).__name__ for p in processors if isinstance(p, compat.STATEFUL)]:
        raise UnsupportedOptionError(
            f"{', '.join(stateful)} keeps a state from call to call or runs the model itself; a verification pass "
            "looks at several tokens at once, some of which are rejected, so its state would be wrong"
        )
    made: list[Processor] = []
    for processor in processors:
        if (allowed := compat.prefix_function(processor)) is not None:
            made.append(_OwnRow(allowed, row))
        elif isinstance(processor, compat.PURE):
            made.append(processor)
        else:
            made.append(_Watched(processor))
    mirrored = tuple(
        p for p in processors if isinstance(p, compat.PURE) and compat.prefix_function(p) is None
    )
    return Sampling(
        processors=tuple(made),
        elementwise=all(isinstance(p, compat.WARPERS) for p in processors),
        greedy=not do_sample,
        mirrored=mirrored,
        mirrored_elementwise=all(isinstance(p, compat.WARPERS) for p in mirrored),
    )


class _OwnRow:
    """`prefix_allowed_tokens_fn` for one row, called with that row's number in the batch."""

    def __init__(self, allowed: Any, row: int) -> None:
        self._allowed, self._row = allowed, row

    def __call__(self, prefix: Tensor, scores: Tensor) -> Tensor:
        out = torch.full_like(scores, -torch.inf)
        for index, sentence in enumerate(prefix):
            tokens = self._allowed(self._row, sentence)
            if len(tokens) == 0:
                raise ValueError(
                    f"prefix_allowed_tokens_fn returned an empty list for batch id {self._row}: the constraint "
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
