"""Losses against formulas written out, and draft steps side by side against one draft after the other."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.training.losses import Teacher, feature_loss, token_loss
from specdec.heads.training.unroll import unroll
from tests.heads.memorised import VOCAB, target


@pytest.fixture
def chance() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("label", ["law", "ids"])
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen rows", "trained rows"])
def test_token_loss_is_the_weighted_cross_entropy(label, frozen, chance):
    tokens, size, vocab = 7, 5, 11
    states = [torch.randn(tokens, size, generator=chance, requires_grad=True) for _ in range(2)]
    weights = [torch.rand(tokens, generator=chance), torch.zeros(tokens).index_fill(0, torch.tensor([1, 4]), 0.5)]
    rows = torch.randn(vocab, size, generator=chance, requires_grad=not frozen)
    bias = torch.randn(vocab, generator=chance)
    theirs, own = torch.randn(tokens, size, generator=chance), torch.randn(vocab, size, generator=chance)
    ids = torch.randint(vocab, (tokens,), generator=chance)
    law = (theirs @ own.t() + bias).softmax(-1) if label == "law" else F.one_hot(ids, vocab).float()
    expected = [
        -(law * (state @ rows.t() + bias).log_softmax(-1)).sum(-1) @ weight
        for state, weight in zip(states, weights, strict=True)
    ]
    learnt = [*states, *([] if frozen else [rows])]
    wanted = torch.autograd.grad(0.3 * expected[0] + 2 * expected[1], learnt)

    given = Teacher(theirs, own, bias) if label == "law" else ids
    found = token_loss(states, weights, given, rows, bias, chunk=3)  # the last chunk is short
    assert torch.allclose(found, torch.stack(expected).detach(), atol=1e-5)
    for one, other in zip(torch.autograd.grad(0.3 * found[0] + 2 * found[1], learnt), wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_token_loss_in_bfloat16_is_near(chance):
    states, rows = torch.randn(40, 16, generator=chance, requires_grad=True), torch.randn(64, 16, generator=chance)
    theirs, weight = torch.randn(40, 16, generator=chance), torch.full((40,), 1 / 40)
    exact = token_loss([states], [weight], Teacher(theirs, rows), rows)
    (wanted,) = torch.autograd.grad(exact.sum(), states)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = token_loss([states], [weight], Teacher(theirs, rows), rows)
    (found,) = torch.autograd.grad(near.sum(), states)
    assert near.dtype == torch.float32 and found.dtype == torch.float32
    assert abs(near - exact) < 0.02 * exact
    assert F.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) > 0.99


def test_feature_loss_is_smooth_l1():
    predicted, features = torch.tensor([[0.5, 3.0], [9.0, 9.0]]), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    # 0.5 * 0.5^2 below one, |x| - 0.5 above; the mean over two numbers; the second token weighs nothing.
    assert feature_loss(predicted, features, torch.tensor([0.5, 0.0])).item() == pytest.approx(
        0.5 * (0.5 * 0.25 + 1.5) / 2
    )


@pytest.mark.parametrize("kind", [EagleHead, Eagle3Head])
def test_unrolled_steps_are_those_of_single_drafts(kind):
    model = target()
    torch.manual_seed(3)
    options = {"taps": ("layer:0", "layer:2")} if kind is Eagle3Head else {}
    head = kind.for_target(model, **options).double()
    for layer in head.layers:  # attention that is far from uniform, so that a wrong mask shows
        layer.self_attn.q_proj.weight.data.mul_(8)
    length, steps, size = 9, 3, model.config.hidden_size
    tokens = torch.randint(VOCAB, (2, length))
    states = head.fuse(torch.randn(2, length, len(head.features) * size, dtype=torch.float64))
    found = unroll(head, tokens, states, steps)
    assert [tuple(each.shape) for each in found] == [(2, length - 1, size)] * steps
    for place in range(length - 1):
        # The draft that starts after token place + 1: pairs up to there, then its own outputs, in one plain sequence.
        pairs, inputs = tokens[:, 1 : place + 2], states[:, : place + 1]
        for step in range(steps):
            out = head(pairs, inputs)[:, -1]
            assert torch.allclose(found[step][:, place], out, atol=1e-10), (place, step)
            if place + step + 2 >= length:
                break
            pairs = torch.cat([pairs, tokens[:, place + step + 2, None]], 1)
            inputs = torch.cat([inputs, out[:, None]], 1)
