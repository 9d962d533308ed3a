"""Token recycling: what the target thought likely after a token is guessed where the token comes again."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.core.contracts import Needs
from specdec.core.draft import ANCHOR, Draft
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.growth import worthwhile
from specdec.drafters.successors import Successors
from specdec.drafters.token_recycling_config import TokenRecyclingConfig

_TEXT = 2.0  # weight of a pass over what became text; one over what was rejected weighs 1
_FORGET = 0.95  # weight of the past at each new round
_TRUST = 4.0  # tokens that the chances of successors are worth


Table = dict[int, Successors]
"""A token to what may follow it."""


class TokenRecycling(Drafter):
    """Drafts a tree of the successors that the target found most probable after each token when it came before.

    Every pass gives the k most probable successors of every token in it, also of rejected ones. The table holds for
    each token the k that weighed most in the passes over it, the latest counting most and those that became text
    twice. From the anchor down, the worthiest paths of that table are drafted, by how far passes agreed about each
    token in them. Nodes stand breadth-first.

    The table holds only tokens that were seen: under a kilobyte each, on the host, nothing on the device.
    successors: k. max_nodes, max_depth: limits of the tree; within them the budget's measured cost of nodes decides,
    where there is one. prompt: begin with what follows each token in the prompt. remember: keep the table from row to
    row and call to call.
    Source: Luo et al., arXiv 2408.08696; there, the last pass alone counts, and the tree has one shape for all.
    """

    name = "token-recycling"
    branching = True
    free = True

    def __init__(
        self,
        successors: int = 8,
        max_nodes: int = 60,
        max_depth: int = 8,
        *,
        prompt: bool = True,
        remember: bool = False,
    ) -> None:
        self._config = TokenRecyclingConfig(
            successors=successors, max_nodes=max_nodes, max_depth=max_depth, prompt=prompt, remember=remember
        )
        self.needs = Needs(choices=(f"top:{successors}",))
        self._remembered: dict[int, Table] = {}  # by the size of the vocabulary: another has other tokens

    @property
    def config(self) -> TokenRecyclingConfig:
        return self._config

    @classmethod
    def from_config(cls, config: TokenRecyclingConfig) -> TokenRecycling:
        return cls(**config.model_dump(exclude={"type"}))

    def begin(self, context: Context) -> DraftSession:
        remembered = self._remembered.setdefault(context.vocab_size, {}) if self._config.remember else None
        return _Session(self._config, remembered, context)


class _Session(DraftSession):
    def __init__(self, config: TokenRecyclingConfig, remembered: Table | None, context: Context) -> None:
        self._config, self._name = config, f"top:{config.successors}"
        self._rows = {row.index: _Memory(row, config, remembered) for row in context.rows}
        self._chances: dict[int, list[float]] = {}  # of each row's last draft

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        return [self._draft(row, budget) for row, budget in zip(rows, budgets, strict=True)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._rows[outcome.row.index].learn(outcome, outcome.choices[self._name])

    def confidences(self, row: Row) -> Tensor | None:
        return torch.tensor(self._chances.get(row.index, []), dtype=torch.float64)

    def _draft(self, row: Row, budget: Budget) -> Draft:
        table = self._rows[row.index]
        table.anchor = row.anchor
        nodes, depth = min(budget.nodes, self._config.max_nodes), min(budget.depth, self._config.max_depth)
        if min(nodes, depth) <= 0:
            self._chances[row.index] = []
            return Draft.empty()
        grown = list(table.grow(nodes, depth, row.eos))
        grown = grown[: table.paying([node.chance for node in grown], budget)]
        order = sorted(range(len(grown)), key=lambda node: grown[node].depth)
        place = {ANCHOR: ANCHOR} | {node: at for at, node in enumerate(order)}
        self._chances[row.index] = [min(1.0, table.scale * grown[node].chance) for node in order]
        return Draft.point([grown[node].token for node in order], [place[grown[node].parent] for node in order])


class _Node(NamedTuple):
    """A node of a tree that grows. parent: number of an earlier one, or ANCHOR."""

    parent: int
    token: int
    depth: int
    chance: float  # that the text goes along its path


class _Memory:
    """One row's successors, and how far its drafts have kept what their chances promise."""

    def __init__(self, row: Row, config: TokenRecyclingConfig, remembered: Table | None) -> None:
        self.known: Table = {} if remembered is None else remembered
        self.anchor = row.anchor  # of the pass that will be observed next
        self._most = config.successors
        self._promised = self._kept = 0.0
        self._last: Sequence[float] = ()  # chances of the nodes drafted for that pass, descending
        if config.prompt:
            new: Table = {}
            for token, after in pairwise(row.tokens):
                if token not in self.known:
                    new.setdefault(token, Successors()).look((after,), self._most)
            self.known.update(new)

    @property
    def scale(self) -> float:
        """What has been kept of what the chances promised."""
        return (self._kept + _TRUST) / (self._promised + _TRUST)

    def grow(self, nodes: int, depth: int, ends: Collection[int]) -> Iterator[_Node]:
        """The worthiest nodes for which there is a token, in the order of their chances, parents first."""
        waiting: list[tuple[float, int, int, int, float, list[tuple[int, float]], int]] = []
        first = count()  # of equal ones the shallowest comes first, then the one that was found first

        def wait(parent: int, level: int, above: float, siblings: list[tuple[int, float]], rank: int) -> None:
            if rank < len(siblings):
                heappush(waiting, (-above * siblings[rank][1], level, next(first), parent, above, siblings, rank))

        wait(ANCHOR, 1, 1.0, self._after(self.anchor), 0)
        for number in range(nodes):
            if not waiting:
                return
            chance, level, _, parent, above, siblings, rank = heappop(waiting)
            token = siblings[rank][0]
            yield _Node(parent, token, level, -chance)
            wait(parent, level, above, siblings, rank + 1)
            if level < depth and token not in ends:
                wait(number, level + 1, -chance, self._after(token), 0)

    def _after(self, token: int) -> list[tuple[int, float]]:
        known = self.known.get(token)
        return known.likely() if known is not None else []

    def paying(self, chances: Sequence[float], budget: Budget) -> int:
        """How many of the nodes are worth their time; all of them where nothing was measured."""
        scale = self.scale
        values = [math.log(min(1.0, scale * chance)) if chance else -math.inf for chance in chances]
        best = worthwhile(values, budget, free=True)
        self._last = chances[:best]
        return best

    def learn(self, outcome: Outcome, likely: Sequence[Sequence[int]]) -> None:
        """Take in a pass: the most probable successors of every token in it."""
        if outcome.tokens:
            promised = sum(self._last[: len(outcome.draft)])  # where not all were kept, the likeliest were
            self._promised = _FORGET * self._promised + promised
            self._kept = _FORGET * self._kept + outcome.accepted
        self._last = ()
        text = dict(zip(outcome.nodes, (self.anchor, *outcome.tokens), strict=False))  # whoever drafted it
        for node, token in enumerate(outcome.drafted, start=1):
            if node not in text:
                self._look(token, likely[node], 1.0)
        for node, token in text.items():  # what became text comes last: the latest look weighs most
            self._look(token, likely[node], _TEXT)

    def _look(self, token: int, likely: Sequence[int], weight: float) -> None:
        self.known.setdefault(token, Successors()).look(likely, self._most, weight)


def example(vocab_size: int) -> TokenRecycling:
    """A drafter for checks."""
    return TokenRecycling(min(3, vocab_size))
