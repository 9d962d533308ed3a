"""A target of eight layers, so that its low, middle and high states are three, and its states by number."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

D, FF, HEADS, KV, SIZE, VOCAB, DRAFT, LAYERS = 64, 128, 4, 2, 16, 256, 64, 8
PROMPT = torch.tensor([[5, 17, 100, 31, 8]])


@lru_cache
def target() -> Any:
    """Random, in float32, without special ids; nobody may change it."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=D,
        intermediate_size=FF,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV,
        initializer_range=0.2,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


@lru_cache
def states() -> tuple[torch.Tensor, ...]:
    """What enters layer k at every token of `PROMPT`, `[1, tokens, D]`; last, what layer 7 puts out, not normed."""
    found: list[torch.Tensor] = []

    def before(_, args, kwargs):
        found.append(args[0] if args else kwargs["hidden_states"])

    handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in target().model.layers]
    handles.append(target().model.norm.register_forward_pre_hook(lambda _, args: found.append(args[0])))
    with torch.no_grad():
        target()(PROMPT)
    for handle in handles:
        handle.remove()
    return tuple(found)


@lru_cache
def final() -> torch.Tensor:
    """`[1, tokens, D]`: what the LM head reads."""
    with torch.no_grad():
        return target().model(PROMPT).last_hidden_state
