"""The published formulas of a draft step, written out in plain operations on tensors under their published names."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.heads.formats.target import HEADS, KV, SIZE


def rms(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def turned(x, theta=10000.0):
    """Rotary embedding of `[batch, heads, tokens, SIZE]` at positions 0, 1, ..."""
    half = torch.arange(0, SIZE, 2) / SIZE
    angle = torch.arange(x.shape[2])[:, None] * theta**-half
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def attention(w, x, theta=10000.0):
    def heads(name, count):
        y = F.linear(x, w[f"self_attn.{name}_proj.weight"], w.get(f"self_attn.{name}_proj.bias"))
        y = y.view(*x.shape[:2], count, SIZE).transpose(1, 2)
        norm = w.get(f"self_attn.{name}_norm.weight")
        return y if norm is None else rms(y, norm)

    q, k, v = turned(heads("q", HEADS), theta), turned(heads("k", KV), theta), heads("v", KV)
    k, v = (each.repeat_interleave(HEADS // KV, 1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) / SIZE**0.5
    future = torch.ones(scores.shape[-2:]).triu(1).bool()
    out = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
    return F.linear(out.transpose(1, 2).flatten(2), w["self_attn.o_proj.weight"])


def mlp(w, x):
    gate, up = F.linear(x, w["mlp.gate_proj.weight"]), F.linear(x, w["mlp.up_proj.weight"])
    return F.linear(F.silu(gate) * up, w["mlp.down_proj.weight"])


def below(w, prefix):
    return {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}


def eagle(w, embedded, features, theta=10000.0):
    """`[1, tokens, D]` twice to states, which the target's LM head reads as they are."""
    u = F.linear(torch.cat([embedded, features], -1), w["fc.weight"], w.get("fc.bias"))
    layer = below(w, "layers.0.")
    a = u + attention(layer, u, theta)
    return a + mlp(layer, rms(a, layer["post_attention_layernorm.weight"]))


def eagle3(w, embedded, taps, before_residual=False, theta=10000.0):
    """Embeddings and a list of the target's states to what the head carries on, before any final norm."""
    joined = torch.cat(taps, -1)
    if "input_norm.weight" in w:
        joined = rms(joined, w["input_norm.weight"])
    if "fc_norm.0.weight" in w:
        joined = torch.cat([rms(tap, w[f"fc_norm.{i}.weight"]) for i, tap in enumerate(taps)], -1)
    g = F.linear(joined, w["fc.weight"])
    layer = below(w, "midlayer.")
    normed = rms(g, layer["hidden_norm.weight"])
    z = torch.cat([rms(embedded, layer["input_layernorm.weight"]), normed], -1)
    s = (normed if before_residual else g) + attention(layer, z, theta)
    a = s + mlp(layer, rms(s, layer["post_attention_layernorm.weight"]))
    if any(name.startswith("layers.1.") for name in w):
        more = below(w, "layers.1.")
        a = a + attention(more, rms(a, more["input_layernorm.weight"]), theta)
        a = a + mlp(more, rms(a, more["post_attention_layernorm.weight"]))
    return a
