"""Roofline estimates: where reading ends and computing begins."""

from __future__ import annotations

import pytest
import torch

from specdec.analysis import Machine, ModelSize, cost_ratio, free_tokens, pass_seconds, roofline_speedup
from tests.frontdoor.models import llama, target

# Made up, with round numbers: 100 tokens are free for weights of 2 bytes.
MACHINE = Machine(flops=1e14, bandwidth=1e12)
BIG, SMALL = ModelSize(7e9), ModelSize(0.7e9)


def test_the_knee():
    free = float(free_tokens(BIG, MACHINE))
    assert free == pytest.approx(100.0) == float(free_tokens(SMALL, MACHINE))
    one, most = float(pass_seconds(BIG, MACHINE)), float(pass_seconds(BIG, MACHINE, 100))
    assert one == pytest.approx(0.014) == most
    assert float(pass_seconds(BIG, MACHINE, 200)) == pytest.approx(2 * one)
    assert float(free_tokens(ModelSize(7e9, bytes=0.5), MACHINE)) == pytest.approx(25.0)
    seconds = pass_seconds(BIG, MACHINE, torch.arange(1, 400))
    assert bool((seconds.diff() >= 0).all()) and seconds.dtype == torch.float64


def test_context_is_read_too():
    model = ModelSize(7e9, cache=1e5)
    assert float(pass_seconds(model, MACHINE, 1, 140_000)) == pytest.approx(0.028)
    assert float(free_tokens(model, MACHINE, 140_000)) == pytest.approx(200.0)


def test_costs_of_drafting():
    assert float(cost_ratio(SMALL, BIG, MACHINE)) == pytest.approx(0.1)
    late = Machine(1e14, 1e12, overhead=0.014)  # launches that both models have to wait for
    assert float(cost_ratio(SMALL, BIG, late)) == pytest.approx((0.0014 + 0.014) / 0.028)


def test_guesses_pay_until_the_batch_fills_the_machine():
    gain = roofline_speedup(3.0, 9, BIG, MACHINE, rows=[1, 10, 20, 100])
    assert gain.tolist() == pytest.approx([3.0, 3.0, 1.5, 0.3])
    assert float(roofline_speedup(3.0, 9, BIG, MACHINE, draft_seconds=0.014)) == pytest.approx(1.5)
    assert float(roofline_speedup(1.0, 0, BIG, MACHINE)) == 1.0


def test_the_size_of_a_model():
    model = target()
    size = ModelSize.of(model)
    total = sum(weight.numel() for weight in model.parameters())
    assert size.parameters == total - model.get_input_embeddings().weight.numel() and size.bytes == 4.0
    assert size.cache == 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes
    tied = llama(0, tie_word_embeddings=True).to(torch.bfloat16)
    assert ModelSize.of(tied).parameters == sum(weight.numel() for weight in tied.parameters())
    assert ModelSize.of(tied).bytes == 2.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Machine(0, 1e12), "flops is 0, expected a positive number"),
        (lambda: ModelSize(-1), "parameters is -1"),
        (lambda: ModelSize(1e9, cache=-1), "cache is -1"),
        (lambda: pass_seconds(BIG, MACHINE, 1.5), "tokens holds 1.5"),
        (lambda: roofline_speedup(2.0, 3, BIG, MACHINE, rows=0), "rows is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
