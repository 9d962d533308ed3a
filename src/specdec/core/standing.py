"""What of a verdict stands: in ordinary decoding all of it; stronger floating-point modes hold some of it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specdec.core.draft import Draft
from specdec.core.state import Budget, Round, Row


class Settled(NamedTuple):
    """What a row emits of a verdict.

    path: kept nodes, at most one fewer than `tokens`, or as many where the last one ends the row.
    """

    path: tuple[int, ...]
    tokens: list[int]


class Standing:
    """One generation's rule for what may be emitted; this one lets every verdict stand as it is.

    The engine asks it at the four places where a mode can differ: how much may be drafted, what drafters see, what
    is scored, what is emitted. It never changes which token a pass decides, only which pass decides it.
    """

    def budgets(self, budget: Budget, live: Sequence[Row]) -> list[Budget]:
        """The round's budget for each row, cut to the tokens that the row may still emit."""
        return [budget.within(row.room) for row in live]

    def seen(self, live: Sequence[Row]) -> Sequence[Row]:
        """The rows as drafters see them."""
        return live

    def scored(self, live: Sequence[Row], drafts: Sequence[Draft]) -> Sequence[Draft]:
        """The drafts as they are scored and judged."""
        return drafts

    def settle(self, row: Row, path: tuple[int, ...], decided: list[int]) -> Settled:
        """What `row` emits: `decided[i]` was drawn at the i-th node of (anchor, *path)."""
        return Settled(path, decided)

    def told(self, event: Round) -> Round:
        """The round as drafters and schedulers are told of it."""
        return event
