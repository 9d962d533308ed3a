"""Tokens a pass and speed of chains: printed values, limits, and what the engine emits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.analysis import best_gamma, expected_accepted_length, expected_accepted_tokens, speculative_speedup
from specdec.core.engine import Generation, Parts
from specdec.core.sampling import Sampling
from specdec.core.state import Row
from specdec.schedulers import Fixed
from specdec.testing.enumeration import enumerate_law
from specdec.testing.honest import TableDrafter
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Token

GAMMA = torch.arange(1, 11)
TOKENS = [1.85, 2.57, 3.19, 3.71, 4.15, 4.53, 4.85, 5.12, 5.35, 5.55]
SPEED = [1.61, 1.98, 2.20, 2.32, 2.37, 2.38, 2.37, 2.33, 2.28, 2.22]


def printed(values):
    return [float(f"{value:.2f}") for value in values]


def test_printed_values():
    assert printed(expected_accepted_tokens(0.85, GAMMA)) == TOKENS
    assert printed(speculative_speedup(0.85, GAMMA, 0.15)) == SPEED
    assert best_gamma(0.85, 0.15) == 6
    for decay, tokens in ((0.9, 3.72), (0.7, 2.19), (0.5, 1.64)):
        assert f"{expected_accepted_length([decay**k for k in range(1, 6)]):.2f}" == f"{tokens:.2f}"


@given(alpha=st.floats(0, 1), gamma=st.integers(0, 40))
def test_the_closed_form_is_the_sum(alpha, gamma):
    series = sum(alpha**k for k in range(gamma + 1))
    assert float(expected_accepted_tokens(alpha, gamma)) == pytest.approx(series, rel=1e-9)
    assert float(expected_accepted_length([alpha] * gamma)) == pytest.approx(series, rel=1e-9)


def test_limits():
    assert expected_accepted_tokens(0.0, [0, 1, 9]).tolist() == [1, 1, 1]
    assert expected_accepted_tokens(1.0, [0, 1, 9]).tolist() == [1, 2, 10]
    for near in (1 - 1e-9, 1 - 1e-15):
        assert float(expected_accepted_tokens(near, 9)) == pytest.approx(10, abs=1e-6)
    assert float(speculative_speedup(0.3, 0, 0.7)) == pytest.approx(1.0)
    assert float(speculative_speedup(1.0, 7, 0.0)) == 8.0


@given(alpha=st.floats(0, 1), c=st.floats(0, 2))
def test_the_best_length_is_the_best_of_all(alpha, c):
    best = int(best_gamma(alpha, c, most=20))
    speeds = speculative_speedup(alpha, torch.arange(21), c)
    assert float(speeds[best]) == pytest.approx(float(speeds.max()), rel=1e-9)
    assert (best == 0) == (c >= alpha) or abs(c - alpha) < 1e-9
    assert best == 0 or bool((speeds[:best] < speeds[best] * (1 + 1e-9)).all())


def test_a_cheaper_draft_is_longer():
    found = best_gamma(0.85, [0.4, 0.15, 0.05, 0.01], most=200)
    assert found.tolist() == sorted(found.tolist()) and found[0] == 3 and found.dtype == torch.int64
    assert best_gamma([[0.5], [0.9]], [0.05, 0.1]).shape == (2, 2)


@pytest.mark.parametrize("gamma", [0, 1, 2, 3])
def test_a_pass_of_the_engine_emits_as_many(gamma):
    """The target's law does not depend on the text here, so every depth has the same chance."""
    p, q = (5, 3, 2), (1, 1, 8)

    def run(rng):
        parts = Parts(
            TabularTarget(lambda prefix: p, 3),
            TableDrafter(lambda prefix: q, "iid", (1,) * gamma),
            Token(),
            Fixed(gamma),
        )
        events = Generation(parts, (Row(0, [0], Sampling(greedy=False), 30),), rng.fold(1), rng.fold(2)).rounds()
        next(events)
        return len(next(events).rows[0].tokens)

    mean = sum(count * weight for count, weight in enumerate_law(run).items())
    assert mean == pytest.approx(float(expected_accepted_tokens(0.4, gamma)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: expected_accepted_tokens(1.2, 3), "alpha is 1.2, expected a probability"),
        (lambda: expected_accepted_tokens(-0.1, 3), "alpha is -0.1, expected at least 0"),
        (lambda: expected_accepted_tokens(0.5, 2.5), "gamma holds 2.5, expected whole numbers"),
        (lambda: expected_accepted_tokens(0.5, -1), "gamma is -1, expected at least 0"),
        (lambda: speculative_speedup(0.5, 2, -1), "c is -1, expected at least 0"),
        (lambda: expected_accepted_length(0.5), "one chance a head"),
        (lambda: best_gamma(0.5, 0.1, most=-1), "most is -1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
