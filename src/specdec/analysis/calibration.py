"""Whether a drafter's confidences are what they say, and how often its guesses are right at each place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Calibration", "Judged", "Places", "judged_nodes"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of one node of a draft.

    depth: 1 below the anchor. rank: number of siblings drafted before it. accepted: its token became text.
    open: the text came to its parent, so that it was really a question whether it would go on by this node.
    confidence: the chance that the drafter gave its whole path, None if it gave none; share: the part of it that is
    its own, given its parent.
    """

    depth: int
    rank: int
    accepted: bool
    open: bool
    confidence: float | None = None
    share: float | None = None


def depths_of(parents: Sequence[int]) -> list[int]:
    """Depth of each node, 1 below the anchor; parents: -1 or an earlier node."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def judged_nodes(
    parents: Sequence[int], path: Iterable[int], confidences: Sequence[float] | None = None
) -> list[Judged]:
    """The nodes of a draft after its verdict.

    parents: -1 or an earlier node. path: accepted nodes, numbered as in an outcome (node j of the draft is j + 1).
    confidences: of each node's whole path.
    """
    kept = {node - 1 for node in path}
    depths = depths_of(parents)
    born: dict[int, int] = {}
    found: list[Judged] = []
    for node, parent in enumerate(parents):
        rank = born.get(parent, 0)
        born[parent] = rank + 1
        whole = share = None
        if confidences is not None:
            whole = confidences[node]
            above = 1.0 if parent < 0 else confidences[parent]
            share = min(1.0, whole / above) if above > 0 else 0.0
        found.append(Judged(depths[node], rank, node in kept, parent < 0 or parent in kept, whole, share))
    return found


@dataclass
class Calibration:
    """Confidences in bins of equal width, each with what was accepted of it.

    counts, sums, accepted: of each bin, the number of nodes, the sum of their confidences, and how many were accepted.
    """

    bins: int = 20
    counts: list[int] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    squares: float = 0.0

    def __post_init__(self) -> None:
        for name in ("counts", "sums", "accepted"):
            setattr(self, name, list(getattr(self, name)) or [0] * self.bins)

    def add(self, confidence: float, accepted: bool) -> None:
        """Enter one node; raises ValueError where its confidence is no chance."""
        if not 0.0 <= confidence <= 1.0 + 1e-6:
            raise ValueError(f"a confidence is {confidence}, expected a chance from 0 to 1")
        at = min(int(confidence * self.bins), self.bins - 1)
        self.counts[at] += 1
        self.sums[at] += confidence
        self.accepted[at] += accepted
        self.squares += (confidence - accepted) ** 2

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def error(self) -> float:
        """Expected calibration error: how far accepted share and mean confidence lie apart, averaged over nodes."""
        gaps = (abs(said - kept) for said, kept in zip(self.sums, self.accepted, strict=True))
        return sum(gaps) / max(1, self.total)

    @property
    def bias(self) -> float:
        """Mean confidence less accepted share: above 0 where the drafter trusts itself too much."""
        return (sum(self.sums) - sum(self.accepted)) / max(1, self.total)

    @property
    def brier(self) -> float:
        """Mean square of confidence less outcome; 0 is knowing."""
        return self.squares / max(1, self.total)

    def points(self) -> list[tuple[float, float, int]]:
        """Mean confidence, accepted share and number of nodes of each bin that has any."""
        rows = zip(self.sums, self.accepted, self.counts, strict=True)
        return [(said / count, kept / count, count) for said, kept, count in rows if count]

    def figures(self) -> dict[str, object]:
        """As JSON."""
        points = [
            {"confidence": round(said, 4), "accepted": round(kept, 4), "nodes": count}
            for said, kept, count in self.points()
        ]
        return {
            "nodes": self.total,
            "expected_calibration_error": round(self.error, 4),
            "bias": round(self.bias, 4),
            "brier": round(self.brier, 4),
            "bins": points,
        }


@dataclass
class Places:
    """How often drafts were right, by depth, and by depth and rank.

    drafts: number of drafts. reached: at each depth, drafts whose path came so deep. asked: drafts that had a node
    there below what was accepted before. by_rank: (depth, rank) to open nodes and accepted ones.
    """

    drafts: int = 0
    reached: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    by_rank: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def add(self, nodes: Sequence[Judged]) -> None:
        """Enter one draft."""
        self.drafts += 1
        deepest = max((node.depth for node in nodes), default=0)
        while len(self.reached) < deepest:
            self.reached.append(0)
            self.asked.append(0)
        for depth in {node.depth for node in nodes if node.open}:
            self.asked[depth - 1] += 1
        for node in nodes:
            self.reached[node.depth - 1] += node.accepted
            if node.open:
                held = self.by_rank.setdefault((node.depth, node.rank), [0, 0])
                held[0] += 1
                held[1] += node.accepted

    def figures(self) -> dict[str, object]:
        """As JSON: of all drafts, and of those that were asked, the share accepted at each depth; and by rank."""
        ranks: list[list[float]] = []
        for (depth, rank), (count, kept) in sorted(self.by_rank.items()):
            while len(ranks) < depth:
                ranks.append([])
            while len(ranks[depth - 1]) <= rank:
                ranks[depth - 1].append(0.0)
            ranks[depth - 1][rank] = round(kept / count, 4)
        return {
            "drafts": self.drafts,
            "accepted_by_depth": [round(kept / max(1, self.drafts), 4) for kept in self.reached],
            "accepted_if_asked": [
                round(kept / count, 4) if count else 0.0 for kept, count in zip(self.reached, self.asked, strict=True)
            ],
            "accepted_by_depth_and_rank": ranks,
        }
