"""What a round takes, and what is no part of any."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from specdec.core.state import RoundTimes

_aside = threading.local()


@contextmanager
def once() -> Iterator[None]:
    """Around what is done once, such as compiling a pass: it is no part of the round in which it happens."""
    start, before = perf_counter(), getattr(_aside, "seconds", 0.0)
    try:
        yield
    finally:
        _aside.seconds = before + perf_counter() - start  # with what was done once within


def _now() -> float:
    return perf_counter() - getattr(_aside, "seconds", 0.0)


class Clock:
    """Wall-clock laps of one round, without what its thread did `once`."""

    def __init__(self) -> None:
        self._started = self._last = _now()
        self._laps = {"draft": 0.0, "target": 0.0, "verify": 0.0}

    def lap(self, name: str) -> None:
        now = _now()
        self._laps[name] += now - self._last
        self._last = now

    def times(self) -> RoundTimes:
        return RoundTimes(**self._laps, total=self._last - self._started)
