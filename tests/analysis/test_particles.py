"""Sequential Monte Carlo in figures: printed values, and bounds held against laws that are enumerated."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.analysis import (
    block_chi_square,
    chi_square,
    effective_sample_size,
    smc_error_bound,
    smc_speedup,
    total_variation,
)
from tests.analysis.test_acceptance import PEAKED, laws


def test_printed_values():
    assert float(effective_sample_size([1, 1, 1, 1])) == 4.0
    assert f"{effective_sample_size([10, 1, 1, 1]):.3f}" == "1.641"
    assert float(smc_speedup(4, 0.1)) == pytest.approx(5 / 1.4)
    assert float(chi_square(PEAKED, [0.125] * 8)) == pytest.approx(8 * sum(x * x for x in PEAKED) - 1)


def test_the_divergence_is_the_variance_of_the_weights():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    w = (p / q).double()
    assert float(chi_square(p, q)) == pytest.approx(float((q * (w - 1) ** 2).sum()), rel=1e-6)
    assert float(chi_square(p, p)) == 0.0
    assert chi_square([0.5, 0.5, 0.0], [1.0, 0.0, 0.0]) == float("inf")
    assert float(chi_square([1.0, 0.0], [0.5, 0.5])) == pytest.approx(1.0)


@given(data=st.data())
def test_divergences_of_independent_tokens_multiply(data):
    pairs = [(data.draw(laws(2)), data.draw(laws(2).filter(lambda q: bool(q.all())))) for _ in range(2)]
    joint = [torch.outer(*side).flatten() for side in zip(*pairs, strict=True)]
    apart = torch.stack([chi_square(p, q) for p, q in pairs])
    assert float(block_chi_square(apart)) == pytest.approx(float(chi_square(*joint)), rel=1e-6, abs=1e-9)


# Weights that do not vanish when they are scaled.
WEIGHTS = st.lists(st.just(0.0) | st.floats(1e-290, 1e300), min_size=1, max_size=8).filter(any)


@given(weights=WEIGHTS, scale=st.floats(1e-3, 1e3))
def test_sample_size_is_between_one_and_all_and_knows_no_scale(weights, scale):
    size = float(effective_sample_size(weights))
    assert 1 - 1e-9 <= size <= len(weights) + 1e-9
    assert float(effective_sample_size([w * scale / 1e3 for w in weights])) == pytest.approx(size, rel=1e-6)
    assert float(effective_sample_size([7.0] * len(weights))) == pytest.approx(len(weights))


def law_of_the_pick(p, q, particles):
    """Exactly what one block of `particles` draws from q gives, one of which is picked by weight."""
    out = torch.zeros_like(p)
    for drawn in product(range(len(p)), repeat=particles):
        chance = float(torch.stack([q[x] for x in drawn]).prod())
        weights = torch.tensor([float(p[x] / q[x]) if q[x] > 0 else 0.0 for x in drawn], dtype=torch.float64)
        if chance > 0 and weights.sum() > 0:
            for x, share in zip(drawn, (weights / weights.sum()).tolist(), strict=True):
                out[x] += chance * share
        elif chance > 0:
            for x in drawn:  # nothing to choose by: any of them
                out[x] += chance / particles
    return out


@settings(max_examples=40)
@given(data=st.data(), particles=st.integers(1, 4))
def test_the_bound_holds_and_shrinks(data, particles):
    p, q = data.draw(laws(3)), data.draw(laws(3))
    bound = float(smc_error_bound(p, q, particles))
    assert float(total_variation(p, law_of_the_pick(p, q, particles))) <= bound + 1e-9
    assert float(smc_error_bound(p, q, 4 * particles)) <= bound + 1e-12 and bound <= 1
    assert bound <= float((chi_square(p, q) + total_variation(p, q)) / particles) + 1e-9
    if particles == 1:  # one particle is a draw from q
        assert bound == pytest.approx(float(total_variation(p, q)))


def test_a_perfect_draft_has_no_error():
    assert float(smc_error_bound(PEAKED, PEAKED, 1)) == pytest.approx(0.0, abs=1e-12)
    assert smc_error_bound(torch.rand(4, 1, 5).softmax(-1), torch.rand(3, 5).softmax(-1), [2, 3, 4]).shape == (4, 3)


@pytest.mark.parametrize("tokens", range(5))
def test_a_round_is_worth_its_tokens(tokens):
    assert float(smc_speedup(tokens, 0.0)) == tokens + 1
    assert float(smc_speedup(tokens, 1.0)) == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: effective_sample_size([0.0, 0.0]), "all zero"),
        (lambda: effective_sample_size([1.0, float("inf")]), "infinite"),
        (lambda: effective_sample_size([-1.0, 1.0]), "weights is -1"),
        (lambda: effective_sample_size(3.0), "one a particle"),
        (lambda: smc_speedup(1.5, 0.1), "tokens holds 1.5"),
        (lambda: smc_error_bound([1.0], [1.0], 0), "particles is 0"),
        (lambda: block_chi_square(0.1), "one a token"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
