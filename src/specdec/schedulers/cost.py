"""What a round costs in seconds, learnt from rounds that were run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_FORGET = 0.95  # weight of the past at each new observation
OUTLIER = 3.0  # a round slower than this many times the forecast is taken for a hiccup of the machine


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a round with n drafted nodes: the plain round on its own, n >= 1 on a fitted line.

    The plain round is kept apart because the step from one node to two is the largest: it may change the kernel.
    """

    plain: float | None = None
    # Decayed sums of 1, n, n*n, t, n*t over rounds with drafts.
    sums: tuple[float, float, float, float, float] = field(default=(0.0, 0.0, 0.0, 0.0, 0.0))

    def observe(self, nodes: int, seconds: float) -> CostCurve:
        """The curve after one more round."""
        known = self(nodes) if self.plain is not None or self.sums[0] > 0 else None
        if known is not None:
            seconds = min(seconds, OUTLIER * known)
        if nodes == 0:
            old = self.plain
            return replace(self, plain=seconds if old is None else 0.8 * old + 0.2 * seconds)
        new = (1.0, nodes, nodes * nodes, seconds, nodes * seconds)
        return replace(self, sums=tuple(_FORGET * a + b for a, b in zip(self.sums, new, strict=True)))

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
        # A weak belief that a node costs a little more than nothing, until rounds of several sizes have been seen.
        for size, cost in ((1, 1.06 * plain), (16, 1.3 * plain)):
            weight, n, nn = weight + 0.5, n + 0.5 * size, nn + 0.5 * size * size
            t, nt = t + 0.5 * cost, nt + 0.5 * size * cost
        slope = max(0.0, (weight * nt - n * t) / (weight * nn - n * n))
        return max(plain, (t - slope * n) / weight + slope * nodes) if nodes else plain
