"""Several steps of a draft at every place of a text at once, as EAGLE-3's training-time test runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specdec.heads.base import Head

__all__ = ["draft_mask", "unroll"]


def unroll(head: Head, tokens: Tensor, states: Tensor, steps: int) -> list[Tensor]:
    """States of `steps` successive draft steps, begun after every token of a text: `steps` times `[b, n - 1, d]`.

    tokens: `[b, n]` ids; padding may follow the text. states: `[b, n, d]`, what `head.fuse` made of the features.

    Index t of step k belongs to the draft that starts after token t + 1. Step 0 reads token t + 1 beside state t; step
    k reads token t + 1 + k of the text beside its own output of step k - 1, at position t + k. It sees the step-0
    entries up to t, and of later steps its own index only: what the cache holds when that draft is really made
    (EAGLE-3, arXiv 2503.01840, section 3.2). Its output guesses token t + 2 + k, and for EAGLE the feature of token
    t + 1 + k.
    """
    length = tokens.shape[1] - 1
    if steps == 1:
        return [head(tokens[:, 1:], states[:, :-1])]
    from transformers import DynamicCache

    cache = DynamicCache()
    places = torch.arange(length, device=tokens.device)[None]
    state, found = states[:, :-1], []
    for step in range(steps):
        ahead = torch.nn.functional.pad(tokens[:, 1 + step :], (0, step))[:, :length]
        mask = draft_mask(length, step, state)
        state = head(ahead, state, position_ids=places + step, attention_mask=mask, cache=cache)
        found.append(state)
    return found


def draft_mask(length: int, step: int, like: Tensor) -> Tensor:
    """Additive mask `[1, 1, length, (step + 1) * length]` of draft step `step`, in the dtype of `like`."""
    seen = torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
    own = torch.eye(length, dtype=torch.bool, device=like.device)
    mask = torch.zeros(length, (step + 1) * length, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~torch.cat([seen, *[own] * step], 1), float("-inf"))[None, None]
