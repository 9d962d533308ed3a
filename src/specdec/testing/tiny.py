"""A target of a few thousand weights, for drafters that need features or modules of a real model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from specdec.targets.hf import HFTarget

__all__ = ["TinyTarget", "tiny_model"]

HIDDEN, LAYERS = 16, 4


@lru_cache(maxsize=8)
def tiny_model(vocab_size: int) -> Any:
    """A random Llama in float64 with hidden size 16 and 4 layers; a drafter's `example` may count on these."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    # A check may call from inside inference mode, and the model outlives the check.
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).double().eval()


class TinyTarget(HFTarget):
    """`HFTarget` over `tiny_model`, whose law can be asked for one prefix at a time."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(tiny_model(vocab_size))
        self._laws: dict[tuple[int, ...], Any] = {}

    @torch.inference_mode()
    def logits(self, prefix: Sequence[int]) -> Any:
        """`[vocab]` float64 of a plain pass over `prefix`."""
        key = tuple(prefix)
        if key not in self._laws:
            self._laws[key] = self.model(torch.tensor([key]), use_cache=False).logits[0, -1]
        return self._laws[key]


def target(vocab_size: int) -> HFTarget:
    """A target for checks."""
    return TinyTarget(vocab_size)
