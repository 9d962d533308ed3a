"""A generation whose passes all have one shape, so that the bits of a token do not depend on what was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.core import host
from specdec.targets.cached_lm import CachedLM, Inputs
from specdec.targets.cached_session import CachedSession
from specdec.targets.compat import min_dtype
from specdec.targets.kv import Write
from specdec.targets.masks import additive, build
from specdec.targets.taps import Taps

_ROUND = 16  # the extent is a multiple of it: kernels read masks in pieces of this many
_BLOCKS = 1024  # shapes of drafts that are remembered


class FixedSession(CachedSession):
    """Passes of one width over one extent: every row, finished ones too, writes its nodes at its own next slots.

    width: nodes of a row in every pass but that over the prompts; missing ones are padding, which sees the committed
    tokens and itself and which nobody sees. A node at place i lies in slot i after the last committed one, so of a
    pass only a run of nodes 0, 1, ..., each below the one before, may be committed.
    """

    def __init__(self, lm: CachedLM, prompts: Sequence[Sequence[int]], expected: int, width: int) -> None:
        # Rows of one prompt cannot share slots here, as the token of a position must lie in its own slot.
        super().__init__(lm, prompts, range(len(prompts)), expected)
        self.width = width
        self._extent = -(-(expected + width) // _ROUND) * _ROUND
        self.capacity = self._extent  # from the start: strides are part of a pass's shape
        self._mask: Tensor | None = None  # [rows, 1, width, extent]
        self._shown = [0] * len(prompts)  # leading slots that the mask shows to all nodes of a row
        self._blocks: dict[tuple[int, ...], tuple[Tensor, list[int]]] = {}

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width,)

    def extend(
        self,
        rows: Sequence[int],
        tokens: Tensor,
        parents: Sequence[Sequence[int]],
        taps: Taps | None = None,
        inputs: Inputs | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if inputs:
            raise ValueError("passes of a fixed width are those of a target, which reads tokens alone")
        count, device, all_rows = tokens.shape[1], tokens.device, len(self._prompts)
        if count > self.width:
            raise ValueError(f"a pass of {count} nodes a row, but its width is fixed at {self.width}")
        above: list[Sequence[int]] = [()] * all_rows
        for row, given in zip(rows, parents, strict=True):
            self.map.add(row, given)
            above[row] = given
        starts = [len(held.slots) for held in self.map.rows]
        where = host.send(rows, device)
        ids = torch.zeros(all_rows, self.width, dtype=torch.int64, device=device)
        ids[where, :count] = tokens
        positions: list[list[int]] = []
        mask = self._start_mask(device)
        for row, start in enumerate(starts):
            block, depths = self._block(tuple(above[row]), device)
            positions.append([start + depth for depth in depths])
            mask[row, :, :, self._shown[row] : start] = 0.0
            mask[row, :, :, start : start + self.width] = block
            self._shown[row] = start
        query = host.send(positions, device)  # [rows, width]
        one = starts[0] if len(set(starts)) == 1 else None
        slots = host.send(starts, device)[:, None] + torch.arange(self.width, device=device)  # [rows, width]
        self.cache.plan = Write(one, None if one is not None else slots, self._extent, self.capacity, max(starts))
        masks = self._by_layer_type(mask, query, slots, max(map(max, positions)))
        logits, features = self._forward(ids, query, masks, taps, None)
        return logits[where, :count], {name: values[where, :count] for name, values in features.items()}

    def retire(self, live: Sequence[int]) -> None:
        """Finished rows stay in the batch: leaving it would change the shape of a pass."""

    def _start_mask(self, device: torch.device) -> Tensor:
        """The mask of the last pass, to be brought up to date; it starts with nothing visible."""
        if self._mask is None:
            dtype = self.lm.dtype
            shape = (len(self._prompts), 1, self.width, self._extent)
            self._mask = torch.full(shape, min_dtype(dtype), dtype=dtype, device=device)
        return self._mask

    def _block(self, parents: tuple[int, ...], device: torch.device) -> tuple[Tensor, list[int]]:
        """Which nodes of a row's pass see which, `[width, width]` additive, and the depth of each below the first."""
        if parents not in self._blocks:
            if len(self._blocks) >= _BLOCKS:
                self._blocks.clear()
            visible = torch.eye(self.width, dtype=torch.bool)
            depths = [0] * self.width  # of padding too: a position that the model has
            for node, parent in enumerate(parents):
                if parent >= 0:
                    visible[node] |= visible[parent]
                    depths[node] = depths[parent] + 1
            self._blocks[parents] = additive(visible[None], self.lm.dtype)[0, 0].to(device), depths
        return self._blocks[parents]

    def _by_layer_type(self, mask: Tensor, query: Tensor, slots: Tensor, longest: int) -> Any:
        windows = self.lm.spec.windows
        if all(size is None or longest < size for size in windows.values()):
            return mask if len(windows) == 1 else dict.fromkeys(windows, mask)
        key = torch.arange(self._extent, device=mask.device).repeat(len(mask), 1)  # [rows, extent]
        key.scatter_(1, slots, query)
        return build(mask[:, 0] == 0, query, key, windows, self.lm.dtype, longest)
