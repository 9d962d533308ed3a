"""Drafters whose drafts are given: forests of any shape, scratch among them, for checks of verifiers and targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec.core.draft import Draft
from specdec.core.interfaces import StatelessDrafter
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row
from specdec.testing.tabular import Table

__all__ = ["Forests"]


class Forests(StatelessDrafter):
    """POINT forests of one shape, the tokens of each node being the most likely ones of a table.

    parents: the shape; nodes below the budget's depth are left out. scratch: nodes that are scratch.
    """

    name = "forests"

    def __init__(self, table: Table, parents: Sequence[int], scratch: Sequence[int] = ()) -> None:
        self.table, self.parents, self.scratch = table, tuple(parents), frozenset(scratch)
        self.branching = self.parents != tuple(range(-1, len(self.parents) - 1))

    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        kept = [node for node, depth in enumerate(depths) if depth <= budget.depth][: budget.nodes]
        number = {node: place for place, node in enumerate(kept)}
        paths: dict[int, tuple[int, ...]] = {-1: tuple(row.tokens)}
        children: dict[int, int] = {}
        tokens = []
        for node in kept:
            parent = self.parents[node]
            order = likely(self.table, paths[parent])
            place = children.get(parent, 0)
            children[parent] = place + 1
            token = order[place % len(order)]
            paths[node] = (*paths[parent], token)
            tokens.append(token)
        return Draft.point(
            tokens,
            [number.get(self.parents[node], -1) for node in kept],
            scratch=[number[node] for node in kept if node in self.scratch],
        )


def likely(table: Callable[[tuple[int, ...]], Sequence[float]], prefix: tuple[int, ...]) -> list[int]:
    """Tokens by falling weight, the lowest id first among equals."""
    weights = table(prefix)
    return sorted(range(len(weights)), key=lambda token: (-weights[token], token))
