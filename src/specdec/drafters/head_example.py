"""Heads that were never trained, for checks."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from specdec.heads.decoder import DecoderHead

_Head = TypeVar("_Head", bound=DecoderHead)


def fresh(cls: type[_Head], vocab_size: int, **options: Any) -> _Head:
    """A random head of that class, always the same; `options` are further fields of its config."""
    config = cls.config_class(
        # The sizes of `specdec.testing.tiny`.
        target_hidden_size=16,
        target_layers=4,
        target_vocab_size=vocab_size,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        **options,
    )  # fmt: skip
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(config).eval()
