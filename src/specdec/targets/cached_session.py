"""One generation's passes over a cached model: where its keys and values lie, and what each node of a pass sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specdec.core import host
from specdec.targets.compat import filled_cache
from specdec.targets.kv import SlotCache, SlotMap, Write
from specdec.targets.masks import CausalTemplates, build
from specdec.targets.packing import Packing
from specdec.targets.taps import Taps

if TYPE_CHECKING:
    from specdec.targets.cached_lm import CachedLM, Inputs  # which opens what stands here

_NO_TAPS = Taps(())
_TEMPLATES = 128  # nodes of the widest pass whose mask is kept for the next one
_PAIRS_FROM = 256  # slots from which one token goes in a pass over two, where that takes less time


class CachedSession:
    """One generation's passes over a cached model. Rows are numbered as in `prompts`."""

    def __init__(self, lm: CachedLM, prompts: Sequence[Sequence[int]], groups: Sequence[int], expected: int) -> None:
        self.lm, self._prompts = lm, [list(prompt) for prompt in prompts]
        self._longest, self._expected = expected, _slots(self._prompts, groups, expected)
        self.cache, self.map = SlotCache(self._expected + lm.spare), SlotMap(list(groups))
        self.batch = list(self.map.pools)  # group of each batch row, in order
        self.capacity = 0
        self._templates = CausalTemplates()
        self._visible: Tensor | None = None  # [rows, capacity] bool
        self._positions: Tensor | None = None  # [groups, capacity]
        self._steps = torch.arange(1, device=lm.device)[None]  # [1, at least the extent]: 0, 1, 2, ...
        self._wide = False  # passes over several nodes have been run
        self.passes = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes of a row to which passes are padded, ascending; wider ones are not."""
        return self.lm.widths

    def length(self, row: int) -> int:
        """Number of committed tokens in the cache."""
        return len(self.map.rows[row].slots)

    def prefill(
        self, taps: Taps | None = None, chunk: int | None = None, inputs: Inputs | None = None
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Run the prompts, one batch row a group; returns logits `[rows, vocab]` of each last token, and features.

        Rows are padded on the right, where causal attention never looks. chunk: at most so many tokens a pass.
        inputs: `[rows, longest prompt, ...]` each.
        """
        groups = [rows.group for rows in self.map.rows]
        prompts = [self._prompts[groups.index(group)] for group in self.batch]
        longest = max(map(len, prompts))
        # Not the pad token: GPT-2 would warn that a mask is missing, which causal attention does not need here.
        padded = [p + (p[-1:] or [0]) * (longest - len(p)) for p in prompts]
        ids = torch.tensor(padded, dtype=torch.int64, device=self.lm.device)
        first = [groups.index(group) for group in self.batch]  # a row of each batch row
        logits: dict[int, Tensor] = {}
        pieces: dict[str, list[Tensor]] = {}
        step = chunk or longest
        held = self.length(0)  # tokens of an earlier turn that are in the cache already
        for start in range(held, longest, step):
            end = min(start + step, longest)
            ending = [(i, len(p) - 1 - start) for i, p in enumerate(prompts) if start < len(p) <= end]
            wanted = sorted({at for _, at in ending})
            beside = inputs and {name: values[first, start:end] for name, values in inputs.items()}
            out, got = self._run_dense(ids[:, start:end], start, taps, wanted or [0], beside)
            for name, values in got.items():
                pieces.setdefault(name, []).append(values)
            for index, at in ending:
                logits[index] = out[index, wanted.index(at)]
        for row, prompt in enumerate(self._prompts):
            self.map.fill(row, len(prompt))
        where = [self.batch.index(group) for group in groups]
        features = {name: torch.cat(parts, 1) for name, parts in pieces.items()}
        by_row = {
            name: [values[at, : len(self._prompts[row])] for row, at in enumerate(where)]
            for name, values in features.items()
        }
        nothing = torch.zeros_like(out[0, 0])  # for a row without a prompt, which a draft head may have
        return torch.stack([logits.get(at, nothing) for at in where]), by_row

    def extend(
        self,
        rows: Sequence[int],
        tokens: Tensor,
        parents: Sequence[Sequence[int]],
        taps: Taps | None = None,
        inputs: Inputs | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """ONE pass over new pending nodes; returns logits `[rows, width, vocab]` and features alike.

        tokens: `[rows, width]`. parents: for each row its nodes' parents, indices of the row's pending nodes or -1
        for its last committed token; rows with fewer nodes than `width` are padded.
        """
        width = tokens.shape[1]
        self._wide = self._wide or width > 1
        alone = width == 1 and len(tokens) == 1 and inputs is None
        paired = alone and self._pays_in_pairs(self.map.extent, tokens.device)
        # What is written for the second of a pair lies behind all that is held, or where padding goes.
        given = tokens.expand(-1, 2) if paired else tokens
        if (start := self._common_start(rows, parents, width)) is not None:
            for row, above in zip(rows, parents, strict=True):
                self.map.add(row, above)
            out, features = self._run_dense(given, start, taps, None, inputs)
        else:
            out, features = self._run_slots(rows, given, parents, taps, inputs)
        return out[:, :width], {name: values[:, :width] for name, values in features.items()}

    def _pays_in_pairs(self, held: int, device: torch.device) -> bool:
        """Whether a pass over two nodes takes less time than one over one.

        On a CPU attention in bfloat16 multiplies matrices for two queries and goes by vectors for one: over 1400 tokens
        a pass of SmolLM2 takes 38 ms for one and 28 for two. Over eight rows it takes 54 and 112, so this is for one
        row. Only after wide passes, since without drafts the bits are to be those of plain decoding.
        """
        usual = device.type == "cpu" and self.lm.dtype == torch.bfloat16 and not self.lm.widths
        # The last token may stand at the end of the model's context, behind which there is no position for another.
        return usual and self._wide and _PAIRS_FROM <= held < self._longest - 2

    def commit(self, row: int, path: Sequence[int]) -> None:
        """Keep the pending nodes of `path` (indices, root first) as the row's next tokens; free the others."""
        self.map.commit(row, path)

    def follow(self, sources: Mapping[int, int]) -> None:
        """Let rows go on from the committed tokens of other rows of their group: masks change, no key is copied."""
        self.map.follow(sources)
        if self._visible is not None:
            device = self._visible.device
            rows, others = host.send([*sources], device), host.send([*sources.values()], device)
            self._visible[rows] = self._visible[others]

    def retire(self, live: Sequence[int]) -> None:
        """Only these rows will be run again: free the slots of the others and drop batch rows without any."""
        alive = set(live)
        for row in range(len(self.map.rows)):
            if row not in alive and self.map.rows[row].slots:
                self.map.release(row)
        if self.lm.widths:
            return  # passes are compiled for a number of batch rows, which therefore stay
        groups = {self.map.rows[row].group for row in live}
        kept = [index for index, group in enumerate(self.batch) if group in groups]
        if kept and len(kept) < len(self.batch):
            self.cache.select(torch.tensor(kept))
            if self._positions is not None:
                self._positions = self._positions[torch.tensor(kept, device=self._positions.device)]
            for index, group in enumerate(self.batch):
                if index not in kept:
                    del self.map.pools[group]
            self.batch = [self.batch[index] for index in kept]

    def adopt(self, row: int, layers: Sequence[tuple[Tensor, Tensor]], slots: Sequence[int]) -> None:
        """Take a copy of keys and values `[1, heads, length, size]` a layer as this row's first tokens.

        slots: which places of `length` hold the row's tokens, in order; the others were padding.
        """
        index = torch.tensor(slots)
        self.reserve(len(slots) + self.lm.spare)
        self.cache.plan = Write(0, None, len(slots), self.capacity, 0)
        for number, (keys, values) in enumerate(layers):
            self.cache.update(keys[:, :, index.to(keys.device)], values[:, :, index.to(values.device)], number)
        self.map.fill(row, len(slots))

    def export(self, row: int, padding: int = 0) -> Any:
        """A DynamicCache of the row's committed tokens, in order, that plain `generate` can continue from.

        padding: entries in front that a mask hides, for tokens of the caller's that were never run.
        """
        rows = self.map.rows[row]
        batch = self.batch.index(rows.group)
        layers = []
        for layer in self.cache.layers:
            at = torch.tensor(rows.slots, device=layer.keys.device)
            held = (values[batch : batch + 1, :, at] for values in (layer.keys, layer.values))
            keys, values = (torch.nn.functional.pad(one, (0, 0, padding, 0)) for one in held)
            layers.append((keys, values))
        return filled_cache(self.lm.model.config.get_text_config(decoder=True), layers)

    @property
    def nbytes(self) -> int:
        """Bytes held by keys and values."""
        return self.cache.nbytes

    def common_end(self, rows: Sequence[int]) -> int | None:
        """The slot after the last one of every row, where `rows` are all batch rows, each alone and dense; or None."""
        if len(rows) != len(self.batch):
            return None
        end = self.map.rows[rows[0]].tail
        for row, group in zip(rows, self.batch, strict=True):
            held = self.map.rows[row]
            if held.group != group or held.tail != end or not held.runs_on or self.map.pools[group].fresh != end:
                return None
        return end

    def _common_start(self, rows: Sequence[int], parents: Sequence[Sequence[int]], width: int) -> int | None:
        """The slot at which all batch rows would append the same run of tokens as a chain, or None."""
        if (start := self.common_end(rows)) is not None:
            for row, above in zip(rows, parents, strict=True):
                first = len(self.map.rows[row].pending) - 1
                if len(above) != width or tuple(above) != tuple(range(first, first + width)):
                    return None
        return start

    def _run_dense(
        self,
        tokens: Tensor,
        start: int,
        taps: Taps | None,
        keep: Sequence[int] | None,
        inputs: Inputs | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A pass whose tokens take slots `start`, `start + 1`, ... in every batch row."""
        width = tokens.shape[1]
        self.reserve(start + width)
        self.cache.plan = Write(start, None, start + width, self.capacity, start)
        device = tokens.device
        if self._steps.shape[1] < start + width:
            self._steps = torch.arange(self.capacity, device=device)[None]
        query = self._steps[:, start : start + width]
        windows, longest = self.lm.spec.windows, start + width - 1
        mask: Any = None
        if start == 0 or not self.lm.spec.takes_mask:
            pass  # the model makes the mask that plain decoding uses, or its kernel needs none: same bits
        elif any(size is not None and longest >= size for size in windows.values()):
            key = self._steps[:, : start + width]
            visible = key[:, None, :] <= query[:, :, None]
            mask = build(visible, query, key, windows, self.lm.dtype, longest)
        elif width > _TEMPLATES:  # a chunk of a prompt: its mask is large, and needed once
            key = self._steps[:, : start + width]
            mask = build(key[:, None, :] <= query[:, :, None], query, key, windows, self.lm.dtype, longest)
        elif width > 1:
            mask = self._templates.get(width, start, self.lm.dtype, device)
            mask = mask if len(windows) == 1 else dict.fromkeys(windows, mask)
        query = query if len(tokens) == 1 else query.expand(len(tokens), -1)
        return self._forward(tokens, query, mask, taps, keep, inputs)

    def _run_slots(
        self,
        rows: Sequence[int],
        tokens: Tensor,
        parents: Sequence[Sequence[int]],
        taps: Taps | None,
        inputs: Inputs | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A pass whose nodes go to whatever slots are free."""
        device, width = tokens.device, tokens.shape[1]
        taken = [self.map.add(row, above) for row, above in zip(rows, parents, strict=True)]
        extent = self.map.extent
        self.reserve(extent + 1)
        slots = [new + [self.trash] * (width - len(new)) for new in taken]
        positions = [[0] * width for _ in rows]
        seen: list[int] = []
        for place, (row, new) in enumerate(zip(rows, taken, strict=True)):
            held = self.map.rows[row]
            first = len(held.pending) - len(new)
            for i in range(len(new)):
                positions[place][i] = len(held.slots) + held.pending[first + i].depth
                base = (place * width + i) * extent
                seen.extend(base + ancestor for ancestor in held.ancestors(first + i))
        key, committed = self.tables(rows, device)
        visible = committed[host.send(rows, device), None, :extent].repeat(1, width, 1)  # [rows, width, extent]
        visible.view(-1)[host.send(seen, device)] = True
        packing = Packing(self.batch, [self.map.rows[row].group for row in rows], device)
        return self.scattered(
            packing, tokens, host.send(slots, device), host.send(positions, device), visible, key,
            max(map(max, positions)), taps, inputs,
        )  # fmt: skip

    @property
    def trash(self) -> int:
        """The slot to which padding writes, and which nothing ever sees."""
        return self.capacity - 1

    def scattered(
        self,
        packing: Packing,
        tokens: Tensor,
        slots: Tensor,
        positions: Tensor,
        visible: Tensor,
        key: Tensor,
        longest: int,
        taps: Taps | None,
        inputs: Inputs | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A pass over nodes that stand in `slots` at `positions`, `[rows, width]` each, packed by group.

        visible: `[rows, width, extent]` bool, the slots that each node sees. key: `[batch, capacity]`, positions of
        slots, brought up to date. longest: the largest position.
        """
        extent = visible.shape[-1]
        visible = packing.pack(visible)
        visible[:, :, 0] |= ~visible.any(-1)  # padding sees something, or its softmax would be NaN
        at, query = packing.pack(slots, self.trash), packing.pack(positions)
        key.scatter_(1, at, query)
        mask = build(visible, query, key[:, :extent], self.lm.spec.windows, self.lm.dtype, longest)
        seen = max(len(rows.slots) for rows in self.map.rows)
        self.cache.plan = Write(None, at, extent, self.capacity, seen)
        beside = {name: packing.pack(values) for name, values in (inputs or {}).items()}
        out, features = self._forward(packing.pack(tokens), query, mask, taps, None, beside)
        return packing.unpack(out), {name: packing.unpack(values) for name, values in features.items()}

    def run_on(self, tokens: Tensor, start: int, query: Tensor, mask: Any, inputs: Inputs | None) -> Tensor:
        """A pass whose nodes take slots `start`, `start + 1`, ... in every batch row, under a mask of the caller."""
        self.reserve(start + tokens.shape[1])
        self.cache.plan = Write(start, None, start + tokens.shape[1], self.capacity, start)
        return self._forward(tokens, query, mask, None, None, inputs)[0]

    def tables(self, rows: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions `[batch, capacity]` and visible committed slots `[rows, capacity]`, brought up to date."""
        count, capacity = len(self.map.rows), self.capacity
        if self._visible is None or self._visible.shape[1] < capacity:
            self._visible = torch.zeros(count, capacity, dtype=torch.bool, device=device)
            self._positions = torch.zeros(len(self.batch), capacity, dtype=torch.int64, device=device)
            for held in self.map.rows:
                held.marked = 0
        assert self._positions is not None
        triples: list[tuple[int, int, int, int]] = []
        for row in rows:
            held = self.map.rows[row]
            at = self.batch.index(held.group)
            triples.extend((row, at, held.slots[i], i) for i in range(held.marked, len(held.slots)))
            triples.extend((-1, at, node.slot, len(held.slots) + node.depth) for node in held.pending)
            held.marked = len(held.slots)
        if triples:
            table = torch.tensor(triples, device=device)
            self._positions[table[:, 1], table[:, 2]] = table[:, 3]
            pairs = [(row, slot) for row, _, slot, _ in triples if row >= 0]
            committed = torch.tensor(pairs, dtype=torch.int64, device=device).view(-1, 2)
            self._visible[committed[:, 0], committed[:, 1]] = True
        return self._positions, self._visible

    def reserve(self, slots: int) -> None:
        if slots <= self.capacity:
            return
        wanted = max(slots + self.lm.spare, self.capacity + self.capacity // 4)
        limit = self._expected + self.lm.spare
        self.capacity = min(wanted, limit) if slots <= limit else wanted

    def _forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Any,
        taps: Taps | None,
        keep: Sequence[int] | None,
        inputs: Inputs | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.passes += 1
        kept = None if keep is None else torch.tensor(keep, device=tokens.device)
        out, features = self.lm.run(tokens, positions, mask, self.cache, taps or _NO_TAPS, kept, inputs)
        # Layers may lie on several devices; what leaves here lies on one.
        out = out.to(tokens.device)
        features = {name: values.to(tokens.device) for name, values in features.items()}
        if kept is not None and out.shape[1] != len(kept):
            out = out[:, kept]
        return out, features


def _slots(prompts: Sequence[Sequence[int]], groups: Sequence[int], longest: int) -> int:
    """Slots that a batch row will need for rows of at most `longest` tokens, which share their group's prompt."""
    most = 0
    for prompt, members in Counter(zip(map(len, prompts), groups, strict=True)).items():
        most = max(most, prompt[0] + members * max(0, longest - prompt[0]))
    return most
