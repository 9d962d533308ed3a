"""Resampling of weighted particles: effective sample size, and three unbiased ways of drawing ancestors.

Weights are host data in float64: there are as many as particles. Every draw goes through the Rng port, whose two
operations are enough: systematic resampling has one uniform, but its result changes at finitely many places of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from specdec.core import host
from specdec.core.rng import Key, Rng

__all__ = ["RESAMPLERS", "effective_sample_size", "in_place", "log_mean_exp", "normalised"]

Draw = Callable[[Sequence[float], Rng, Key], list[int]]
"""Normalised weights, a stream and the key of this draw to one ancestor a particle; E[times i is drawn] = n w_i."""


def log_mean_exp(log_weights: Sequence[float]) -> float:
    """log of the mean of exp(log_weights); -inf where all are."""
    top = max(log_weights)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in log_weights) / len(log_weights))


def normalised(log_weights: Sequence[float]) -> list[float]:
    """exp(log_weights) scaled to sum 1."""
    top = max(log_weights)
    weights = [math.exp(value - top) for value in log_weights]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def effective_sample_size(weights: Sequence[float]) -> float:
    """(sum w)^2 / sum w^2: n for equal weights, 1 where one particle has all the weight."""
    return math.fsum(weights) ** 2 / math.fsum(weight * weight for weight in weights)


def systematic(weights: Sequence[float], rng: Rng, key: Key) -> list[int]:
    """One uniform u: the ancestors at (u + i) / n of the distribution function; each particle floor or ceil n w."""
    count = len(weights)
    edges = _edges([count * weight for weight in weights])  # of the distribution function, stretched to 0 ... n
    # As u goes from 0 to 1 an ancestor changes only where u passes the fractional part of an edge.
    places = sorted({0.0, 1.0, *(edge - math.floor(edge) for edge in edges)})
    pieces = [high - low for low, high in pairwise(places)]
    (piece,) = _draw([pieces], rng, [key])
    u = (places[piece] + places[piece + 1]) / 2
    found, at = [], 0
    for place in range(count):
        while at < count - 1 and edges[at] <= place + u:
            at += 1
        found.append(at)
    return found


def stratified(weights: Sequence[float], rng: Rng, key: Key) -> list[int]:
    """One ancestor from each n-th of the distribution function, drawn on their own."""
    count = len(weights)
    edges = _edges([count * weight for weight in weights])
    strata = [
        [max(0.0, min(high, place + 1) - max(low, place)) for low, high in zip([0.0, *edges], edges, strict=False)]
        for place in range(count)
    ]
    return _draw(strata, rng, [(*key, place) for place in range(count)])


def multinomial(weights: Sequence[float], rng: Rng, key: Key) -> list[int]:
    """Independent draws."""
    count = len(weights)
    return _draw([weights] * count, rng, [(*key, place) for place in range(count)])


RESAMPLERS: dict[str, Draw] = {"systematic": systematic, "stratified": stratified, "multinomial": multinomial}


def in_place(ancestors: Sequence[int]) -> dict[int, int]:
    """The same ancestors as moves: a particle that survives stays where it is, its further copies replace the dead."""
    extra, seen = [], set()
    for ancestor in ancestors:
        if ancestor in seen:
            extra.append(ancestor)
        seen.add(ancestor)
    dead = [particle for particle in range(len(ancestors)) if particle not in seen]
    return dict(zip(dead, extra, strict=True))


def _edges(lengths: Sequence[float]) -> list[float]:
    """Upper ends of pieces of these lengths laid side by side; the last one is exact."""
    edges, total = [], 0.0
    for length in lengths:
        total += length
        edges.append(min(total, float(len(lengths))))
    edges[-1] = float(len(lengths))
    return edges


def _draw(laws: Sequence[Sequence[float]], rng: Rng, keys: Sequence[Key]) -> list[int]:
    (drawn,) = host.read(rng.categorical(torch.tensor(laws, dtype=torch.float64), at=keys))
    return [int(index) for index in drawn]
