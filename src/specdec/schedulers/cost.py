"""What a round costs in seconds, learnt from rounds that were run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_FORGET = 0.95  # weight of the past at each new observation
_BELIEF = 1.0  # spread of sizes (nodes squared) at which measured slopes count as much as the usual one
_FRESH = 4  # rounds after a plain one in which what a draft costs is measured against it
OUTLIER = 3.0  # a round slower than this many times the forecast is taken for a hiccup of the machine


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a round with n drafted nodes: the plain round on its own, n >= 1 on a fitted line.

    The plain round is kept apart because the step from one node to two is the largest: it may change the kernel.
    """

    plain: float | None = None
    # Decayed sums of 1, n, n*n, t, n*t over rounds with drafts.
    sums: tuple[float, float, float, float, float] = field(default=(0.0, 0.0, 0.0, 0.0, 0.0))

    def observe(self, nodes: int, seconds: float, stale: int = 0) -> CostCurve:
        """The curve after one more round; `stale` rounds have passed since the last plain one."""
        if self.plain is not None if nodes == 0 else self.sums[0] > 0:  # else the forecast is no more than a belief
            seconds = min(seconds, OUTLIER * self(nodes))
        if nodes == 0:
            new = min(0.8, 0.2 + 0.05 * stale)  # the longer ago, the less the old measurement says
            old = self.plain
            return replace(self, plain=seconds if old is None else (1.0 - new) * old + new * seconds)
        if stale > _FRESH and self.sums[0] >= _FRESH:
            # Nothing says whether the draft or the machine took the difference: the machine, for the most part.
            return self.scaled(1.0 + 0.2 * (max(0.5, seconds / self(nodes)) - 1.0))
        weight, n, nn, t, nt = (_FORGET * old for old in self.sums)
        sums = (weight + 1.0, n + nodes, nn + nodes * nodes, t + seconds, nt + nodes * seconds)
        return replace(self, sums=sums)

    def scaled(self, factor: float) -> CostCurve:
        """The curve of a machine, or of a context, that takes `factor` times as long for everything."""
        weight, n, nn, t, nt = self.sums
        plain = None if self.plain is None else factor * self.plain
        return CostCurve(plain, (weight, n, nn, factor * t, factor * nt))

    def __call__(self, nodes: int) -> float:
        """Forecast for `nodes` drafted nodes; raises ValueError before the first observation."""
        if nodes == 0 and self.plain is not None:
            return self.plain
        weight, n, nn, t, nt = self.sums
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
        spread = nn - n * mean_nodes
        slope = max(0.0, (nt - n * mean + _BELIEF * usual) / (spread + _BELIEF))
        return max(plain, mean + slope * (nodes - mean_nodes))
