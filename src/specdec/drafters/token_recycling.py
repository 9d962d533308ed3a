"""Token recycling: what the target thought likely after a token is guessed where the token comes again."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from specdec.core.contracts import Needs
from specdec.core.draft import ANCHOR, Draft
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.growth import worthwhile
from specdec.drafters.token_recycling_config import TokenRecyclingConfig
from specdec.heads.trees import StaticTree, search

Successors = MutableMapping[int, Sequence[int]]
"""A token to the tokens that may follow it, the likeliest first."""

# Chances that the successor of each rank is the next token, at depth 1, 2, 3 and below if all before were right.
# Counted for SmolLM2-135M on greedy answers of 96 tokens to twelve prompts written for it, and smoothed.
_CHANCES = (
    (0.31, 0.09, 0.035, 0.025, 0.016, 0.014, 0.012, 0.006),
    (0.45, 0.08, 0.060, 0.020, 0.018, 0.012, 0.012, 0.009),
    (0.42, 0.10, 0.060, 0.020, 0.013, 0.010, 0.006, 0.006),
    (0.62, 0.07, 0.030, 0.015, 0.010, 0.010, 0.008, 0.006),
)
_LARGEST = 1024  # nodes of the tree that drafts are cut from
_FORGET = 0.95  # weight of the past at each new round
_TRUST = 4.0  # tokens that the chances above are worth


class TokenRecycling(Drafter):
    """Drafts a tree of the successors that the target found most probable after each token when it came last.

    Every pass gives the k most probable successors of every token in it, also of rejected ones; the last pass over a
    token counts, but one that became text stands over one that did not. From the anchor down, the tree takes its
    tokens from that table: its shape is static, the best for the chance that each rank has at each depth, and where
    the table has no entry the next best node takes the place. Nodes stand breadth-first.

    The table holds only tokens that were seen: a few hundred bytes each, on the host, nothing on the device.
    successors: k. max_nodes, max_depth: limits of the tree; within them the budget's measured cost of nodes decides,
    where there is one. prompt: begin with what follows each token in the prompt, the latest first. remember: keep the
    table from row to row and call to call.
    Source: Luo et al., arXiv 2408.08696.
    """

    name = "token-recycling"
    branching = True

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
        self._remembered: Successors = {}

    @property
    def config(self) -> TokenRecyclingConfig:
        return self._config

    @classmethod
    def from_config(cls, config: TokenRecyclingConfig) -> TokenRecycling:
        return cls(**config.model_dump(exclude={"type"}))

    def begin(self, context: Context) -> DraftSession:
        return _Session(self._config, self._remembered if self._config.remember else None, context)


class _Session(DraftSession):
    def __init__(self, config: TokenRecyclingConfig, remembered: Successors | None, context: Context) -> None:
        self._config, self._name = config, f"top:{config.successors}"
        self._rows = {row.index: _Table(row, config, remembered) for row in context.rows}
        self._tree = _tree(config.successors, config.max_depth)
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
        grown = list(table.grow(self._tree, nodes, depth, row.eos))
        grown = grown[: table.paying([chance for _, _, chance in grown], budget)]
        grown.sort(key=lambda node: len(node[0]))
        self._chances[row.index] = [min(1.0, table.scale * chance) for _, _, chance in grown]
        number = {path: place for place, (path, _, _) in enumerate(grown)}
        parents = [number.get(path[:-1], ANCHOR) for path, _, _ in grown]
        return Draft.point([token for _, token, _ in grown], parents)


class _Table:
    """One row's successors, and how far its drafts have kept what the static chances promise."""

    def __init__(self, row: Row, config: TokenRecyclingConfig, remembered: Successors | None) -> None:
        self.known: Successors = {} if remembered is None else remembered
        self.anchor = row.anchor  # of the pass that will be observed next
        self._promised = self._kept = 0.0
        self._last = 0.0  # promised by the draft of that pass
        if config.prompt:
            followers: dict[int, dict[int, None]] = {}
            for token, after in zip(row.tokens[-2::-1], row.tokens[:0:-1], strict=True):
                followers.setdefault(token, {})[after] = None
            for token, found in followers.items():
                self.known.setdefault(token, tuple(found)[: config.successors])

    @property
    def scale(self) -> float:
        """What has been kept of what the static chances promised."""
        return (self._kept + _TRUST) / (self._promised + _TRUST)

    def grow(
        self, tree: StaticTree, nodes: int, depth: int, ends: Collection[int]
    ) -> Iterator[tuple[tuple[int, ...], int, float]]:
        """Path, token and static chance of the worthiest nodes for which there is a token, parents first."""
        found: dict[tuple[int, ...], Sequence[int]] = {(): self.known.get(self.anchor, ())}
        assert tree.values is not None
        for path, chance in zip(tree.paths, tree.values, strict=True):
            if nodes == 0:
                return
            above = found.get(path[:-1], ())
            if len(path) > depth or path[-1] >= len(above):
                continue
            token = above[path[-1]]
            found[path] = () if token in ends else self.known.get(token, ())
            nodes -= 1
            yield path, token, chance

    def paying(self, chances: Sequence[float], budget: Budget) -> int:
        """How many of the nodes are worth their time; all of them where nothing was measured."""
        scale = self.scale
        best = worthwhile([math.log(min(1.0, scale * chance)) for chance in chances], budget, free=True)
        self._last = sum(chances[:best])
        return best

    def learn(self, outcome: Outcome, likely: Sequence[Sequence[int]]) -> None:
        """Take in a pass: the most probable successors of every token in it."""
        if outcome.tokens:
            self._promised = _FORGET * self._promised + self._last
            self._kept = _FORGET * self._kept + outcome.accepted
        self._last = 0.0
        tokens, kept = (self.anchor, *outcome.drafted), {0, *outcome.path}
        for node in sorted(range(len(tokens)), key=kept.__contains__):  # what became text comes last, and stays
            self.known[tokens[node]] = likely[node]


@lru_cache(maxsize=16)
def _tree(ranks: int, depth: int) -> StaticTree:
    """The worthiest nodes of those ranks, more of them than a draft takes."""
    chances = [_CHANCES[min(level, len(_CHANCES) - 1)] for level in range(depth)]
    # Ranks that were not counted are taken to be rare.
    rows = [[*row[:ranks], *[row[-1] * 0.5] * (ranks - len(row))] for row in chances]
    return search(rows, _LARGEST)


def example(vocab_size: int) -> TokenRecycling:
    """A drafter for checks."""
    return TokenRecycling(min(3, vocab_size))
