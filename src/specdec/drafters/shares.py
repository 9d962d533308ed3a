"""What siblings are worth: how often the first, the second, ... child that was drawn at a node is the one kept."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.core.state import Outcome

_FORGET = 0.97  # weight of the past at each new decision
_FIRST, _NEXT = 0.6, 0.3  # chances before anything was seen: of the first child, of a later one once those are rejected
_TRUST = 4.0  # decisions that these first guesses are worth


class Shares:
    """Chances of one row's candidates by their place among siblings, learnt from what became of its drafts."""

    def __init__(self, most: int) -> None:
        """most: largest number of children at a node."""
        self._tried = [_TRUST] * most
        self._kept = [_TRUST * (_FIRST if order == 0 else _NEXT) for order in range(most)]

    def observe(self, outcome: Outcome) -> None:
        """Learn from every node that the text came to, unless a stop has cut the text short or it stood still."""
        if outcome.done or not outcome.tokens:
            return
        candidates = outcome.draft.topology.candidates
        for node, following in zip((0, *outcome.path), (*outcome.path, None), strict=True):
            for order, candidate in enumerate(candidates[node][: len(self._tried)]):
                self._tried[order] = _FORGET * self._tried[order] + 1.0
                self._kept[order] = _FORGET * self._kept[order] + (candidate.node == following)
                if candidate.node == following:
                    break

    def values(self) -> Sequence[float]:
        """Chance that the j-th child is the one kept if its parent is, none larger than the one before it."""
        found: list[float] = []
        left = 1.0
        for tried, kept in zip(self._tried, self._kept, strict=True):
            found.append(min([left * kept / tried, *found[-1:]]))
            left *= 1.0 - kept / tried
        return found
