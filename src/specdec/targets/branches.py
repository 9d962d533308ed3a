"""Trees grown level by level in a session's cache, while who is whose parent stays on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.core import host
from specdec.targets.cached_lm import Inputs
from specdec.targets.cached_session import CachedSession
from specdec.targets.kv import Pending
from specdec.targets.masks import additive
from specdec.targets.packing import Packing


class Branches:
    """Levels of pending nodes below each row's last committed token; one pass a level, the same width in every row.

    rows: the ones that grow; they may have no pending nodes. widths: nodes of each level that may be run. Slots of
    all levels are taken at once, so that a level costs a mask and a pass.

    The nodes become the rows' pending ones, in level order: commit a path of them, or nothing to drop them all.
    """

    def __init__(self, session: CachedSession, rows: Sequence[int], widths: Sequence[int]) -> None:
        self._session, self._widths, self._level = session, tuple(widths), 0
        held = [session.map.rows[row] for row in rows]
        if any(one.pending for one in held):
            raise ValueError("a row that grows branches has pending nodes; commit or drop them first")
        depths = [level for level, width in enumerate(widths) for _ in range(width)]
        self._start = session.common_end(rows)
        slots = []
        for one in held:
            slots.append(session.map.pools[one.group].take(len(depths)))
            one.pending.extend(Pending(slot, -1, depth) for slot, depth in zip(slots[-1], depths, strict=True))
        self._longest = max(len(one.slots) for one in held) + len(widths) - 1
        if any(size is not None and self._longest >= size for size in session.lm.spec.windows.values()):
            self._start = None  # what a node sees depends on positions
        if self._start is not None:
            return
        device = session.lm.device
        extent = session.map.extent
        session.reserve(extent + 1)
        self._packing = Packing(session.batch, [one.group for one in held], device)
        self._key, visible = session.tables(rows, device)
        self._committed = visible[host.send(list(rows), device), None, :extent]  # [rows, 1, extent]
        self._slots = host.send(slots, device)  # [rows, nodes of all levels]
        self._positions = host.send([[len(one.slots) + depth for depth in depths] for one in held], device)

    def step(self, tokens: Tensor, seen: Tensor, inputs: Inputs | None = None) -> Tensor:
        """The pass over the next level: what the model says at each node, `[rows, width, size]`.

        tokens: `[rows, width]`. seen: `[rows, width, nodes so far]` bool, which nodes of the branches, those of this
        level included, each node sees: its ancestors and itself. inputs: `[rows, width, ...]` each.
        """
        session, (rows, width), level = self._session, tokens.shape, self._level
        before = sum(self._widths[:level])
        self._level += 1
        if (start := self._start) is None:
            visible = self._committed.repeat(1, width, 1)  # [rows, width, extent]
            visible.scatter_(2, self._slots[:, None, : before + width].expand_as(seen), seen)
            slots = self._slots[:, before : before + width]
            positions = self._positions[:, before : before + width]
            return session.scattered(
                self._packing, tokens, slots, positions, visible, self._key, self._longest, None, inputs
            )[0]
        # All rows go on at one slot, and everything before it is visible.
        mask: Tensor | None = None
        if before + width > level + 1:  # else a chain, whose node sees all there is
            block = additive(seen, session.lm.dtype)  # [rows, 1, width, nodes so far]
            mask = torch.cat([block.new_zeros(rows, 1, width, start), block], -1)
        query = torch.full((rows, width), start + level, device=tokens.device)
        return session.run_on(tokens, start + before, query, mask, inputs)
