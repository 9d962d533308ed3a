"""All cache arithmetic: preallocated slots, written where a pass is told, hidden and freed by a map on the host.

Keys carry their rotary position when they are stored, so a token may lie in any slot; only the mask decides who
sees whom. Nothing is copied when tokens are rejected, and rows of one batch may keep different numbers of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from specdec.targets.compat import query_length


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Where one pass writes.

    start: first slot where all batch rows write the same run of slots, else None.
    slots: `[batch, width]` int64, where they do not. extent: slots that attention sees.
    capacity: slots that every layer must have. seen: tokens before this pass, for models that ask.
    """

    start: int | None
    slots: Tensor | None
    extent: int
    capacity: int
    seen: int


class SlotLayer:
    """Keys and values of one layer, `[batch, heads, capacity, size]`, on the device of that layer."""

    is_sliding = False
    is_compileable = False

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def write(self, keys: Tensor, values: Tensor, to: Write) -> tuple[Tensor, Tensor]:
        """Store a pass's keys and values; returns all that attention may see, `[batch, heads, extent, size]`."""
        if self.keys is None or self.keys.shape[2] < to.capacity:
            self.keys, self.values = _grown(self.keys, keys, to.capacity), _grown(self.values, values, to.capacity)
        assert self.keys is not None and self.values is not None
        if to.start is not None:
            end = to.start + keys.shape[2]
            self.keys[:, :, to.start : end] = keys
            self.values[:, :, to.start : end] = values
        else:
            assert to.slots is not None
            slots = to.slots.to(keys.device)
            batch = torch.arange(len(slots), device=keys.device)[:, None]
            self.keys[batch, :, slots] = keys.transpose(1, 2)
            self.values[batch, :, slots] = values.transpose(1, 2)
        return self.keys[:, :, : to.extent], self.values[:, :, : to.extent]


def _grown(old: Tensor | None, like: Tensor, capacity: int) -> Tensor:
    batch, heads, _, size = like.shape
    new = like.new_zeros(batch, heads, capacity, size)
    if old is not None:
        new[:, :, : old.shape[2]] = old
    return new


class SlotCache(Cache):
    """The cache object handed to a model's `forward`: layers that write where `plan` says."""

    def __init__(self, expected: int = 0) -> None:
        super().__init__(layers=[])
        self.plan = Write(0, None, 0, 0, 0)
        self.expected = expected  # slots that a batch row will need in the end, or 0 if that is unknown

    @classmethod
    def over(cls, keys: Sequence[Tensor], values: Sequence[Tensor], slots: Tensor) -> SlotCache:
        """A cache of one pass, which writes to `slots` `[batch, width]` of the given tensors and sees all of them."""
        cache, extent = cls(), keys[0].shape[2]
        cache.plan = Write(None, slots, extent, extent, 0)
        for own_keys, own_values in zip(keys, values, strict=True):
            layer = SlotLayer()
            layer.keys, layer.values = own_keys, own_values
            cache.layers.append(layer)
        return cache

    def grow(self, capacity: int) -> None:
        """Give every layer that has been written to at least `capacity` slots."""
        for layer in self.layers:
            if layer.keys is not None and layer.keys.shape[2] < capacity:
                layer.keys = _grown(layer.keys, layer.keys, capacity)
                layer.values = _grown(layer.values, layer.values, capacity)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        while len(self.layers) <= layer_idx:
            self.layers.append(SlotLayer())
        return self.layers[layer_idx].write(key_states, value_states, self.plan)

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

    def select(self, batch: Tensor) -> None:
        """Keep these batch rows `[kept]`, in this order."""
        for layer in self.layers:
            if layer.keys is not None:
                where = batch.to(layer.keys.device)
                layer.keys, layer.values = layer.keys[where], layer.values[where]

    @property
    def nbytes(self) -> int:
        """Bytes held by keys and values."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers if layer.keys is not None)


@dataclass(slots=True)
class Pending:
    """A node that has been run and not yet been judged."""

    slot: int
    parent: int  # index of an earlier pending node, or -1: the last committed token
    depth: int


@dataclass(slots=True)
class RowSlots:
    """Where one row's tokens lie. `dense` means that the token of position t lies in slot t."""

    group: int
    slots: list[int] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    dense: bool = True
    marked: int = 0  # leading slots that the device's visibility table knows

    @property
    def tail(self) -> int:
        """The slot after the row's last one, where the row is dense and its pending nodes are a run."""
        return len(self.slots) + len(self.pending)

    @property
    def runs_on(self) -> bool:
        """True if committed and pending tokens fill slots 0 to tail - 1 in order, as one chain."""
        if not self.dense:
            return False
        base = len(self.slots)
        return all(node.slot == base + i and node.parent == i - 1 for i, node in enumerate(self.pending))

    def ancestors(self, node: int) -> list[int]:
        """Slots of a pending node and of the pending nodes above it."""
        found = []
        while node >= 0:
            found.append(self.pending[node].slot)
            node = self.pending[node].parent
        return found


class Pool:
    """The slots of one batch row, shared by the rows of a group and counted by reference."""

    def __init__(self) -> None:
        self.fresh = 0  # slots 0 to fresh - 1 are in use, but for the holes
        self._holes: set[int] = set()
        self._shared: dict[int, int] = {}  # further owners of a slot

    def take(self, count: int) -> list[int]:
        """The lowest free slots: for a chain, those of its positions."""
        if not self._holes:
            self.fresh += count
            return list(range(self.fresh - count, self.fresh))
        taken = sorted(self._holes)[:count]
        self._holes.difference_update(taken)
        missing = count - len(taken)
        self.fresh += missing
        return taken + list(range(self.fresh - missing, self.fresh))

    def share(self, slots: Sequence[int], owners: int) -> None:
        """Note that `owners` further rows hold these slots."""
        for slot in slots:
            self._shared[slot] = self._shared.get(slot, 0) + owners

    def free(self, slots: Sequence[int]) -> None:
        """Give slots back; one with other owners stays in use."""
        for slot in slots:
            if self._shared.get(slot):
                self._shared[slot] -= 1
            else:
                self._holes.add(slot)
        while self.fresh - 1 in self._holes:
            self.fresh -= 1
            self._holes.remove(self.fresh)

    @property
    def used(self) -> int:
        return self.fresh - len(self._holes)


class SlotMap:
    """Which slot holds which token of which row: the host's side of the cache."""

    def __init__(self, groups: Sequence[int]) -> None:
        self.rows = [RowSlots(group) for group in groups]
        self.pools = {group: Pool() for group in dict.fromkeys(groups)}

    def fill(self, row: int, count: int) -> None:
        """Note that slots 0 to count - 1 of the row's group hold its first tokens; the group's rows share them."""
        slots, pool = self.rows[row], self.pools[self.rows[row].group]
        held = len(slots.slots)
        pool.share(range(held, pool.fresh), 1)
        pool.take(count - pool.fresh)
        slots.slots = list(range(count))

    def add(self, row: int, parents: Sequence[int]) -> list[int]:
        """Slots for new pending nodes; `parents` name pending nodes of the row, or -1."""
        slots = self.rows[row]
        taken = self.pools[slots.group].take(len(parents))
        for slot, parent in zip(taken, parents, strict=True):
            slots.pending.append(Pending(slot, parent, slots.pending[parent].depth + 1 if parent >= 0 else 0))
        return taken

    def commit(self, row: int, path: Sequence[int]) -> None:
        """Keep the pending nodes of `path`, root first, and free all others."""
        slots = self.rows[row]
        kept = [slots.pending[node].slot for node in path]
        base = len(slots.slots)
        slots.dense = slots.dense and kept == list(range(base, base + len(kept)))
        slots.slots.extend(kept)
        keep = set(path)
        self.pools[slots.group].free([node.slot for i, node in enumerate(slots.pending) if i not in keep])
        slots.pending.clear()

    def follow(self, sources: Mapping[int, int]) -> None:
        """Let rows hold the committed slots of other rows of their group, as these are now, instead of their own."""
        taken = {row: replace(self.rows[source], slots=[*self.rows[source].slots]) for row, source in sources.items()}
        for held in taken.values():
            self.pools[held.group].share(held.slots, 1)
        for row, held in taken.items():
            self.release(row)
            held.pending = []
            self.rows[row] = held

    def release(self, row: int) -> None:
        """Free everything that a finished row holds."""
        slots = self.rows[row]
        self.pools[slots.group].free([*slots.slots, *(node.slot for node in slots.pending)])
        slots.slots, slots.pending = [], []

    @property
    def extent(self) -> int:
        return max(pool.fresh for pool in self.pools.values())
