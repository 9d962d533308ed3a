"""Resampling: unbiased counts, every branch counted; and golden effective sample sizes."""

from __future__ import annotations

import math
import random

import pytest

from specdec.core.rng import TorchRng
from specdec.testing.enumeration import enumerate_law
from specdec.verifiers.resampling import (
    RESAMPLERS,
    effective_sample_size,
    in_place,
    log_mean_exp,
    normalised,
)

WEIGHTS = [
    [0.25, 0.25, 0.25, 0.25],
    [1.0, 0.0, 0.0],
    [0.0, 0.0, 1.0],
    [0.7, 0.2, 0.1],
    [0.1, 0.2, 0.3, 0.4],
    [0.5, 0.0, 0.5, 0.0],
    [1 / 3, 1 / 3, 1 / 3],
    [1e-12, 1.0 - 1e-12],
    [0.123, 0.456, 0.421],
]


@pytest.mark.parametrize("name", RESAMPLERS)
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_counts_are_unbiased(name, weights):
    law = enumerate_law(lambda rng: tuple(RESAMPLERS[name](weights, rng, (0,))))
    count = len(weights)
    for particle, weight in enumerate(weights):
        mean = sum(chance * ancestors.count(particle) for ancestors, chance in law.items())
        assert mean == pytest.approx(count * weight, abs=1e-9)
        for ancestors in law:
            assert len(ancestors) == count
            if name == "systematic":
                low, high = math.floor(count * weight + 1e-14), math.ceil(count * weight - 1e-14)
                assert low <= ancestors.count(particle) <= high


def test_systematic_varies_least_and_multinomial_most():
    weights, spread = [0.37, 0.33, 0.2, 0.1], {}
    for name, resample in RESAMPLERS.items():
        law = enumerate_law(lambda rng, draw=resample: tuple(draw(weights, rng, (0,))))
        spread[name] = sum(chance * (found.count(0) - 4 * 0.37) ** 2 for found, chance in law.items())
    assert spread["systematic"] <= spread["stratified"] + 1e-12 and spread["stratified"] < spread["multinomial"]


@pytest.mark.parametrize("name", RESAMPLERS)
def test_draws_are_named_by_their_key(name):
    chance = random.Random(0)
    weights = normalised([chance.gauss(0, 1) for _ in range(16)])
    draws = [tuple(RESAMPLERS[name](weights, TorchRng(5), (key,))) for key in (1, 1, 2, 3)]
    assert draws[0] == draws[1] and len(set(draws)) == 3


def test_a_survivor_stays_where_it_is():
    assert in_place([0, 1, 2]) == {}
    assert in_place([2, 2, 2]) == {0: 2, 1: 2}
    assert in_place([1, 3, 3, 1]) == {0: 3, 2: 1} or in_place([1, 3, 3, 1]) == {0: 1, 2: 3}
    for _ in range(200):
        chance = random.Random(_)
        ancestors = sorted(chance.choices(range(8), k=8))
        moves = in_place(ancestors)
        assert sorted(moves.get(place, place) for place in range(8)) == ancestors
        assert not set(moves) & set(moves.values())  # who is copied is not replaced


@pytest.mark.parametrize(("weights", "expected"), [([1, 1, 1, 1], 4.0), ([10, 1, 1, 1], 1.641)])
def test_golden_effective_sample_sizes(weights, expected):
    assert effective_sample_size(weights) == pytest.approx(expected, abs=5e-4)
    logs = [math.log(weight) + 700 for weight in weights]  # far outside what exp can take
    assert effective_sample_size(normalised(logs)) == pytest.approx(expected, abs=5e-4)


def test_logs_of_means():
    assert log_mean_exp([0.0, 0.0]) == 0.0
    assert log_mean_exp([1000.0, -math.inf]) == pytest.approx(1000 - math.log(2))
    assert log_mean_exp([-math.inf, -math.inf]) == -math.inf
    assert normalised([-2000.0, -2000.0]) == [0.5, 0.5]
