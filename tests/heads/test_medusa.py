"""Medusa heads: they begin as the target's LM head, and what they compute is the published formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PhiConfig, PhiForCausalLM

from specdec.heads import MedusaHead, load_head
from specdec.heads.trees import search
from tests.frontdoor.models import VOCAB, llama, target

IDS = [60, 3, 5, 17, 40, 2]


def gpt2():
    config = GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config).eval()


def phi():
    """Its LM head has a bias."""
    config = PhiConfig(
        pad_token_id=0,
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = PhiForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.bias.normal_()
    return model


@pytest.mark.core
@pytest.mark.parametrize("make", [target, gpt2, phi])
@pytest.mark.parametrize(
    "options",
    [{}, {"own_lm_head": True}, {"draft_ids": IDS}, {"own_lm_head": True, "draft_ids": IDS, "blocks": 2}],
    ids=str,
)
def test_every_fresh_head_is_the_targets_lm_head(make, options):
    model = make()
    head = MedusaHead.for_target(model, heads=3, **options)
    states = torch.randn(2, 5, 32)
    with torch.no_grad():
        expected = model.get_output_embeddings()(states)
        if "draft_ids" in options:
            expected = expected[..., sorted(IDS)]
        found = head.logits(head(states))
    assert found.shape == (2, 5, 3, expected.shape[-1])
    for k in range(3):
        assert torch.allclose(found[..., k, :], expected, atol=1e-5)
    assert head.dtype == states.dtype and head.features == ("final",)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("own", [False, True])
def test_the_formula(blocks, own):
    model = phi()
    head = MedusaHead.for_target(model, heads=3, blocks=blocks, own_lm_head=own)
    with torch.no_grad():
        for weights in head.parameters():
            weights.normal_(std=0.4)
    states = torch.randn(4, 32)
    found = head.logits(head(states))
    for k in range(3):
        for n, f in enumerate(states):
            z = f
            for block in range(blocks):
                z = z + nn.functional.silu(head.weight[block, k] @ z + head.bias[block, k])
            rows, bias = (head.lm_head[k], head.lm_head_bias[k]) if own else (model.lm_head.weight, model.lm_head.bias)
            assert torch.allclose(found[n, k], rows @ z + bias, atol=1e-4)


def test_guesses_are_ids_of_the_target_the_likeliest_first():
    head = MedusaHead.for_target(target(), heads=2, draft_ids=IDS)
    with torch.no_grad():
        head.weight.normal_(std=0.3)
        states = torch.randn(3, 32)
        logits = head.logits(head(states))
        found = head.guesses(states, 4)
        assert found.shape == (3, 2, 4) and found.dtype == torch.int64
        ids = torch.tensor(sorted(IDS))
        assert torch.equal(found, ids[logits.argsort(-1, descending=True)[..., :4]])
        assert head.guesses(states, 99).shape == (3, 2, 6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_guesses_of_broken_heads_are_different_ids_all_the_same(value, dtype):
    head = MedusaHead.for_target(llama(0, vocab=2000).to(dtype), heads=2)
    with torch.no_grad():
        head.bias.fill_(value)
        found = head.guesses(torch.randn(3, 32, dtype=dtype), 5)
    assert all(len(set(row.tolist())) == 5 for row in found.reshape(-1, 5))
    assert int(found.min()) >= 0 and int(found.max()) < 2000


def test_only_the_heads_are_trained():
    head = MedusaHead.for_target(target(), heads=2, draft_ids=IDS)
    head.logits(head(torch.randn(3, 32))).sum().backward()
    assert head.weight.grad is not None and target().get_output_embeddings().weight.grad is None


def test_the_searched_tree_lies_beside_the_weights(tmp_path):
    head = MedusaHead.for_target(target(), heads=2)
    head.tree = search([[0.5, 0.2], [0.3, 0.1]], 5)
    head.save(tmp_path)
    assert load_head(tmp_path).tree == head.tree
