"""Answers that go round in circles."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["LONGEST", "REPEATED", "period"]

LONGEST = 40  # tokens of what is repeated, at most
REPEATED = 24  # tokens that a repetition takes up at least; three rounds if that is more


def period(ids: Sequence[int], begun: int) -> int:
    """Length of what the end of `ids[begun:]` repeats, 0 where it repeats nothing."""
    for length in range(1, LONGEST + 1):
        span = max(3 * length, REPEATED)
        if len(ids) - begun < span:
            return 0
        if all(ids[-i] == ids[-i - length] for i in range(1, span - length + 1)):
            return length
    return 0
