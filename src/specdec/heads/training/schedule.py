"""How far a run has come, in steps or in time, and the learning rate that follows from it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Progress", "cosine"]

ASLEEP = 60.0  # seconds that one step counts at most: one that takes longer was stopped from outside, in all likelihood


class Progress:
    """How far a run has come, in [0, 1]: by steps, by time spent on steps, or by whichever is further.

    steps: those of the whole run, by its limits on steps and epochs; None where only time ends it.
    spent: seconds spent on steps, those of an earlier part of a resumed run included.
    """

    def __init__(self, steps: int | None, seconds: float | None, spent: float = 0.0) -> None:
        self.steps, self.seconds, self.spent = steps, seconds, spent
        self._since: float | None = None

    def start(self) -> None:
        """A step begins."""
        self._since = time.monotonic()

    def stop(self) -> None:
        """A step has ended."""
        if self._since is not None:
            took, self._since = time.monotonic() - self._since, None
            self.spent += min(took, ASLEEP)

    def of(self, step: int) -> float:
        """The share of the run that lies behind it after `step` steps."""
        by_step = 0.0 if self.steps is None else step / self.steps
        by_time = 0.0 if self.seconds is None else self.spent / self.seconds
        return min(1.0, max(by_step, by_time))


def cosine(progress: Progress, warmup: float, end: float) -> Callable[[int], float]:
    """Factor of the learning rate by steps done: a straight rise for `warmup`, then half a cosine down to `end`."""

    def factor(step: int) -> float:
        done = progress.of(step)
        if done < warmup:
            return max(done / warmup, 0.05)  # not zero, or the first step would be lost
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))

    return factor
