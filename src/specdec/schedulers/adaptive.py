"""Adaptive: draft what measured costs and measured acceptance say will pay, under a time ledger."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.core.interfaces import Scheduler, ScheduleSession
from specdec.core.state import Budget, Context, Round, Row
from specdec.schedulers.adaptive_config import AdaptiveConfig
from specdec.schedulers.cost import OUTLIER, CostCurve, RoundCost
from specdec.schedulers.learnt import Learnt

_PROBE_FIRST, _PROBE_LAST = 8, 64  # plain rounds between two probes, doubling while probes fail
_PROBE_DEPTH, _PROBE_NODES = 2, 4
_RECENT = 0.95  # weight of the past in the going rate
_SMALLEST = 2  # a tree of fewer nodes is none
_GROWTH = 2  # how many times as large as any before a tree may be: costs are not extrapolated further
_FIRST_NODES = 8  # the largest tree before any has been measured
_REFRESH_CLOSE, _REFRESH = 16, 64  # drafted rounds after which a plain one is run to see what that costs now
_CLOSE = 1.25  # a forecast gain below which the comparison with plain rounds must be fresh
_REFRESH_DOUBTED = 4  # the same where what drafts cost has surprised
_CREDIT = 1.0  # plain rounds that drafting may cost in advance


class Adaptive(Scheduler):
    """Chooses each round's depth to maximise expected tokens over measured time; depth 0 is a plain round.

    Drafters of trees get the depth that they like and as many nodes as have paid, with what nodes and levels cost and
    the going rate, so that one with confidences sizes each tree by what its nodes are worth. The first trees are small.

    A ledger bounds what that may cost: drafting is allowed only while the time spent is at most `1 + margin` times
    what plain rounds would have taken for the tokens emitted, plus one round's credit and what drafts have saved in
    earlier calls, of which up to four rounds may be lost again. So no call is slower than plain decoding by more than
    the margin, these and one round, whatever the drafter does, and all calls together by no more than the margin and
    two rounds a call.

    What rounds cost is remembered from call to call, in proportion: the first round of a call says how long they take
    now. So is what drafts were worth, until a few rounds have said what they are worth now. A plain round is run from
    time to time where none comes by itself. Budgets depend on measured time, so with sampled drafts the text of a seed
    may differ from run to run; POINT drafts are unaffected.
    """

    name = "adaptive"
    measures_time = True

    def __init__(self, max_depth: int = 16, max_nodes: int = 64, margin: float = 0.02) -> None:
        self._config = AdaptiveConfig(max_depth=max_depth, max_nodes=max_nodes, margin=margin)
        # Values are only ever replaced whole, so that two threads may share a decoder; the newer session wins.
        self._learnt = Learnt()

    @property
    def config(self) -> AdaptiveConfig:
        return self._config

    @classmethod
    def from_config(cls, config: AdaptiveConfig) -> Adaptive:
        return cls(config.max_depth, config.max_nodes, config.margin)

    def begin(self, context: Context, drafts: bool) -> ScheduleSession:
        return AdaptiveSession(self._config, self._learnt, len(context.rows), drafts, context.widths)


class AdaptiveSession(ScheduleSession):
    """One generation's estimates, which begin with and are added to what was `learnt`.

    widths: nodes to which the target pads its passes; drafts may fill them.
    """

    def __init__(
        self, config: AdaptiveConfig, learnt: Learnt, rows: int, drafts: bool, widths: tuple[int, ...]
    ) -> None:
        self._config, self._learnt, self._drafts = config, learnt, drafts
        self._unknown = RoundCost(CostCurve(widths=widths))
        self._live = rows
        self._curves: dict[int, RoundCost] = {}  # this generation's, by live rows
        self._factor: float | None = None  # what this generation takes of the time that was remembered
        self._since_plain = _REFRESH_CLOSE // 2  # nothing of this call has been measured yet
        self._acceptance = learnt.acceptance()
        self._elapsed = self._earned = 0.0  # seconds spent, and what plain rounds would have taken
        self._idle, self._probe_every = 0, _PROBE_FIRST
        self._tokens = self._seconds = 0.0  # a row, recently
        self._trees = False  # drafts have branched
        # A wider pass than the widest is of another kind, and slower: it is not padded, compiled or packed.
        self._most = min([config.max_nodes, *(width - 1 for width in widths[-1:] if width > 1)])
        self._deepest = min(config.max_depth, self._most)
        self._sizes = learnt.sizes(self._most, widths)
        self._saved = learnt.saved
        self._planned, self._trial = 0, False  # nodes that the last budget allowed, and whether to fill it

    @property
    def costs(self) -> RoundCost:
        return self._costs_of(self._live)

    def _costs_of(self, live: int) -> RoundCost:
        if live not in self._curves:
            known = self._learnt.costs.get(live)
            if known is not None and known.passes.widths == self._unknown.passes.widths:
                self._curves[live] = known if self._factor is None else known.scaled(self._factor)
            else:
                near = min(self._curves, key=lambda rows: abs(rows - live), default=None)
                self._curves[live] = (self._unknown if near is None else self._curves[near]).among(live)
        return self._curves[live]

    def plan(self, rows: Sequence[Row]) -> Budget:
        self._live = len(rows)
        costs = self.costs
        if not self._drafts:
            return Budget(0, 0)
        if costs.plain is None:
            return Budget(0, 0)  # a plain round of so many rows first: every later decision is measured against it
        nodes, gain = self._sizes.best(costs) if self._trees else (self._most, 0.0)
        depth = self._deepest if gain > 1.0 else 0
        if not self._trees:
            depth, gain = self._best_depth(costs)
        if self._since_plain >= self._refresh(costs, gain):
            return Budget(0, 0)
        if self._slack(costs) < 0:
            return Budget(0, 0, costs.passes, None)
        if self._idle >= self._probe_every:
            # Until there is a guess to judge. What drafts cost is asked anew, too: one round that the machine slowed
            # down would otherwise forbid them for good, be it here or in a drafter that minds what they cost.
            if depth == 0:
                depth, nodes = min(costs.passes.filled(_PROBE_DEPTH), self._deepest), _PROBE_NODES
            return self._budget(depth, nodes, costs, trial=True)
        if depth and self._trees and (trial := self._sizes.trial()) is not None:
            return self._budget(depth, trial, costs, trial=True)
        return self._budget(depth, nodes, costs)

    def _refresh(self, costs: RoundCost, gain: float) -> int:
        """Drafted rounds after which a plain one is due."""
        if costs.passes.doubted is not None:
            return _REFRESH_DOUBTED
        return _REFRESH_CLOSE if gain < _CLOSE else _REFRESH

    def _slack(self, costs: RoundCost) -> float:
        """Seconds that drafting may still cost."""
        plain = costs.plain or 0.0
        return (1.0 + self._config.margin) * self._earned + (_CREDIT + self._saved) * plain - self._elapsed

    def observe(self, event: Round) -> None:
        if event.number == 0:
            return  # the pass over the prompts says nothing about a round
        shapes = [outcome.draft.topology for outcome in event.rows]
        nodes = max(len(shape.parents) for shape in shapes)
        levels = max(shape.judged_depth for shape in shapes)
        live = len(event.rows)
        costs = self._costs_of(live)
        if self._factor is None:
            self._factor = event.times.total / costs(nodes, levels) if costs.plain else 1.0
            costs = costs.scaled(self._factor)
        costs = costs.observe(nodes, levels, event.times.draft, event.times.total, self._since_plain)
        self._curves[live] = self._learnt.costs[live] = costs
        self._since_plain = self._since_plain + 1 if nodes else 0
        self._account(event, nodes, levels, costs)
        self._trees = self._trees or not all(shape.is_chain for shape in shapes)
        if nodes:
            going = [outcome for outcome in event.rows if not outcome.done]  # what a stop cut away was not rejected
            if self._trees and going:
                added = sum(outcome.accepted for outcome in going) / len(going)
                self._sizes.observe(self._planned, added, nodes, levels, free=not self._trial)
            failed = self._idle >= self._probe_every and not any(outcome.accepted for outcome in event.rows)
            self._probe_every = min(2 * self._probe_every, _PROBE_LAST) if failed else self._probe_every
        self._idle = 0 if nodes else self._idle + 1
        for outcome in event.rows:
            if outcome.done or not outcome.judged or not outcome.tokens:
                continue  # what a stop cut away was not rejected, and a row that stood still has judged nothing
            self._acceptance.observe(outcome.draft.topology.judged_depth, outcome.accepted)
            if outcome.accepted:
                self._probe_every = _PROBE_FIRST
        if costs.plain:
            saved = self._saved + (self._earned - self._elapsed) / costs.plain
            self._learnt.keep(self._acceptance, self._sizes, saved)

    def _account(self, event: Round, nodes: int, levels: int, costs: RoundCost) -> None:
        """Enter a round in the ledger. A plain round took what a plain round takes, however long that was."""
        seconds = event.times.total
        tokens = sum(len(outcome.tokens) for outcome in event.rows) / len(event.rows)
        if not nodes or costs.plain is None:
            self._elapsed += seconds
            self._earned += seconds
        else:
            seconds = min(seconds, OUTLIER * costs(nodes, levels))  # a hiccup of the machine is not the draft's fault
            self._elapsed += seconds
            self._earned += costs.plain * tokens
        self._tokens = _RECENT * self._tokens + tokens
        self._seconds = _RECENT * self._seconds + seconds

    def _best_depth(self, costs: RoundCost) -> tuple[int, float]:
        """The depth of most tokens a second, and that rate in units of plain decoding's."""
        best, rate = 0, 1.0 / costs(0)
        expected = 1.0
        for depth, reach in enumerate(self._acceptance.reach(self._deepest), start=1):
            expected += reach
            if expected / costs(depth, depth) > rate:
                best, rate = depth, expected / costs(depth, depth)
        return best, rate * costs(0)

    def _budget(self, depth: int, nodes: int, costs: RoundCost, trial: bool = False) -> Budget:
        nodes = min(nodes, max(_FIRST_NODES, _GROWTH * costs.largest))
        nodes = min(costs.passes.filled(nodes), self._most)
        if self._trees:
            # A tree may cost no more than the ledger has left, even if nothing of it is kept.
            slack, levels = self._slack(costs), self._sizes.levels
            least = costs.passes.filled(_PROBE_NODES) if trial else 0
            while nodes > least and costs(nodes, levels) - costs(0) > slack:
                nodes = costs.passes.fewer(nodes)
            depth = min(depth, nodes) if nodes >= _SMALLEST else 0
        self._planned, self._trial = max(depth, nodes), trial
        if depth == 0:
            return Budget(0, 0, costs.passes, None)
        plain = 1.0 / costs(0)
        rate = max(plain, self._tokens / self._seconds) if self._seconds else plain
        if trial:  # without a rate nobody minds costs
            return Budget(depth, self._planned, costs.passes)
        return Budget(depth, self._planned, costs.passes, rate, step=costs.drafting.step)


def example(vocab_size: int) -> Adaptive:
    """A scheduler for checks."""
    return Adaptive(max_depth=3)
