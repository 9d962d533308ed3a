"""How many nodes of a tree pay, for drafters that take all they are given and for those that mind their costs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from specdec.schedulers.cost import RoundCost

_FORGET = 0.96  # weight of the past at each new round
_FIRST = 8  # nodes of the first tree; each further size is twice the one before
_HOPE = 1.0  # tokens that the first trees are hoped to add to a round
_MORE = 0.25  # hoped growth of what a tree adds, where it is twice as large
_TRUST = 3.0  # rounds that a hope is worth
_FIRST_TRIALS = 2  # the second and third tree of a call are larger than the one before, and later one in so many:
_TRIALS_APART = 24
_TRIAL_ANEW = 4  # rounds of a later call before the first
_FULL, _OFTEN = 0.9, 0.5  # a tree that uses so much of its limit is full; where few are, the drafter minds its costs


@dataclass(slots=True)
class _Seen:
    """Decayed sums over rounds: how many, tokens beyond the first, nodes and levels."""

    rounds: float = 0.0
    added: float = 0.0
    nodes: float = 0.0
    levels: float = 0.0

    def add(self, added: float, nodes: int, levels: int) -> None:
        self.rounds = _FORGET * self.rounds + 1.0
        self.added = _FORGET * self.added + added
        self.nodes = _FORGET * self.nodes + nodes
        self.levels = _FORGET * self.levels + levels

    def faded(self, rounds: float) -> _Seen:
        """The same averages, over no more than so many rounds."""
        share = min(1.0, rounds / self.rounds) if self.rounds else 1.0
        return _Seen(share * self.rounds, share * self.added, share * self.nodes, share * self.levels)


class TreeSizes:
    """Measured worth of trees by the number of nodes they were allowed."""

    def __init__(self, most: int, widths: Sequence[int] = ()) -> None:
        """most: nodes of the largest tree. widths: to which passes are padded, the anchor included."""
        self._limits = sorted({min(most, width - 1) for width in widths if width > 1}) or [most]
        while not widths and self._limits[0] > _FIRST:
            self._limits.insert(0, max(_FIRST, self._limits[0] // 2))
        self._by_limit = [_Seen() for _ in self._limits]
        self._all = _Seen()
        self._free = self._full = 0.0  # trees whose drafter could mind its costs, and those that used all they might
        self._until_trial = 1

    @property
    def limits(self) -> tuple[int, ...]:
        """The numbers of nodes that are told apart, ascending."""
        return tuple(self._limits)

    def faded(self, rounds: float) -> TreeSizes:
        """A copy in which what was observed weighs no more than so many rounds."""
        new = copy.copy(self)
        new._by_limit, new._all = [seen.faded(rounds) for seen in self._by_limit], self._all.faded(rounds)
        share = min(1.0, rounds / self._free) if self._free else 1.0
        new._free, new._full = share * self._free, share * self._full
        new._until_trial = min(self._until_trial, _TRIAL_ANEW)
        return new

    def observe(self, limit: int, added: float, nodes: int, levels: int, free: bool = True) -> None:
        """A round whose trees were allowed `limit` nodes, had up to `nodes` and `levels`, and added tokens a row.

        free: the drafter was told what nodes cost.
        """
        if free:
            self._free = _FORGET * self._free + 1.0
            self._full = _FORGET * self._full + (nodes >= _FULL * limit)
        self._all.add(added, nodes, levels)
        at = max((i for i, known in enumerate(self._limits) if known <= limit), default=0)
        self._by_limit[at].add(added, nodes, levels)
        self._until_trial -= 1

    def trial(self) -> int | None:
        """Nodes that should be tried, whatever they cost, to learn what larger trees take and bring; None: not now."""
        if self._until_trial > 0 or not self._all.rounds:
            return None
        self._until_trial = _TRIALS_APART if self._all.rounds > _FIRST_TRIALS else 1
        return min(self._limits[-1], max(_FIRST, round(2 * self._all.nodes / self._all.rounds)))

    @property
    def levels(self) -> float:
        """Levels of a usual tree."""
        return self._all.levels / self._all.rounds if self._all.rounds else 2.0

    def best(self, costs: RoundCost) -> tuple[int, float]:
        """The limit of most tokens a second, and that rate in units of plain decoding's."""
        if self._free >= _TRUST and self._full < _OFTEN * self._free:
            return self._limits[-1], self._gain(self._all, _HOPE, costs, self._all.nodes / self._all.rounds)
        best, most, hope = self._limits[0], 0.0, _HOPE
        for limit, seen in zip(self._limits, self._by_limit, strict=True):
            gain = self._gain(seen, hope, costs, limit)
            if gain > most:
                best, most = limit, gain
            added = (seen.added + _TRUST * hope) / (seen.rounds + _TRUST)
            if not seen.rounds:
                break  # one size after another
            hope = (1.0 + _MORE) * added
        return best, most

    def _gain(self, seen: _Seen, hope: float, costs: RoundCost, nodes: float) -> float:
        added = (seen.added + _TRUST * hope) / (seen.rounds + _TRUST)
        levels = seen.levels / seen.rounds if seen.rounds else self.levels
        return (1.0 + added) * costs(0) / costs(round(nodes), levels)
