"""The shape of a tree that is grown level by level, and the best one for what siblings have been worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from specdec.core.draft import ANCHOR
from specdec.core.state import Budget
from specdec.drafters.growth import worthwhile


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth that have children.

    nodes: numbered as in a draft, ANCHOR for the anchor. children: of each node, in draw order.
    above: the parent of each node, counted among all nodes with children; 0 is the anchor. Empty for the anchor itself.
    """

    nodes: tuple[int, ...] = ()
    children: tuple[tuple[int, ...], ...] = ()
    above: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TreeShape:
    """Parents, listed level by level with siblings together, and what follows from them; built by `tree_shape`.

    opened: nodes with children but for the anchor, in the order in which they are asked for them.
    paths: of each node, the nodes from the anchor's child down to itself; that of ANCHOR, the last one, is empty.
    """

    parents: tuple[int, ...]
    levels: tuple[Level, ...]
    opened: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def depth(self) -> int:
        return len(self.levels)


@lru_cache(maxsize=1024)
def tree_shape(parents: tuple[int, ...]) -> TreeShape:
    """The shape of a tree whose nodes are listed level by level, siblings together; raises ValueError for others."""
    children: dict[int, list[int]] = {}
    paths: list[tuple[int, ...]] = []
    for node, parent in enumerate(parents):
        if not ANCHOR <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; expected an earlier node, or {ANCHOR} for the anchor")
        children.setdefault(parent, []).append(node)
        paths.append((*(paths[parent] if parent != ANCHOR else ()), node))
    levels: list[Level] = []
    asked: list[int] = []
    nodes = [ANCHOR] if parents else []
    while nodes:
        above = tuple(asked.index(parents[node]) for node in nodes if node != ANCHOR)
        levels.append(Level(tuple(nodes), tuple(tuple(children[node]) for node in nodes), above))
        asked += nodes
        nodes = [child for node in nodes for child in children[node] if child in children]
    listed = [node for level in levels for family in level.children for node in family]
    if listed != list(range(len(parents))):
        raise ValueError(f"parents {parents} are not listed level by level with siblings together")
    return TreeShape(parents, tuple(levels), tuple(asked[1:]), (*paths, ()))


def best_shape(fanouts: Sequence[int], shares: Sequence[float], budget: Budget) -> TreeShape:
    """The places most likely to be kept, as many as the budget allows and its costs justify.

    fanouts: most children of a node, by depth. shares: chance that the j-th child drawn at a node is the one kept, if
    the node is; none larger than the one before it, the last one standing for all that follow. A place is worth the
    product of the shares on its path. So no place is worth more than its parent or its elder sibling, and the
    worthiest places always form a tree.
    """
    places = _worthiest(fanouts, shares, budget.nodes, min(budget.depth, len(fanouts)))
    if budget.rate is not None and budget.cost is not None:
        # Depth by depth, what is left of the nodes' worth when a level and its nodes are paid for.
        kept, most = places[:1], -math.inf
        for depth in range(1, 1 + max((len(path) for _, path in places), default=0)):
            within = [place for place in places if len(place[1]) <= depth]
            within = within[: worthwhile([math.log(worth) if worth else -math.inf for worth, _ in within], budget)]
            cost = budget.cost(len(within)) + depth * (budget.step or 0.0)
            if within and (gain := sum(worth for worth, _ in within) - budget.rate * cost) > most:
                kept, most = within, gain
        places = kept
    paths = sorted((path for _, path in places), key=lambda path: (len(path), path))
    number = {path: node for node, path in enumerate(paths)}
    return tree_shape(tuple(number.get(path[:-1], ANCHOR) for path in paths))


def _worthiest(
    fanouts: Sequence[int], shares: Sequence[float], nodes: int, depth: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Places as worth and path, each step of a path being the place among siblings; the worthiest first."""
    chosen: list[tuple[float, tuple[int, ...]]] = []
    heap: list[tuple[float, int, tuple[int, ...]]] = []

    def offer(worth: float, path: tuple[int, ...]) -> None:
        if len(path) <= depth and path[-1] < fanouts[len(path) - 1]:
            heappush(heap, (-worth, len(path), path))  # of equal places the shallower, then the elder

    def share(order: int) -> float:
        return shares[min(order, len(shares) - 1)]

    offer(share(0), (0,))
    while heap and len(chosen) < nodes:
        worth, _, path = heappop(heap)
        chosen.append((-worth, path))
        offer(-worth * share(0), (*path, 0))
        elder = share(path[-1])
        offer(-worth * (share(path[-1] + 1) / elder if elder > 0 else 0.0), (*path[:-1], path[-1] + 1))
    return chosen
