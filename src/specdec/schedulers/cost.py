"""What a round costs in seconds, learnt from rounds that were run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_FORGET = 0.95  # weight of the past at each new observation
_KEEP = 0.985  # weight of the past in what one more node costs: a matter of the machine that changes seldom
_BELIEF = 30.0  # nodes squared, over changes of size, at which measured slopes count as much as the usual one
_LEVELS = 1.0  # the like for levels
_TYPICAL = 0.5  # share of the forecast that one round says at most about what a node costs
_FRESH = 4  # rounds after a plain one in which what a draft costs is measured against it
_YOUNG = 1.5  # prices that rest on fewer observations are forgotten where they prove much too high
_SURPRISE = 1.4  # a round that takes so many times the forecast, or less than its inverse, is a surprise
_HICCUP = 0.3  # weight of one plain round that is slow by surprise
OUTLIER = 3.0  # a round slower than this many times the forecast is taken for a hiccup of the machine


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a round with n drafted nodes: what a plain round takes now, times a price in plain rounds.

    The two are learnt apart, so that a machine, or a context, that gets slower does not pass for a price of nodes.
    Every round says how long a plain one takes now. Prices, a line for n >= 1, are told only by rounds beside a plain
    one, and their slope by pairs of rounds that followed one another. n = 0 is kept apart because the step from one
    node to two is the largest: it may change the kernel.

    widths: nodes, the anchor included, to which passes are padded: those of one width cost the same.
    """

    plain: float | None = None
    rows: int = 1  # in a pass: what nodes cost before any was measured grows with them
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)  # decayed sums of 1, n, price over rounds with drafts
    slopes: tuple[float, float] = (0.0, 0.0)  # decayed sums of dn * dn, dn * dprice over pairs of them
    last: tuple[int, float] | None = None  # nodes and seconds of the last one
    widths: tuple[int, ...] = ()
    doubted: float | None = None  # share of its forecast that a price beside a plain round was, if hard to believe

    def observe(self, nodes: int, seconds: float, stale: int = 0) -> CostCurve:
        """The curve after one more round; `stale` rounds have passed since the last plain one."""
        nodes = self.filled(nodes)
        if self.plain is None:  # nothing can be said in plain rounds before one has been run
            return self if nodes else replace(self, plain=seconds)
        found = seconds / self(nodes)
        surprise = not 1 / _SURPRISE < found < _SURPRISE
        if nodes == 0:
            new = min(0.8, 0.2 + 0.05 * stale)  # the longer ago, the less the old measurement says
            new = min(new, _HICCUP) if found > _SURPRISE else new
            return self.scaled(1.0 + new * (min(found, OUTLIER) - 1.0))
        priced = self.sums[0] > 0
        if 0 < self.sums[0] < _YOUNG and found < 1 / OUTLIER:  # the first drafts took long, as where passes compile
            return CostCurve(self.plain, self.rows, widths=self.widths)._sloped(nodes, seconds)._with(nodes, seconds)
        if priced and found < 1 / _SURPRISE and (stale or _SURPRISE * seconds < self.plain):
            return self.scaled(found)._sloped(nodes, seconds)  # nothing makes a round that much faster than it is
        if priced and (stale > _FRESH or (surprise and stale)):
            # Nothing says whether the draft or the machine took the difference: the machine, for the most part.
            return self.scaled(1.0 + 0.2 * (min(found, OUTLIER) - 1.0))._sloped(nodes, seconds)
        after = self._sloped(nodes, seconds)
        if priced and surprise and (self.doubted is None or (self.doubted > 1) != (found > 1)):
            return replace(after, doubted=found)
        return (replace(after, sums=(0.0, 0.0, 0.0)) if priced and surprise else after)._with(nodes, seconds)

    def _with(self, nodes: int, seconds: float) -> CostCurve:
        """The curve that has taken in a price."""
        assert self.plain is not None
        weight, n, total = (_FORGET * old for old in self.sums)
        price = max(1.0, seconds / self.plain)
        return replace(self, sums=(weight + 1.0, n + nodes, total + price), doubted=None)

    def _sloped(self, nodes: int, seconds: float) -> CostCurve:
        """The curve that has learnt what this round says about the price of nodes, beside the one before."""
        assert self.plain is not None
        if not self.sums[0]:
            return replace(self, last=(nodes, seconds))
        forecast = self(nodes)
        seconds = min(max(seconds, (1.0 - _TYPICAL) * forecast), (1.0 + _TYPICAL) * forecast)
        nn, nt = (_KEEP * old for old in self.slopes)
        if self.last is not None:
            more, longer = nodes - self.last[0], (seconds - self.last[1]) / self.plain
            nn, nt = nn + more * more, nt + more * longer
        return replace(self, slopes=(nn, nt), last=(nodes, seconds))

    def scaled(self, factor: float) -> CostCurve:
        """The curve of a machine, or of a context, that takes `factor` times as long for everything."""
        plain = None if self.plain is None else factor * self.plain
        last = None if self.last is None else (self.last[0], factor * self.last[1])
        return replace(self, plain=plain, last=last)

    def filled(self, nodes: int) -> int:
        """The most drafted nodes that cost what `nodes` do."""
        return next((width - 1 for width in self.widths if width > nodes), nodes) if nodes else 0

    def fewer(self, nodes: int) -> int:
        """About half as many drafted nodes, or with padded passes the most that cost less."""
        return max((width - 1 for width in self.widths if width <= nodes), default=nodes // 2)

    def price(self, nodes: int) -> float:
        """What a round with `nodes` drafted nodes takes, in plain rounds."""
        weight, n, total = self.sums
        if nodes == 0:
            return 1.0
        nodes = self.filled(nodes)
        if not weight:  # nothing is known of drafts yet: one node costs little, and many not much more
            return 1.04 + 0.016 * nodes * self.rows
        mean, mean_nodes = total / weight, n / weight
        # Where all rounds had one size, what they cost above a plain round is taken to be shared by their nodes.
        usual = max(0.0, mean - 1.0) / mean_nodes
        slope = max(0.0, (self.slopes[1] + _BELIEF * usual) / (self.slopes[0] + _BELIEF))
        return max(1.0, mean + slope * (nodes - mean_nodes))

    def __call__(self, nodes: int) -> float:
        """Forecast for `nodes` drafted nodes; raises ValueError before the first plain round."""
        if self.plain is None:
            raise ValueError("no plain round has been observed yet")
        return self.plain * self.price(nodes)


@dataclass(frozen=True, slots=True)
class LevelCost:
    """Seconds that drafting takes, as a line in the number of levels that were drafted."""

    # Decayed sums of 1, l, l*l, t, l*t over rounds with drafts.
    sums: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    def observe(self, levels: int, seconds: float) -> LevelCost:
        """The line after one more draft."""
        if self.sums[0] and seconds < self(levels) / OUTLIER:
            return LevelCost((1.0, levels, levels * levels, seconds, levels * seconds))  # what came before were hiccups
        weight, n, nn, t, nt = (_FORGET * old for old in self.sums)
        if weight >= 1.0 and t > 0:
            seconds = min(seconds, OUTLIER * max(self(levels), t / weight))
        return LevelCost((weight + 1.0, n + levels, nn + levels * levels, t + seconds, nt + levels * seconds))

    def scaled(self, factor: float) -> LevelCost:
        """The line of a machine that takes `factor` times as long."""
        weight, n, nn, t, nt = self.sums
        return LevelCost((weight, n, nn, factor * t, factor * nt))

    @property
    def step(self) -> float | None:
        """Seconds of one more level, or None where nothing was drafted."""
        weight, n, nn, t, nt = self.sums
        if not n:
            return None
        mean, levels = t / weight, n / weight
        # Where all drafts had the same number of levels, what they took is taken to be shared by them.
        return max(0.0, (nt - n * mean + _LEVELS * mean / levels) / (nn - n * levels + _LEVELS))

    def __call__(self, levels: float) -> float:
        """Forecast for a draft of that many levels; 0 for none, and before the first observation."""
        if not levels or (step := self.step) is None:
            return 0.0
        weight, n, _, t, _ = self.sums
        return max(0.0, t / weight + step * (levels - n / weight))


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds of a round: what drafting takes by levels, all else by nodes. largest: nodes of the largest draft."""

    passes: CostCurve = field(default_factory=CostCurve)
    drafting: LevelCost = field(default_factory=LevelCost)
    largest: int = 0

    @property
    def plain(self) -> float | None:
        """Seconds of a plain round, or None where none has been run."""
        return self.passes.plain

    def observe(self, nodes: int, levels: int, drafting: float, seconds: float, stale: int = 0) -> RoundCost:
        """The costs after one more round of `seconds`, of which `drafting` went into the drafts."""
        if not nodes:
            return replace(self, passes=self.passes.observe(0, seconds, stale))
        passes = self.passes.observe(nodes, max(0.0, seconds - drafting), stale)
        return RoundCost(passes, self.drafting.observe(levels, drafting), max(self.largest, passes.filled(nodes)))

    def scaled(self, factor: float) -> RoundCost:
        """The costs of a machine, or of a context, that takes `factor` times as long for everything."""
        return RoundCost(self.passes.scaled(factor), self.drafting.scaled(factor), self.largest)

    def among(self, rows: int) -> RoundCost:
        """What this says of rounds with another number of rows: prices, but not how long a plain round takes."""
        return replace(self, passes=replace(self.passes, plain=None, last=None, rows=rows))

    def __call__(self, nodes: int, levels: float = 0) -> float:
        """Forecast for `nodes` drafted nodes on `levels` levels; raises ValueError before the first plain round."""
        return self.passes(nodes) + (self.drafting(levels) if nodes else 0.0)
