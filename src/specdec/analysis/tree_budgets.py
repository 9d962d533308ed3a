"""What a dynamic tree and the best fixed one have accepted of the same drafts, by number of nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specdec.analysis.calibration import depths_of

__all__ = ["Place", "TreeBudgets", "by_confidence", "places"]

Place = tuple[int, ...]
"""Where a node stands in its tree: its rank by confidence among its siblings, and theirs above it, root first."""


@dataclass
class TreeBudgets:
    """Accepted nodes of many large trees: how they stood in the order of confidence, and at which places.

    A dynamic tree of n nodes is the n of largest confidence; a fixed one has the same places in every round. The best
    fixed one is chosen with hindsight, from these very rounds, so none that is fixed beforehand has more accepted.
    Both are cut from the trees that were drafted: what those do not hold counts for neither.
    """

    drafts: int = 0
    orders: list[int] = field(default_factory=list)
    places: Counter[Place] = field(default_factory=Counter)

    def enter(self, parents: Sequence[int], path: Iterable[int], confidences: Sequence[float]) -> None:
        """One draft after its verdict; arguments as of `judged_nodes`."""
        where, order = places(parents, confidences), by_confidence(parents, confidences)
        self.drafts += 1
        for node in (node - 1 for node in path if node):
            self.orders.append(order[node])
            self.places[where[node]] += 1

    def dynamic(self, nodes: int) -> float:
        """Accepted tokens a round of the dynamic tree of so many nodes."""
        return sum(order < nodes for order in self.orders) / max(1, self.drafts)

    def fixed(self, nodes: int) -> float:
        """Those of the best fixed tree: a place is right no more often than the one above, so the best are a tree."""
        return sum(count for _, count in self.places.most_common(nodes)) / max(1, self.drafts)

    def figures(self, budgets: Iterable[int]) -> dict[str, object]:
        """As JSON."""
        return {
            "rounds": self.drafts,
            "accepted": {
                str(nodes): {"dynamic": round(self.dynamic(nodes), 4), "best_fixed": round(self.fixed(nodes), 4)}
                for nodes in budgets
            },
        }


def places(parents: Sequence[int], confidences: Sequence[float]) -> list[Place]:
    """The place of each node; parents: -1 or an earlier node. The earlier sibling is first among equals."""
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)
    rank: dict[int, int] = {}
    for siblings in children.values():
        for at, node in enumerate(sorted(siblings, key=lambda node: -confidences[node])):
            rank[node] = at
    found: list[Place] = []
    for node, parent in enumerate(parents):
        found.append((*(found[parent] if parent >= 0 else ()), rank[node]))
    return found


def by_confidence(parents: Sequence[int], confidences: Sequence[float]) -> list[int]:
    """How many nodes go before each in a tree that is cut by confidence; the shallower goes first among equals.

    A node's confidence is that of its whole path, so no node goes before the one above it.
    """
    depths = depths_of(parents)
    order = [0] * len(parents)
    for at, node in enumerate(sorted(range(len(parents)), key=lambda node: (-confidences[node], depths[node], node))):
        order[node] = at
    return order
