"""The next token of many rows over a large vocabulary, on the CPU too in little time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.core.rng import Key, Rng

__all__ = ["draw", "first_best"]


def _blocks(values: Tensor, fill: float) -> Tensor:
    """`[rows, vocab]` as `[rows, blocks, size]`, about square."""
    size = 1 << max(1, (values.shape[1].bit_length() + 1) // 2)
    short = -values.shape[1] % size
    if short:
        values = torch.nn.functional.pad(values, (0, short), value=fill)
    return values.view(len(values), -1, size)


def first_best(logits: Tensor) -> Tensor:
    """argmax over `[rows, vocab]`, the first of equals, in two stages: that of long rows is slow on the CPU."""
    blocks = _blocks(logits, float("-inf"))
    block = blocks.amax(-1).float().argmax(-1)  # [rows]
    inside = blocks.gather(1, block[:, None, None].expand(-1, 1, blocks.shape[2]))[:, 0]
    return block * blocks.shape[2] + inside.float().argmax(-1)


def draw(p: Tensor, rng: Rng, keys: Sequence[Key]) -> Tensor:
    """One token a row from `p` `[rows, vocab]`: its block first, then one of it, so that no long row is summed up."""
    blocks = _blocks(p, 0.0)
    block = rng.categorical(blocks.sum(-1), [(*key, 0) for key in keys])
    inside = blocks.gather(1, block[:, None, None].expand(-1, 1, blocks.shape[2]))[:, 0]
    return block * blocks.shape[2] + rng.categorical(inside, [(*key, 1) for key in keys])
