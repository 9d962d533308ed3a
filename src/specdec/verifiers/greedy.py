"""Greedy: keep what the target's argmax confirms; the fast path that every exact rule becomes at temperature 0."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.core.contracts import Exactness
from specdec.core.draft import Kind
from specdec.core.forest import Forest
from specdec.core.interfaces import Verifier
from specdec.core.rng import Rng
from specdec.core.sampling import Laws, best
from specdec.core.verdict import Verdict
from specdec.verifiers.descent import follow
from specdec.verifiers.greedy_config import GreedyConfig


class Greedy(Verifier):
    """Equals argmax decoding with any draft. Ties go to the lowest token id, as in plain decoding."""

    name = "greedy"
    exactness = Exactness.EXACT_GREEDY
    judges = frozenset(Kind)
    branching = True
    draws_by_position = True

    @property
    def config(self) -> GreedyConfig:
        return GreedyConfig()

    @classmethod
    def from_config(cls, config: GreedyConfig) -> Greedy:
        return cls()

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        if laws.plain:
            return self._all_at_once(forest, laws)

        def draw(node: Tensor, depth: int, alive: Tensor) -> Tensor:
            return best(laws.processed(node, depth, alive))

        return follow(forest, draw)

    def _all_at_once(self, forest: Forest, laws: Laws) -> Verdict:
        """Without processors the argmax of every node costs one operation, so no level waits for another."""
        choice = laws.likely  # [rows, width]
        if forest.width == 1:
            return Verdict(torch.zeros_like(choice[:, 0]), choice[:, 0])
        tables = forest.tables
        # A node is right if its token is its parent's choice, and kept if all nodes above it are right too.
        right = (forest.tokens == choice.gather(1, tables.parent)) & tables.judged
        kept = right.gather(1, tables.path.flatten(1)).view(tables.path.shape).all(-1)
        leaf = (kept * tables.depth).argmax(-1)  # [rows]; 0 where nothing is kept
        return Verdict(leaf, choice.gather(1, leaf[:, None])[:, 0])

    def decided(self, forest: Forest, laws: Laws, rng: Rng) -> Tensor:
        judged = forest.reachable
        if laws.plain or any(row.sampling.strict for row in forest.rows):
            return laws.likely  # a grammar must not see prefixes that the text cannot reach
        return torch.where(judged, best(laws.p_everywhere(judged)), laws.likely)


def example(vocab_size: int) -> Greedy:
    """A verifier for checks."""
    return Greedy()
