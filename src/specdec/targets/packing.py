"""Rows of a group side by side on the query axis of one batch row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.core import host


class Packing:
    """Where each row's nodes stand in a pass. batch: the group of each batch row. groups: the group of each row."""

    def __init__(self, batch: Sequence[int], groups: Sequence[int], device: torch.device) -> None:
        members: dict[int, int] = {}
        place = []  # batch row, and which part of its query axis
        for group in groups:
            members[group] = members.get(group, -1) + 1
            place.append((batch.index(group), members[group]))
        self.batch, self.parts = len(batch), 1 + max(members.values())
        self.plain = place == [(at, 0) for at in range(len(batch))]  # a row is a batch row
        self._at = self._part = torch.empty(0)
        if not self.plain:
            self._at, self._part = host.send(place, device).T

    def pack(self, values: Tensor, fill: int = 0) -> Tensor:
        """`[rows, width, ...]` to `[batch, parts * width, ...]`, with `fill` where no row stands."""
        if self.plain:
            return values
        packed = values.new_full((self.batch, self.parts, *values.shape[1:]), fill)
        packed[self._at, self._part] = values
        return packed.flatten(1, 2)

    def unpack(self, values: Tensor) -> Tensor:
        """`[batch, parts * width, ...]` to `[rows, width, ...]`."""
        if self.plain:
            return values
        return values.unflatten(1, (self.parts, -1))[self._at, self._part]
