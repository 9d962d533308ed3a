"""The order in which traversal visits a forest: children before their parent, and each level's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Kind, Topology

Place = tuple[int, int]
"""A row and a node of its pass, 0 being the anchor."""


@dataclass(frozen=True, eq=False)
class Turn:
    """The j-th candidates of a level's places; only the first `count` places have that many.

    node: `[count]` int64, node of the candidacy. visit: `[count]` int64, flat number of its visit.
    point, without: `[count]` bool, kinds POINT and NO_REPLACE; `points`, `samples`, `withouts`: whether there are any.
    """

    node: Tensor
    visit: Tensor
    point: Tensor
    without: Tensor
    points: bool
    samples: bool
    withouts: bool

    @property
    def count(self) -> int:
        return len(self.node)

    def of(self, kept: Tensor) -> Turn:
        """The candidates of these places only."""
        node, visit, point, drawn = (part[kept] for part in (self.node, self.visit, self.point, self.without))
        return Turn(node, visit, point, drawn, self.points, self.samples, self.withouts)


@dataclass(frozen=True, eq=False)
class Level:
    """The nodes of one depth at which candidates stand, those with most candidates first.

    places: on the host. row, node: `[places]` int64. own: `[places]` int64, flat number of the node's own visit.
    """

    places: tuple[Place, ...]
    row: Tensor
    node: Tensor
    own: Tensor
    turns: tuple[Turn, ...]

    @property
    def samples(self) -> bool:
        """Whether any candidate was drawn."""
        return any(turn.samples for turn in self.turns)

    def of(self, kept: Sequence[int]) -> Level:
        """These places only, in their order."""
        at = host.send(kept, self.row.device)
        turns = []
        for turn in self.turns:
            if not (count := sum(index < turn.count for index in kept)):
                break
            turns.append(turn.of(at[:count]))
        places = tuple(self.places[index] for index in kept)
        return Level(places, self.row[at], self.node[at], self.own[at], tuple(turns))


@dataclass(frozen=True, eq=False)
class Visits:
    """All visits to a packed forest: one a candidacy, after those to the node's own candidates, and the anchor's last.

    node: `[rows, visits]` int64; shorter rows are padded before the anchor. A further candidacy of a node is a visit
    without the candidates below it, which have been rejected by then.
    """

    node: Tensor
    levels: tuple[Level, ...]


@lru_cache(maxsize=256)
def visits_of(shapes: tuple[Topology, ...], device: torch.device) -> Visits:
    """The visits of a packed forest."""
    orders = [_post_order(shape) for shape in shapes]
    most = max(len(order) for order, _ in orders)
    node = torch.zeros(len(shapes), most, dtype=torch.int64)
    by_depth: dict[int, list[tuple[Place, int, list[int], list[Kind], list[int]]]] = {}
    for row, (shape, (order, numbers)) in enumerate(zip(shapes, orders, strict=True)):
        node[row, : len(order) - 1] = torch.tensor(order[:-1])
        base = row * most
        own = {at: base + number for number, at in reversed(list(enumerate(order)))}  # the first visit to each
        own[0] = base + most - 1
        for parent, candidates in enumerate(shape.candidates):
            if candidates:
                visits = [base + numbers[parent, place] for place in range(len(candidates))]
                nodes, kinds = [c.node for c in candidates], [c.kind for c in candidates]
                by_depth.setdefault(shape.depths[parent], []).append(((row, parent), own[parent], nodes, kinds, visits))
    levels = tuple(_level(by_depth[depth], device) for depth in sorted(by_depth))
    return Visits(node.to(device), levels)


def _level(found: Sequence[tuple[Place, int, list[int], list[Kind], list[int]]], device: torch.device) -> Level:
    found = sorted(found, key=lambda entry: -len(entry[2]))
    turns = []
    for order in range(len(found[0][2])):
        taking = [entry for entry in found if len(entry[2]) > order]
        kinds = [entry[3][order] for entry in taking]
        turns.append(
            Turn(
                host.send([entry[2][order] for entry in taking], device),
                host.send([entry[4][order] for entry in taking], device),
                host.send([kind is Kind.POINT for kind in kinds], device, torch.bool),
                host.send([kind is Kind.NO_REPLACE for kind in kinds], device, torch.bool),
                Kind.POINT in kinds,
                any(kind.sampled for kind in kinds),
                Kind.NO_REPLACE in kinds,
            )
        )
    places = tuple(entry[0] for entry in found)
    row, node = (host.send([place[part] for place in places], device) for part in (0, 1))
    return Level(places, row, node, host.send([entry[1] for entry in found], device), tuple(turns))


def _post_order(shape: Topology) -> tuple[list[int], dict[tuple[int, int], int]]:
    """Visited nodes in order, and the number of each candidacy's visit by parent and place at the parent."""
    order: list[int] = []
    numbers: dict[tuple[int, int], int] = {}
    opened = {0}
    stack = [(0, 0, (0, -1))]  # node, how many of its candidates have been visited, its own candidacy
    while stack:
        node, done, candidacy = stack.pop()
        if done < len(shape.candidates[node]):
            stack.append((node, done + 1, candidacy))
            child = shape.candidates[node][done].node
            first = child not in opened
            opened.add(child)
            stack.append((child, 0 if first else len(shape.candidates[child]), (node, done)))
        else:
            numbers[candidacy] = len(order)
            order.append(node)
    return order, numbers
