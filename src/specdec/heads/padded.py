"""Passes over the new tokens of many rows in a padded batch, by the model's own attention: for any causal LM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from specdec.heads.packed import Chunk
from specdec.targets.compat import input_device, query_length
from specdec.targets.masks import build
from specdec.targets.spec import ModelSpec, dtype_of

__all__ = ["PaddedRows"]

BATCH = 8  # longer chunks that are run together
SPARE = 64  # slots by which the memory grows at least


class PaddedRows:
    """`run` and `release` as `PackedRows` has them, and slower: one pass for the rows with one new token and more for
    the others, each padded to the longest. The model is not changed.

    The token of position t lies in slot t of its row; the last slot takes the padding. Raises UnsupportedModelError
    as `ModelSpec.of` does.
    """

    def __init__(self, model: Any, rows: int) -> None:
        self.rows, self._model = rows, model
        self._spec, self._dtype = ModelSpec.of(model), dtype_of(model)
        self._device = input_device(model)
        self._cache = _RowCache(rows)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits `[chunks, vocab]` after each chunk's last token. A row may stand in one chunk."""
        self._cache.reserve(max(chunk.past + len(chunk.ids) for chunk in chunks) + 1)
        for chunk in chunks:
            if chunk.shared:
                self._cache.copy(chunk.base, chunk.row, chunk.shared)
        order = sorted(range(len(chunks)), key=lambda i: len(chunks[i].ids))
        single = [i for i in order if len(chunks[i].ids) == 1]
        longer = order[len(single) :]
        batches = [single] * bool(single) + [longer[i : i + BATCH] for i in range(0, len(longer), BATCH)]
        found: dict[int, Tensor] = {}
        for batch in batches:
            found.update(zip(batch, self._run([chunks[i] for i in batch]), strict=True))
        return torch.stack([found[i] for i in range(len(chunks))])

    def release(self, row: int) -> None:
        """The row's tokens are needed no more."""

    def _run(self, chunks: Sequence[Chunk]) -> Tensor:
        width = max(len(chunk.ids) for chunk in chunks)
        extent = max(chunk.past + len(chunk.ids) for chunk in chunks)
        ids = [[*chunk.ids, *[chunk.ids[-1]] * (width - len(chunk.ids))] for chunk in chunks]
        trash = self._cache.capacity - 1
        slots = [[chunk.past + i if i < len(chunk.ids) else trash for i in range(width)] for chunk in chunks]
        steps = torch.arange(width, device=self._device)
        past = torch.tensor([chunk.past for chunk in chunks], device=self._device)
        query = past[:, None] + steps  # [chunks, width]; padding goes on counting, and nobody looks at it
        key = torch.arange(extent, device=self._device)[None].expand(len(chunks), -1)
        visible = key[:, None, :] <= query[:, :, None]  # [chunks, width, extent]
        mask = build(visible, query, key, self._spec.windows, self._dtype, extent - 1)
        self._cache.plan = _Plan(
            torch.tensor([chunk.row for chunk in chunks]), torch.tensor(slots), extent, max(c.past for c in chunks)
        )
        last = torch.tensor([len(chunk.ids) - 1 for chunk in chunks], device=self._device)
        out = self._model(
            input_ids=torch.tensor(ids, device=self._device),
            position_ids=query,
            attention_mask=mask,
            use_cache=True,
            return_dict=True,
            **{self._spec.cache_name: self._cache},
        )
        logits = out.logits.to(self._device)
        return logits[torch.arange(len(chunks), device=self._device), last]


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Where a pass writes: rows `[chunks]`, their slots `[chunks, width]`; slots that attention sees."""

    rows: Tensor
    slots: Tensor
    extent: int
    seen: int


class _RowLayer:
    """Keys and values of a layer, `[rows, heads, capacity, size]`."""

    is_sliding = False
    is_compileable = False

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def write(self, keys: Tensor, values: Tensor, rows: int, capacity: int, plan: _Plan) -> tuple[Tensor, Tensor]:
        if self.keys is None or self.keys.shape[2] < capacity:
            self.keys, self.values = (
                _grown(self.keys, keys, rows, capacity),
                _grown(self.values, values, rows, capacity),
            )
        assert self.keys is not None and self.values is not None
        at, slots = plan.rows.to(keys.device), plan.slots.to(keys.device)
        self.keys[at[:, None], :, slots] = keys.transpose(1, 2)
        self.values[at[:, None], :, slots] = values.transpose(1, 2)
        return self.keys[at, :, : plan.extent], self.values[at, :, : plan.extent]


def _grown(old: Tensor | None, like: Tensor, rows: int, capacity: int) -> Tensor:
    new = like.new_zeros(rows, like.shape[1], capacity, like.shape[3])
    if old is not None:
        # Without the last slot, which took the padding.
        new[:, :, : old.shape[2] - 1] = old[:, :, :-1]
    return new


class _RowCache(Cache):
    """The cache object handed to the model: layers that write where `plan` says."""

    def __init__(self, rows: int) -> None:
        super().__init__(layers=[])
        self._rows = rows
        self.capacity = 0
        self.plan = _Plan(torch.zeros(0), torch.zeros(0), 0, 0)

    def reserve(self, slots: int) -> None:
        if slots > self.capacity:
            self.capacity = max(slots + SPARE, self.capacity + self.capacity // 4)

    def copy(self, base: int, row: int, count: int) -> None:
        for layer in self.layers:
            layer.keys[row, :, :count] = layer.keys[base, :, :count]
            layer.values[row, :, :count] = layer.values[base, :, :count]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        while len(self.layers) <= layer_idx:
            self.layers.append(_RowLayer())
        return self.layers[layer_idx].write(key_states, value_states, self._rows, self.capacity, self.plan)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.plan.seen

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.plan.seen

    def get_mask_sizes(self, query: int | Tensor, layer_idx: int = 0) -> tuple[int, int]:
        return self.plan.seen + query_length(query), 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    @property
    def is_compileable(self) -> bool:
        return False
