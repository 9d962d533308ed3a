"""EAGLE and EAGLE-3 heads: the forward is the published formula, written out; what is borrowed, owned and saved."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.eagle3_config import Eagle3HeadConfig, default_taps
from specdec.heads.eagle_config import EagleHeadConfig
from specdec.heads.load import load_head
from tests.drafters.eagles import fresh
from tests.frontdoor.models import VOCAB, target

LENGTH, WIDTH = 7, 32


def inputs(seed=0, size=WIDTH):
    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (2, LENGTH), generator=chance)
    return tokens, torch.randn(2, LENGTH, size, generator=chance)


def randomised(head, seed=3):
    """Every weight random, norms and biases too, so that none can be left out unseen."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in head.parameters():
            weights.copy_(torch.randn(weights.shape, generator=chance) * 0.3 + (1.0 if weights.dim() == 1 else 0.0))
    return head


def rms(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x, position, theta):
    """Rotary embedding of `[heads, size]` at a position, halves rotated."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)


def attention(weights, prefix, z, config, positions=None):
    """Causal attention over `z` `[length, in]`, one query and one head at a time."""
    heads, groups = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    size = config.head_dim or config.width // heads

    def project(name, x):
        out = x @ weights[f"{prefix}.{name}.weight"].T
        return out + weights[f"{prefix}.{name}.bias"] if f"{prefix}.{name}.bias" in weights else out

    theta = config.rope_parameters["rope_theta"]
    positions = range(len(z)) if positions is None else positions
    q = [turned(project("q_proj", x).view(heads, size), at, theta) for x, at in zip(z, positions, strict=True)]
    k = [turned(project("k_proj", x).view(groups, size), at, theta) for x, at in zip(z, positions, strict=True)]
    v = [project("v_proj", x).view(groups, size) for x in z]
    rows = []
    for t in range(len(z)):
        parts = []
        for head in range(heads):
            group = head // (heads // groups)
            scores = torch.stack([q[t][head] @ k[s][group] for s in range(t + 1)]) / size**0.5
            parts.append(sum(p * v[s][group] for s, p in enumerate(scores.softmax(0))))
        rows.append(project("o_proj", torch.cat(parts)))
    return torch.stack(rows)


def mlp(weights, prefix, x):
    gate = F.silu(x @ weights[f"{prefix}.gate_proj.weight"].T)
    return (gate * (x @ weights[f"{prefix}.up_proj.weight"].T)) @ weights[f"{prefix}.down_proj.weight"].T


def llama_layer(weights, prefix, x, config, normed=True):
    eps = config.rms_norm_eps
    z = rms(x, weights[f"{prefix}.input_layernorm.weight"], eps) if normed else x
    a = x + attention(weights, f"{prefix}.self_attn", z, config)
    return a + mlp(weights, f"{prefix}.mlp", rms(a, weights[f"{prefix}.post_attention_layernorm.weight"], eps))


@pytest.mark.core
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fc_bias": True, "embed_scale": 14.0},
        {"num_hidden_layers": 2, "attention_bias": True, "head_dim": 12},
        {"own_embed": True, "own_lm_head": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ],
    ids=str,
)
@torch.no_grad()
def test_eagle_is_its_formula(options):
    head = randomised(fresh("eagle", **options))
    config, weights = head.config, head.state_dict()
    tokens, features = inputs()
    embed = weights["embed_tokens.weight"] if config.own_embed else target().get_input_embeddings().weight
    rows = weights["lm_head.weight"] if config.own_lm_head else target().get_output_embeddings().weight
    out = head(tokens, features)
    for row in range(2):
        # The token of a pair is the one after its feature; the embedding comes first.
        e = embed[tokens[row]] * config.embed_scale
        x = torch.cat([e, features[row]], -1) @ weights["fc.weight"].T
        x = x + weights["fc.bias"] if config.fc_bias else x
        x = llama_layer(weights, "layers.0", x, config, normed=False)
        for layer in range(1, config.num_hidden_layers):
            x = llama_layer(weights, f"layers.{layer}", x, config)
        assert torch.allclose(out[row], x, atol=2e-4, rtol=1e-4)
        assert torch.allclose(head.logits(out[row]), x @ rows.T, atol=1e-2, rtol=1e-3)
    assert "layers.0.input_layernorm.weight" not in weights and "norm.weight" not in weights


FLAGS = [
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_before_fc": False},
    {"fc_norm": False, "norm_before_residual": True},
    {"fc_norm": False, "norm_output": True, "fc_bias": True},
    {"fc_norm": False, "final_norm": False, "num_hidden_layers": 2},
    {"hidden_size": 24, "own_embed": True, "own_lm_head": True, "embed_scale": 2.0, "attention_bias": True},
]


@pytest.mark.core
@pytest.mark.parametrize("options", FLAGS, ids=str)
@torch.no_grad()
def test_eagle3_is_its_formula(options):
    head = randomised(fresh("eagle3", **options))
    config, weights = head.config, head.state_dict()
    eps, width = config.rms_norm_eps, config.width
    tokens, features = inputs(size=2 * WIDTH)
    embed = weights["embed_tokens.weight"] if config.own_embed else target().get_input_embeddings().weight
    rows = weights["lm_head.weight"] if config.own_lm_head else target().get_output_embeddings().weight
    states = head.fuse(features)
    out = head(tokens, states)
    again = head(tokens, out)  # a later step reads what an earlier one put out
    for row in range(2):
        h = features[row]
        if config.norm_before_fc:
            h = rms(h, weights["input_norm.weight"], eps)
        if config.fc_norm:
            h = torch.cat([rms(h[:, :WIDTH], weights["fc_norm.0.weight"], eps),
                           rms(h[:, WIDTH:], weights["fc_norm.1.weight"], eps)], -1)  # fmt: skip
        g = h @ weights["fc.weight"].T
        g = g + weights["fc.bias"] if config.fc_bias else g
        assert g.shape[-1] == width
        for got in (out, again):
            e = embed[tokens[row]] * config.embed_scale
            normed = rms(g, weights["layers.0.hidden_norm.weight"], eps)
            z = torch.cat([rms(e, weights["layers.0.input_layernorm.weight"], eps), normed], -1)
            s = (normed if config.norm_before_residual else g) + attention(weights, "layers.0.self_attn", z, config)
            a = s + mlp(weights, "layers.0.mlp", rms(s, weights["layers.0.post_attention_layernorm.weight"], eps))
            for layer in range(1, config.num_hidden_layers):
                a = llama_layer(weights, f"layers.{layer}", a, config)
            final = rms(a, weights["norm.weight"], eps) if config.final_norm else a
            g = final if config.norm_output else a
            assert torch.allclose(got[row], g, atol=5e-4, rtol=1e-3)
            assert torch.allclose(head.lm_input(got[row]), final, atol=5e-4, rtol=1e-3)
            assert torch.allclose(head.logits(got[row]), final @ rows.T, atol=2e-2, rtol=1e-3)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.no_grad()
def test_steps_over_a_cache_are_one_pass(kind):
    head = randomised(fresh(kind))
    tokens, states = inputs()
    whole = head(tokens, states)
    cache, parts = DynamicCache(), []
    for start, end in itertools.pairwise([0, 3, 4, LENGTH]):
        before = torch.ones(end - start, start, dtype=torch.bool)
        seen = torch.cat([before, torch.ones(end - start, end - start, dtype=torch.bool).tril()], 1)
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
        position = torch.arange(start, end)[None]
        parts.append(
            head(tokens[:, start:end], states[:, start:end], position_ids=position, attention_mask=mask, cache=cache)
        )
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-4)
    shifted = head(tokens, states, position_ids=torch.arange(50, 50 + LENGTH)[None])
    assert torch.allclose(shifted, whole, atol=1e-3)  # positions are relative


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_targets_modules_are_borrowed(kind):
    head = fresh(kind)
    names = set(head.state_dict())
    assert not any("embed_tokens" in name or "lm_head" in name for name in names)
    assert not {id(p) for p in head.parameters()} & {id(p) for p in target().parameters()}
    tokens, states = inputs()
    known = inputs(size=WIDTH * len(head.features))[1]
    (head.lm_input(head(tokens, head.fuse(known))) @ head.lm_rows()[0].T).sum().backward()
    assert all(p.grad is None for p in target().parameters())
    assert all(p.grad is not None for p in head.parameters())
    unbound = type(head)(head.config)
    with pytest.raises(RuntimeError, match="call bind"):
        unbound(tokens, states)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("own", [False, True])
@torch.no_grad()
def test_a_trimmed_vocabulary_is_a_part_of_the_whole(kind, own):
    kept = [1, 5, 8, 40, 63]
    whole, cut = fresh(kind, own_lm_head=own), fresh(kind, own_lm_head=own, draft_ids=kept)
    cut.load_state_dict({k: v for k, v in whole.state_dict().items() if k != "lm_head.weight"}, strict=False)
    tokens, states = inputs()
    assert torch.allclose(cut.logits(cut(tokens, states)), whole.logits(whole(tokens, states))[..., kept], atol=1e-5)
    assert cut.to_target(torch.tensor([[0, 4]])).tolist() == [[1, 63]] and cut.vocab_size == 5
    assert cut.lm_rows()[0].shape == (5, WIDTH)


@pytest.mark.parametrize(
    "options", [{}, {"own_lm_head": True, "draft_ids": [3, 4, 9], "num_hidden_layers": 2}], ids=str
)
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.no_grad()
def test_saving_and_loading_give_the_head_back(tmp_path, kind, options):
    head = randomised(fresh(kind, **options)).to(torch.bfloat16)
    head.save(tmp_path)
    again = load_head(tmp_path, kind=kind)
    assert again.config == head.config and again.dtype == torch.bfloat16 and type(again) is type(head)
    assert again.state_dict().keys() == head.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in head.state_dict().items())
    again.bind(target().get_input_embeddings(), target().get_output_embeddings())
    tokens, states = inputs()
    assert torch.equal(again(tokens, states.bfloat16()), head(tokens, states.bfloat16()))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_far_positions_are_right_in_bfloat16(kind):
    head = fresh(kind)
    exact = head.rotary_emb.inv_freq.clone()
    for moved in (head.to(torch.bfloat16), copy.deepcopy(head).half(), head.double(), head.bfloat16().float()):
        assert moved.rotary_emb.inv_freq.dtype == torch.float32
        assert torch.equal(moved.rotary_emb.inv_freq, exact)


def test_any_causal_lm_can_have_a_head():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=24, n_layer=8, n_head=3, n_positions=64))
    head = EagleHead.for_target(model, name="some/gpt", tokenizer="ab12")
    assert (head.config.target, head.config.tokenizer) == ("some/gpt", "ab12")
    assert head.config.intermediate_size == 96 and head.config.num_attention_heads == 3
    assert head.config.num_key_value_heads is None and head.config.head_dim is None
    tokens, states = torch.randint(0, 50, (1, 4)), torch.randn(1, 4, 24)
    assert head.logits(head(tokens, states)).shape == (1, 4, 50)
    three = Eagle3Head.for_target(model)
    assert three.features == ("layer:1", "layer:3", "layer:4") and three.config.fc_norm
    assert three.fuse(torch.randn(2, 72)).shape == (2, 24)


def test_taps_are_what_enters_the_published_layers():
    # hidden_states[2], [n // 2] and [n - 3], each the output of the layer before.
    assert default_taps(30) == ("layer:1", "layer:14", "layer:26")
    assert default_taps(61) == ("layer:1", "layer:29", "layer:57")
    for few in (1, 4, 5, 6):
        with pytest.raises(ValueError, match="name the taps"):
            default_taps(few)
    assert len(set(default_taps(7))) == 3
    with pytest.raises(ValueError, match="name the taps"):
        Eagle3Head.for_target(target())


SIZES = {
    "target_hidden_size": 32, "target_vocab_size": 64, "target_layers": 8, "intermediate_size": 64,
    "num_attention_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        (EagleHeadConfig, {"num_key_value_heads": 3}, "4 heads cannot share 3"),
        (EagleHeadConfig, {"num_attention_heads": 5}, "does not divide into 5 heads: give head_dim"),
        (EagleHeadConfig, {"bias": True}, "Extra inputs"),
        (Eagle3HeadConfig, {"taps": ("layer:1", "layer:1")}, "each state can be fused once"),
        (Eagle3HeadConfig, {"taps": ("hidden:1",)}, "there is no state 'hidden:1'"),
        (Eagle3HeadConfig, {"taps": ()}, "at least 1 item"),
        (Eagle3HeadConfig, {"taps": ("final",), "fc_norm": True, "norm_before_fc": True}, "exclude each other"),
        (Eagle3HeadConfig, {"taps": ("final",), "norm_output": True, "final_norm": False}, "needs final_norm"),
        (Eagle3HeadConfig, {"taps": ("final",), "hidden_size": 16}, "needs own_embed and own_lm_head"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_configs_say_what_is_wrong(cls, options, words):
    with pytest.raises(ValueError, match=words):
        cls(**{**SIZES, **options})


def test_configs_are_written_and_read():
    one = EagleHeadConfig(**SIZES, head_dim=12, embed_scale=14.0)
    assert EagleHeadConfig.model_validate_json(one.model_dump_json()) == one
    three = Eagle3HeadConfig(**SIZES, taps=("embed", "layer:3"), fc_norm=True)
    assert Eagle3HeadConfig.model_validate_json(three.model_dump_json()) == three


def test_modules_of_a_head_are_transformers_own():
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    for kind in ("eagle", "eagle3"):
        head = fresh(kind)
        assert all(type(layer) is LlamaDecoderLayer for layer in head.layers)
    assert isinstance(fresh("eagle").layers[0].input_layernorm, nn.Identity)
