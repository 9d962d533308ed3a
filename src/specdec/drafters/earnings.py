"""Dividing a row's nodes among drafters by what their guesses have been worth there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specdec.core.acceptance import Acceptance
from specdec.core.state import Budget

_LEAST = 1 / 32  # chance that a drafter's first node must have where no time has been measured
_PROBE_FIRST, _PROBE_LAST = 8, 64  # rounds of rest between two probes, doubling while probes fail
PROBE = 2  # nodes of a probe


class Earnings:
    """What one drafter's guesses have been worth in one row: how far along its drafts the text went."""

    def __init__(self) -> None:
        self._acceptance = Acceptance()
        self._rest = 0  # rounds since it was last asked
        self._pause = _PROBE_FIRST

    def observe(self, depth: int, accepted: int) -> None:
        """A draft that was `depth` deep, along which the text went `accepted` tokens."""
        if depth == 0:
            return  # it had no guess, which says nothing about its guesses
        self._acceptance.observe(depth, accepted)
        if self._rest:  # it was a probe
            self._pause = _PROBE_FIRST if accepted else min(2 * self._pause, _PROBE_LAST)
            self._rest = 0

    def reach(self, depth: int) -> list[float]:
        """Chances that the text goes 1, 2, ... `depth` tokens along the next draft."""
        return self._acceptance.reach(depth)

    def rest(self) -> bool:
        """Count a round in which it has earned nothing; False if it is time to probe whether that still holds."""
        self._rest += 1
        return self._rest < self._pause

    def ask(self) -> None:
        """It is asked for what it has earned: what comes of it is no probe."""
        self._rest = 0


class Division:
    """One row's budget, handed out drafter after drafter.

    Each gets nodes in proportion to the tokens that it is expected to bring, which is best where every doubling of
    its nodes brings a drafter about as much; a chain no more than pay (algorithms: marginal-rate rule). What one
    leaves goes to the next. One that has earned less than a node rests, but for a probe from time to time.

    What was drawn decides nothing here: earnings are of past rounds, and of this one only the number of nodes counts.
    """

    def __init__(self, budget: Budget, earnings: Sequence[Earnings], branching: Sequence[bool]) -> None:
        self._budget, self._earnings, self._branching = budget, earnings, branching
        self._reach = [one.reach(budget.depth) for one in earnings]
        self._worth = [sum(reach) for reach in self._reach]
        self._rivals = set(range(len(earnings)))  # without those that were asked and had no guess
        self._used = 0
        self._idle: set[int] = set()  # those that rest
        self._probed: set[int] = set()
        if budget.depth > 0 and budget.nodes > 0:
            self._pick()

    def next(self, number: int) -> Budget:
        """The budget of drafter `number`; they are asked in their order."""
        left = self._budget.nodes - self._used
        if left <= 0 or self._budget.depth <= 0:
            return replace(self._budget, depth=0, nodes=0)
        if number in self._probed:
            return self._of(min(PROBE, left), min(PROBE, self._budget.depth))
        if number in self._idle and not self._best(number):
            return replace(self._budget, depth=0, nodes=0)
        self._earnings[number].ask()
        left -= min(left - 1, PROBE * sum(at > number for at in self._probed))
        later = sorted(at for at in self._rivals - self._idle - self._probed | {number} if at >= number)
        caps = [left if self._branching[at] and self._pays(at) else self._pays(at) for at in later]
        share = divide(left, [self._worth[at] for at in later], caps)[0]
        return self._of(max(1, share), self._budget.depth)

    def _pick(self) -> None:
        """Who rests this round, and who is probed. One always drafts: whether to draft is the scheduler's choice."""
        total = sum(self._worth)
        best = self._worth.index(max(self._worth))
        for number, worth in enumerate(self._worth):
            if number == best or (self._budget.nodes * worth >= total and self._pays(number)):
                continue
            (self._idle if self._earnings[number].rest() else self._probed).add(number)

    def _best(self, number: int) -> bool:
        """Whether no one of more worth has a guess: then one that has earned nothing is better than no one."""
        return self._worth[number] >= max(self._worth[at] for at in self._rivals)

    def made(self, number: int, nodes: int) -> None:
        """Drafter `number` has drafted `nodes` nodes."""
        self._used += nodes
        if not nodes:
            self._rivals.discard(number)

    def _pays(self, number: int) -> int:
        """How many nodes of a chain of that drafter are worth their time: each must be reached at the going rate.

        Where no time has been measured the scheduler's limit is all that is known of it.
        """
        budget, reach = self._budget, self._reach[number]
        if budget.cost is None or budget.rate is None:
            return len(reach) if reach[0] >= _LEAST else 0
        for count, chance in enumerate(reach):
            # That there is a draft at all costs more than its first node, and is decided already.
            node = max(2, self._used + count + 1)
            if chance < budget.rate * (budget.cost(node) - budget.cost(node - 1)):
                return count
        return len(reach)

    def _of(self, nodes: int, depth: int) -> Budget:
        """A budget whose first node comes behind those that others have drafted."""
        budget, used = replace(self._budget, depth=depth, nodes=nodes), self._used
        if (cost := budget.cost) is None or not used:
            return budget
        return replace(budget, cost=lambda count: cost(used + count))


def divide(nodes: int, worth: Sequence[float], caps: Sequence[int]) -> list[int]:
    """`nodes` in proportion to `worth`, none more than its cap; what a cap leaves over goes to the others."""
    shares = [0] * len(worth)
    open_ = [at for at in range(len(worth)) if worth[at] > 0 and caps[at] > 0]
    while open_ and nodes > 0:
        total = sum(worth[at] for at in open_)
        full = [at for at in open_ if nodes * worth[at] >= caps[at] * total]
        if not full:
            exact = {at: nodes * worth[at] / total for at in open_}
            shares = [int(exact.get(at, share)) for at, share in enumerate(shares)]
            for at in sorted(open_, key=lambda at: int(exact[at]) - exact[at])[: nodes - sum(map(int, exact.values()))]:
                shares[at] += 1  # the largest remainders, the first of equal ones
            break
        for at in full:
            shares[at] = caps[at]
        nodes -= sum(caps[at] for at in full)
        open_ = [at for at in open_ if at not in full]
    return shares
