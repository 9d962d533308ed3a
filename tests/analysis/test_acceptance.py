"""Acceptance as formulas: printed values, the identity behind exactness, and what the engine's rules do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.analysis import acceptance_rate, residual_distribution, sibling_acceptance, total_variation
from specdec.core.engine import Generation, Parts
from specdec.core.sampling import Sampling
from specdec.core.state import Row
from specdec.schedulers import Fixed
from specdec.testing.enumeration import enumerate_law
from specdec.testing.honest import TableDrafter
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Token

PEAKED = [0.40, 0.25, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02]


@pytest.mark.parametrize(
    ("p", "q", "alpha"),
    [
        ([0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.15, 0.05], 0.900),
        ([0.5, 0.3, 0.2], [0.45, 0.35, 0.20], 0.950),
        ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8], 0.400),
        (PEAKED, [0.125] * 8, 0.575),
    ],
)
def test_printed_values(p, q, alpha):
    assert f"{acceptance_rate(p, q):.3f}" == f"{alpha:.3f}"
    assert f"{total_variation(p, q):.3f}" == f"{1 - alpha:.3f}"


def test_the_printed_residual():
    assert residual_distribution([0.5, 0.3, 0.15, 0.05], [0.4, 0.4, 0.15, 0.05]).tolist() == [1.0, 0.0, 0.0, 0.0]


def laws(vocab):
    weights = st.lists(st.integers(0, 9), min_size=vocab, max_size=vocab).filter(any)
    return weights.map(lambda w: torch.tensor(w, dtype=torch.float64) / sum(w))


@given(data=st.data(), vocab=st.integers(1, 6))
def test_kept_and_replaced_tokens_add_up_to_the_target(data, vocab):
    p, q = data.draw(laws(vocab)), data.draw(laws(vocab))
    alpha, residual = acceptance_rate(p, q), residual_distribution(p, q)
    assert torch.allclose(torch.minimum(p, q) + (1 - alpha) * residual, p)
    assert residual.sum() == pytest.approx(1.0) and alpha == pytest.approx(1 - float(total_variation(p, q)))
    assert 0 <= alpha <= 1 + 1e-12 and total_variation(p, q) == total_variation(q, p)
    assert torch.equal(residual_distribution(p, p), p)


@settings(max_examples=12)
@given(data=st.data(), siblings=st.integers(0, 3))
def test_siblings_are_kept_as_often_as_the_engine_keeps_them(data, siblings):
    p, q = (tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any))) for _ in range(2))

    def run(rng):
        parts = Parts(
            TabularTarget(lambda prefix: p, 3), TableDrafter(lambda prefix: q, "iid", (siblings,)), Token(), Fixed(1, 9)
        )
        row = Row(0, [0], Sampling(greedy=False), 9)
        events = Generation(parts, (row,), rng.fold(1), rng.fold(2)).rounds()
        next(events)
        return len(next(events).rows[0].path)

    kept = enumerate_law(run).get(1, 0.0) if siblings else 0.0
    law_p, law_q = (torch.tensor(w, dtype=torch.float64) / sum(w) for w in (p, q))
    assert float(sibling_acceptance(law_p, law_q, siblings)) == pytest.approx(kept, abs=1e-9)
    if siblings == 1:
        assert kept == pytest.approx(float(acceptance_rate(law_p, law_q)))


def test_everything_broadcasts_and_keeps_its_device_and_gradients_apart():
    p = torch.rand(4, 1, 5).softmax(-1)
    q = torch.rand(3, 5, dtype=torch.float64).softmax(-1)
    for function in (total_variation, acceptance_rate):
        found = function(p, q)
        assert found.shape == (4, 3) and found.dtype == torch.float64
        assert found[2, 1] == pytest.approx(float(function(p[2, 0], q[1])))
    assert residual_distribution(p, q).shape == (4, 3, 5)
    assert sibling_acceptance(p, q, [[0, 1, 2]]).shape == (4, 3)
    assert torch.allclose(sibling_acceptance(p, q, 1), acceptance_rate(p, q))
    many = sibling_acceptance(p, q, 40)
    assert bool((many >= sibling_acceptance(p, q, 3) - 1e-12).all())


@pytest.mark.parametrize(
    ("p", "q", "words"),
    [
        ([0.5, 0.4], [0.5, 0.5], "p sums to 0.9, expected a law"),
        ([0.5, 0.5], [1.5, -0.5], "q is -0.5, expected at least 0"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], "over 2 tokens and q over 3"),
        (0.5, [1.0], "p is one number"),
        ([float("nan"), 1.0], [0.5, 0.5], "p holds NaN"),
        (torch.tensor([True, False]), [0.5, 0.5], "p is torch.bool"),
    ],
)
def test_what_is_no_law_is_refused(p, q, words):
    for function in (total_variation, acceptance_rate, residual_distribution):
        with pytest.raises(ValueError, match=words):
            function(p, q)
    with pytest.raises(ValueError, match=r"siblings holds 1\.5, expected whole"):
        sibling_acceptance([1.0], [1.0], 1.5)
