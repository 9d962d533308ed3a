"""Reverify: a token that the rounding of a wide pass could change is decided by a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from specdec.core.forest import Forest
from specdec.core.rng import Rng
from specdec.core.sampling import Laws
from specdec.core.standing import Settled, Standing
from specdec.core.state import Budget, Row
from specdec.core.verdict import Verdict


@runtime_checkable
class DrawsByPosition(Protocol):
    """A verifier whose token at a position follows from that position's law and noise alone."""

    def doubts(self, forest: Forest, laws: Laws, verdict: Verdict, rng: Rng, drift: float) -> Tensor:
        """`[rows, depth + 1]` bool: whether the decision at the i-th node of (anchor, *path) could fall otherwise.

        drift: how far another pass may move what decides, a margin of scores or an edge of a token's interval.
        """
        ...


class Reverify(Standing):
    """Cuts a round before the first token in doubt; the next round is a plain one-token pass, whose token stands.

    A cut round emits drafted tokens only, or nothing where the decision at the anchor itself is in doubt. All rows
    of a batch share the one-token pass, as its shape is what counts.
    """

    def __init__(self, verifier: DrawsByPosition, drift: float) -> None:
        self._verifier, self._drift = verifier, drift
        self._waiting: set[int] = set()

    def budgets(self, budget: Budget, live: Sequence[Row]) -> list[Budget]:
        if any(row.index in self._waiting for row in live):
            return [Budget(0, 0, budget.cost, None)] * len(live)
        return super().budgets(budget, live)

    def doubts(self, laws: Laws, verdict: Verdict, rng: Rng) -> Tensor | None:
        if laws.forest.width == 1:
            return None
        return self._verifier.doubts(laws.forest, laws, verdict, rng, self._drift)

    def settle(self, row: Row, path: tuple[int, ...], decided: list[int], doubts: Sequence[int]) -> Settled:
        again = row.index in self._waiting
        self._waiting.discard(row.index)
        sure = next((place for place, doubt in enumerate(doubts[: len(decided)]) if doubt), len(decided))
        if sure == len(decided):
            return Settled(path, decided, again)
        self._waiting.add(row.index)
        # The last token that is kept takes the place of the target's own, which it is.
        return Settled(path[: max(0, sure - 1)], decided[:sure])
