"""Additive attention masks from who may see whom, one a layer type."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specdec.targets.compat import min_dtype

Windows = Mapping[str, "int | None"]
"""Layer type to its window or chunk size; None for full attention."""


def build(
    visible: Tensor, query: Tensor, key: Tensor, windows: Windows, dtype: torch.dtype, longest: int
) -> Tensor | dict[str, Tensor]:
    """Masks for `forward`: one tensor where the model has one layer type, else one a layer type.

    visible: `[batch, queries, keys]` bool. query: `[batch, queries]` positions. key: `[batch, keys]` positions.
    longest: the largest position; below every window's size all layer types see the same.
    """
    made: dict[str, Tensor] = {}
    full: Tensor | None = None
    for kind, size in windows.items():
        if size is None or longest < size:
            full = additive(visible, dtype) if full is None else full
            made[kind] = full
        elif kind == "chunked_attention":
            same = query[:, :, None] // size == key[:, None, :] // size
            made[kind] = additive(visible & same, dtype)
        else:
            near = query[:, :, None] - key[:, None, :] < size
            made[kind] = additive(visible & near, dtype)
    return made if len(made) > 1 else next(iter(made.values()))


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """`[batch, queries, keys]` bool to `[batch, 1, queries, keys]`: 0 where visible, the dtype's minimum elsewhere.

    Never boolean: eager attention adds the mask it is given.
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, min_dtype(dtype))[:, None]


class CausalTemplates:
    """Masks of chains that follow a dense prefix: slices of one template a width, so a round builds nothing."""

    def __init__(self) -> None:
        self._made: dict[int, Tensor] = {}

    def get(self, width: int, before: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """`[1, 1, width, before + width]`: everything before, and causal among the width new tokens."""
        template = self._made.get(width)
        if template is None or template.shape[-1] - width < before:
            room = max(256, 2 * before)
            visible = torch.ones(1, width, room + width, dtype=torch.bool, device=device).tril(room)
            template = self._made[width] = additive(visible, dtype)
        free = template.shape[-1] - width
        return template[:, :, :, free - before :]
