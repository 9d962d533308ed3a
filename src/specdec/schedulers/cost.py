"""What a round costs in seconds, learnt from rounds that were run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_FORGET = 0.95  # weight of the past at each new observation
_KEEP = 0.985  # weight of the past in what one more node costs: a matter of the machine that changes seldom
_BELIEF = 30.0  # nodes squared, over changes of size, at which measured slopes count as much as the usual one
_LEVELS = 1.0  # the like for levels
_TYPICAL = 0.5  # share of the forecast that one round says at most about what a node costs
_FRESH = 4  # rounds after a plain one in which what a draft costs is measured against it
OUTLIER = 3.0  # a round slower than this many times the forecast is taken for a hiccup of the machine


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a round with n drafted nodes: the plain round on its own, n >= 1 on a fitted line.

    The plain round is kept apart because the step from one node to two is the largest: it may change the kernel. The
    line's slope is taken from pairs of rounds that followed one another, so that a machine, or a context, that gets
    slower in the meantime does not pass for a price of nodes.
    """

    plain: float | None = None
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)  # decayed sums of 1, n, t over rounds with drafts
    slopes: tuple[float, float] = (0.0, 0.0)  # decayed sums of dn * dn, dn * dt over pairs of them
    last: tuple[int, float] | None = None  # nodes and seconds of the last one

    def observe(self, nodes: int, seconds: float, stale: int = 0) -> CostCurve:
        """The curve after one more round; `stale` rounds have passed since the last plain one."""
        if self.plain is not None if nodes == 0 else self.sums[0] > 0:  # else the forecast is no more than a belief
            seconds = min(seconds, OUTLIER * self(nodes))
        if nodes == 0:
            new = min(0.8, 0.2 + 0.05 * stale)  # the longer ago, the less the old measurement says
            old = self.plain
            return replace(self, plain=seconds if old is None else (1.0 - new) * old + new * seconds)
        if self.sums[0] and seconds < self(nodes) / OUTLIER:
            # Nothing makes a round that much faster than it is: the rounds before were hiccups, and forgotten.
            return CostCurve(self.plain, (1.0, nodes, seconds), last=(nodes, seconds))
        after = self._sloped(nodes, seconds)
        if stale > _FRESH and self.sums[0] >= _FRESH:
            # Nothing says whether the draft or the machine took the difference: the machine, for the most part.
            return after.scaled(1.0 + 0.2 * (max(0.5, seconds / self(nodes)) - 1.0))
        weight, n, t = (_FORGET * old for old in self.sums)
        return replace(after, sums=(weight + 1.0, n + nodes, t + seconds))

    def _sloped(self, nodes: int, seconds: float) -> CostCurve:
        """The curve that has learnt what this round says about the price of nodes, beside the one before."""
        if not self.sums[0]:
            return replace(self, last=(nodes, seconds))
        forecast = self(nodes)
        seconds = min(max(seconds, (1.0 - _TYPICAL) * forecast), (1.0 + _TYPICAL) * forecast)
        nn, nt = (_KEEP * old for old in self.slopes)
        if self.last is not None:
            more, longer = nodes - self.last[0], seconds - self.last[1]
            nn, nt = nn + more * more, nt + more * longer
        return replace(self, slopes=(nn, nt), last=(nodes, seconds))

    def scaled(self, factor: float) -> CostCurve:
        """The curve of a machine, or of a context, that takes `factor` times as long for everything."""
        (weight, n, t), (nn, nt) = self.sums, self.slopes
        plain = None if self.plain is None else factor * self.plain
        last = None if self.last is None else (self.last[0], factor * self.last[1])
        return CostCurve(plain, (weight, n, factor * t), (nn, factor * nt), last)

    def __call__(self, nodes: int) -> float:
        """Forecast for `nodes` drafted nodes; raises ValueError before the first observation."""
        if nodes == 0 and self.plain is not None:
            return self.plain
        weight, n, t = self.sums
        plain = self.plain
        if plain is None:
            if not weight:
                raise ValueError("no round has been observed yet")
            plain = t / weight  # a round with drafts costs no less than a plain one
        if nodes == 0:
            return plain
        if not weight:  # nothing is known of drafts yet: one node costs little, and many not much more
            return plain * (1.04 + 0.016 * nodes)
        mean, mean_nodes = t / weight, n / weight
        # Where all rounds had one size, what they cost above a plain round is taken to be shared by their nodes.
        usual = max(0.0, mean - plain) / mean_nodes
        slope = max(0.0, (self.slopes[1] + _BELIEF * usual) / (self.slopes[0] + _BELIEF))
        return max(plain, mean + slope * (nodes - mean_nodes))


@dataclass(frozen=True, slots=True)
class LevelCost:
    """Seconds that drafting takes, as a line in the number of levels that were drafted."""

    # Decayed sums of 1, l, l*l, t, l*t over rounds with drafts.
    sums: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    def observe(self, levels: int, seconds: float) -> LevelCost:
        """The line after one more draft."""
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
        return RoundCost(passes, self.drafting.observe(levels, drafting), max(self.largest, nodes))

    def scaled(self, factor: float) -> RoundCost:
        """The costs of a machine, or of a context, that takes `factor` times as long for everything."""
        return RoundCost(self.passes.scaled(factor), self.drafting.scaled(factor), self.largest)

    def __call__(self, nodes: int, levels: float = 0) -> float:
        """Forecast for `nodes` drafted nodes on `levels` levels; raises ValueError before the first observation."""
        return self.passes(nodes) + (self.drafting(levels) if nodes else 0.0)
