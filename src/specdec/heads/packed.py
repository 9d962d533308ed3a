"""Passes over the new tokens of many rows at once, packed into one sequence, for the throughput of making data."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache

__all__ = ["Chunk", "PackedRows"]

NAME = "specdec-packed"
GROUP = 32  # neighbouring rows whose attention is one product, over the slots that the longest of them needs
ROUND = 32  # the slots of a group are a multiple of this


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one row. past: tokens of the row that were run before. base: a row whose first `shared` tokens
    are the row's own; their keys and values are copied from there first."""

    row: int
    ids: Sequence[int]
    past: int
    base: int = -1
    shared: int = 0


class PackedRows:
    """A causal LM whose rows are run through `run`, all in one sequence `[1, tokens]` without padding.

    The linear layers see that sequence as it is; the registered attention splits it by rows. Rows with one new
    token, whose queries are packed by key head, share a product with their neighbours, over keys `[size, slots]`.
    The model is changed: it gets another attention implementation. Raises Unfit, perhaps only in the first pass,
    for models whose attention does more than that.
    """

    def __init__(self, model: Any, rows: int, cache_name: str) -> None:
        self.rows, self._model, self._cache_name = rows, model, cache_name
        AttentionInterface.register(NAME, _attend)
        model.set_attn_implementation(NAME)
        self._device = next(model.parameters()).device
        self._cache = _Through(self)
        self._stores: list[dict[int, _Store]] = []  # a layer: group to what it keeps
        self._lengths = [0] * rows
        self._extents = dict.fromkeys(range(-(-rows // GROUP)), ROUND)
        self._blind = torch.zeros(1, 1, 1, 1, dtype=model.dtype, device=self._device)
        self._pass = _Pass()

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """One pass; returns logits `[chunks, vocab]` after each chunk's last token. A row may stand in one chunk."""
        order = sorted(range(len(chunks)), key=lambda i: (len(chunks[i].ids) > 1, chunks[i].row))
        sorted_chunks = [chunks[i] for i in order]
        ids = [token for chunk in sorted_chunks for token in chunk.ids]
        positions = [chunk.past + i for chunk in sorted_chunks for i in range(len(chunk.ids))]
        self._pass = _Pass.of(sorted_chunks, self._fit(sorted_chunks), self._device, self._model.dtype)
        last = torch.tensor([len(chunk.ids) for chunk in sorted_chunks], device=self._device).cumsum(0) - 1
        token = _ACTIVE.set(self)
        try:
            out = self._model(
                input_ids=torch.tensor([ids], device=self._device),
                position_ids=torch.tensor([positions], device=self._device),
                attention_mask=self._blind,
                use_cache=True,
                logits_to_keep=last,
                **{self._cache_name: self._cache},
            )
        finally:
            _ACTIVE.reset(token)
        logits = out.logits[0]  # [chunks, vocab]
        if order != list(range(len(order))):
            back = torch.empty(len(order), dtype=torch.int64)
            back[torch.tensor(order)] = torch.arange(len(order))
            logits = logits[back.to(logits.device)]
        return logits

    def release(self, row: int) -> None:
        """The row's tokens are needed no more."""
        self._lengths[row] = 0

    def _fit(self, chunks: Sequence[Chunk]) -> dict[int, int]:
        """The slots that each group must have, after noting the chunks; one that has far too many gives some back."""
        for chunk in chunks:
            self._lengths[chunk.row] = chunk.past + len(chunk.ids)
        for number, held in self._extents.items():
            needed = -(-max(self._lengths[number * GROUP : (number + 1) * GROUP]) // ROUND) * ROUND
            if needed > held or needed + 3 * ROUND <= held:
                self._extents[number] = max(needed, ROUND)
        return self._extents

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """`[1, heads, tokens, size]` and the pass's keys and values `[1, key heads, tokens, size]`; returns
        `[1, tokens, heads, size]`."""
        heads, size = keys.shape[1], keys.shape[3]
        groups = query.shape[1] // heads
        while len(self._stores) <= layer:
            self._stores.append({})
        stores, now = self._stores[layer], self._pass
        for number, extent in now.extents.items():
            stores[number] = _resized(stores.get(number), extent, keys)
        for chunk in now.copies:
            ours, theirs = stores[chunk.row // GROUP], stores[chunk.base // GROUP]
            to, base = chunk.row % GROUP, chunk.base % GROUP
            ours.keys[to, :, :, : chunk.shared] = theirs.keys[base, :, :, : chunk.shared]
            ours.values[to, :, : chunk.shared] = theirs.values[base, :, : chunk.shared]
        query = query[0].transpose(0, 1)  # [tokens, heads, size]
        fresh_keys, fresh_values = keys[0].transpose(0, 1), values[0].transpose(0, 1)  # [tokens, key heads, size]
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for start, end, number, rows, slots, mask in now.singles:
            store = stores[number]
            store.keys[rows, :, :, slots] = fresh_keys[start:end]
            store.values[rows, :, slots] = fresh_values[start:end]
            packed = query.new_zeros(GROUP, heads, groups, size)
            packed[rows] = query[start:end].reshape(end - start, heads, groups, size) * scaling
            # Products over views of three dimensions, contiguous ones: those of other views copy all keys first.
            scores = torch.bmm(packed.flatten(0, 1), store.keys.flatten(0, 1))  # [rows * heads, groups, extent]
            scores.view(GROUP, -1, scores.shape[-1]).add_(mask)
            weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
            found = torch.bmm(weights, store.values.flatten(0, 1)).view(GROUP, heads * groups, size)
            out[start:end] = found[rows]
        for chunk, start, mask in now.longer:
            end, total = start + len(chunk.ids), chunk.past + len(chunk.ids)
            store, row = stores[chunk.row // GROUP], chunk.row % GROUP
            store.keys[row, :, :, chunk.past : total] = fresh_keys[start:end].permute(1, 2, 0)
            store.values[row, :, chunk.past : total] = fresh_values[start:end].transpose(0, 1)
            asked = query[start:end].reshape(end - start, heads, groups, size).permute(1, 2, 0, 3) * scaling
            scores = torch.bmm(asked.reshape(heads, -1, size), store.keys[row, :, :, :total])
            scores = scores.view(heads, groups, end - start, total).add_(mask)
            weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype).view(heads, -1, total)
            got = torch.bmm(weights, store.values[row, :, :total]).view(heads, groups, end - start, size)
            out[start:end] = got.permute(2, 0, 1, 3).reshape(end - start, heads * groups, size)
        return out[None]


@dataclass(slots=True)
class _Store:
    """Keys `[GROUP, heads, size, extent]` and values `[GROUP, heads, extent, size]` of the rows of a group."""

    keys: Tensor
    values: Tensor


def _resized(store: _Store | None, extent: int, like: Tensor) -> _Store:
    if store is not None and store.keys.shape[3] == extent:
        return store
    made = _Store(
        like.new_zeros(GROUP, like.shape[1], like.shape[3], extent),
        like.new_zeros(GROUP, like.shape[1], extent, like.shape[3]),
    )
    if store is not None:
        kept = min(extent, store.keys.shape[3])
        made.keys[:, :, :, :kept] = store.keys[:, :, :, :kept]
        made.values[:, :, :kept] = store.values[:, :, :kept]
    return made


class Unfit(Exception):
    """The model's attention does something that the packed one does not."""


@dataclass(slots=True)
class _Pass:
    """What the attention must know of one pass. Chunks of one token come first, by row."""

    singles: list[tuple[int, int, int, Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Tokens from, to; group; their rows in it and their slots `[tokens]`; mask `[GROUP, 1, extent]`."""
    longer: list[tuple[Chunk, int, Tensor]] = field(default_factory=list)  # with its place; mask [new, total]
    copies: list[Chunk] = field(default_factory=list)
    extents: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, chunks: Sequence[Chunk], extents: dict[int, int], device: torch.device, dtype: torch.dtype) -> _Pass:
        made = cls(copies=[chunk for chunk in chunks if chunk.shared], extents=extents)
        low = torch.finfo(dtype).min
        place = 0
        for number, found in groupby((c for c in chunks if len(c.ids) == 1), key=lambda chunk: chunk.row // GROUP):
            inside = list(found)
            lengths = [1] * GROUP  # an idle row sees something, or its softmax would be NaN
            for chunk in inside:
                lengths[chunk.row % GROUP] = chunk.past + 1
            hidden = torch.arange(extents[number], device=device) >= torch.tensor(lengths, device=device)[:, None]
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, low)
            rows = torch.tensor([chunk.row % GROUP for chunk in inside], device=device)
            slots = torch.tensor([chunk.past for chunk in inside], device=device)
            made.singles.append((place, place + len(inside), number, rows, slots, mask[:, None]))
            place += len(inside)
        for chunk in chunks[place:]:
            new, total = len(chunk.ids), chunk.past + len(chunk.ids)
            hidden = torch.ones(new, total, dtype=torch.bool, device=device).triu_(chunk.past + 1)
            mask = torch.zeros(new, total, dtype=dtype, device=device).masked_fill_(hidden, low)
            made.longer.append((chunk, place, mask))
            place += new
        return made


_ACTIVE: ContextVar[PackedRows] = ContextVar("specdec_packed_rows")


class _Through(Cache):
    """A cache that hands a pass's keys and values to the attention and tells it the layer."""

    def __init__(self, rows: PackedRows) -> None:
        super().__init__(layers=[])
        self._rows = rows
        self.layer = 0

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        self.layer = layer_idx
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **more: Any
) -> tuple[Tensor, None]:
    """The attention that transformers calls. More than a scaled softmax over the row's own tokens is refused."""
    known = {"dropout", "position_ids", "use_cache", "is_causal", "cache_position", "position_embeddings"}
    odd = sorted(name for name, value in more.items() if value is not None and value is not False and name not in known)
    if odd or more.get("dropout"):
        raise Unfit(f"its attention takes {', '.join(odd)}")
    rows = _ACTIVE.get()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return rows.attend(rows._cache.layer, query, key, value, scale), None
