"""Honest drafters over tables: every kind of candidate, on chains and trees, drawn from laws that are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from specdec.core.draft import ANCHOR, Candidate, Draft, Kind
from specdec.core.interfaces import StatelessDrafter
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row
from specdec.testing.tabular import Table

Style = Literal["point", "iid", "no-replace", "mixed"]


class TableDrafter(StatelessDrafter):
    """Drafts a full tree of the given fan-outs from a table.

    point: the most likely tokens. iid, no-replace: drawn from the table's law. mixed: one drawn token, then the
    most likely ones, a token proposed both ways being one node with two candidacies.
    fanouts: children a node at each depth; `(1, 1, 1)` is a chain of three.
    """

    name = "table"

    def __init__(self, table: Table, style: Style, fanouts: Sequence[int]) -> None:
        self.table, self.style, self.fanouts = table, style, tuple(fanouts)
        self.branching = max(self.fanouts, default=1) > 1
        self.emits = {
            "point": frozenset({Kind.POINT}),
            "iid": frozenset({Kind.IID}),
            "no-replace": frozenset({Kind.NO_REPLACE}),
            "mixed": frozenset({Kind.IID, Kind.POINT}),
        }[style]

    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        kinds: list[Kind] = []
        repeats: list[Candidate] = []
        laws = {ANCHOR: self._law(tuple(row.tokens))}
        level = [(ANCHOR, tuple(row.tokens))]
        for fanout in self.fanouts[: budget.depth]:
            below = []
            for parent, prefix in level:
                # Decided before the draw, so that what is drawn does not decide whether it is kept.
                wanted = min(fanout, budget.nodes - len(tokens))
                if wanted <= 0:
                    break
                chosen: dict[int, int] = {}
                for token, kind in self._children(laws[parent], wanted, rng):
                    if self.style == "mixed" and token in chosen:
                        repeats.append(Candidate(chosen[token], kind))
                        continue
                    chosen[token] = len(tokens)
                    tokens.append(token)
                    parents.append(parent)
                    kinds.append(kind)
                    node, path = len(tokens) - 1, (*prefix, token)
                    laws[node] = self._law(path)
                    below.append((node, path))
            level = below
        q = None
        if any(kind.sampled for kind in kinds):
            q = torch.stack([laws[node] for node in range(-1, len(tokens))])
        return Draft(tuple(tokens), tuple(parents), tuple(kinds), q, repeats=tuple(repeats))

    def _law(self, prefix: tuple[int, ...]) -> torch.Tensor:
        weights = torch.tensor(self.table(prefix), dtype=torch.float64)
        return weights / weights.sum()

    def _children(self, law: torch.Tensor, fanout: int, rng: Rng) -> list[tuple[int, Kind]]:
        likely = law.argsort(descending=True, stable=True).tolist()
        if self.style == "point":
            return [(token, Kind.POINT) for token in likely[:fanout]]
        if self.style == "iid":
            drawn = rng.categorical(law.expand(fanout, -1)).tolist()
            return [(token, Kind.IID) for token in drawn]
        if self.style == "mixed":
            first = int(rng.categorical(law[None]))
            return [(first, Kind.IID), *((token, Kind.POINT) for token in likely[: fanout - 1])]
        children, left = [], law.clone()
        for _ in range(fanout):
            if left.sum() <= 0:  # everything that q can propose has been proposed
                break
            token = int(rng.categorical(left[None]))
            children.append((token, Kind.NO_REPLACE))
            left[token] = 0.0
        return children
