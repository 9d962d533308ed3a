"""Successors: what passes over one token said of the token that follows it, and how far they agreed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

# A look adds (rank + 1) ** -_SLOPE to the weights of the tokens in it, and what earlier looks have added fades. With s
# a token's share of all weight, of which _DOUBT more is taken to disagree, it comes next with chance
# (s / _SURE) ** _POWER: where looks agree, the target is surer than each of them says. Counted for SmolLM2-135M on
# greedy answers, and smoothed.
_SLOPE = 1.5
_FADE = 0.7
_DOUBT = 1.2
_SURE = 0.51
_POWER = 1.75


class Successors:
    """The `most` tokens that weigh most of those that may follow a token, the heaviest first."""

    __slots__ = ("_all", "_weights")

    def __init__(self) -> None:
        self._weights: dict[int, float] = {}
        self._all = 0.0  # weight of every look, of tokens that are no longer kept, too

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._weights)

    def look(self, tokens: Sequence[int], most: int, weight: float = 1.0) -> None:
        """Take in what one pass thought likely, the likeliest first."""
        weights = {token: _FADE * old for token, old in self._weights.items()}
        ranks = _ranks(most)
        for token, rank in zip(tokens, ranks, strict=False):
            weights[token] = weights.get(token, 0.0) + weight * rank
        self._weights = dict(sorted(weights.items(), key=lambda pair: -pair[1])[:most])
        self._all = _FADE * self._all + weight * sum(ranks)

    def likely(self) -> list[tuple[int, float]]:
        """Each token with the chance that it comes next, the likeliest first."""
        scale = 1.0 / (_SURE * (self._all + _DOUBT))
        return [(token, min(1.0, (scale * weight) ** _POWER)) for token, weight in self._weights.items()]


@lru_cache(maxsize=64)
def _ranks(count: int) -> tuple[float, ...]:
    return tuple((rank + 1) ** -_SLOPE for rank in range(count))
