"""Plan: what a checkpoint holds, in the words of our heads, before the target adds what it does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["Plan"]


@dataclass(frozen=True, eq=False)
class Plan:
    """A checkpoint on its way to a head.

    fields: of the head's config, but for what belongs to the target. weights: by the names of the head's state, the
        draft vocabulary as `draft_ids` where there is one. hidden_size, vocab_size, layers: of the target, None where
        nothing in the checkpoint says them. boundaries: the target's states that are fused, as what enters layer k;
        None: the default ones. taps: how many. remarks: what is unusual, one sentence each.
    """

    kind: str
    fields: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    hidden_size: int | None = None
    vocab_size: int | None = None
    layers: int | None = None
    boundaries: tuple[int, ...] | None = None
    taps: int = 0
    base: str = ""
    remarks: tuple[str, ...] = field(default=())
