"""Heads that were never trained, for checks."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from specdec.heads.decoder import DecoderHead

_Head = TypeVar("_Head", bound=DecoderHead)


def fresh(cls: type[_Head], vocab_size: int, **options: Any) -> _Head:
    """A random head of that class for the tiny target, always the same; `options` are fields of its config."""
    from specdec.testing.tiny import tiny_model

    model = tiny_model(vocab_size)
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls.for_target(model, **options)
