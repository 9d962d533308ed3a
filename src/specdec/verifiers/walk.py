"""Walk: draw the target's own token, follow it while it is in the tree."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.core.draft import Kind
from specdec.core.forest import Forest
from specdec.core.interfaces import Verifier
from specdec.core.rng import Rng
from specdec.core.sampling import Laws
from specdec.core.verdict import Verdict
from specdec.verifiers.descent import follow
from specdec.verifiers.walk_config import WalkConfig

_STREAM = 1


class Walk(Verifier):
    """Exact for any candidates that do not depend on its draws, and optimal for them: a node is reached with
    exactly the probability that the target's own text passes it, which no exact verifier can exceed.

    The token of a position is drawn with noise keyed by (seed, copy, position), so the text is the same with
    speculation on or off, with any POINT drafter, alone or in a batch.
    """

    name = "walk"
    judges = frozenset({Kind.POINT})
    branching = True
    draws_by_position = True

    @property
    def config(self) -> WalkConfig:
        return WalkConfig()

    @classmethod
    def from_config(cls, config: WalkConfig) -> Walk:
        return cls()

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        stream = rng.fold(_STREAM)

        def draw(node: Tensor, depth: int, alive: Tensor) -> Tensor:
            p = only(laws.p(node, depth, alive), alive)
            return stream.categorical(p, at=[(row.copy, row.position + 1 + depth) for row in forest.rows])

        return follow(forest, draw)

    def decided(self, forest: Forest, laws: Laws, rng: Rng) -> Tensor:
        """`[rows, width]` int64: the draw at each node; the most probable token at scratch, where none is ever made.

        A look at noise that later rounds draw with. It cannot bias the text, which follows from laws and noise alone
        whatever is drafted.
        """
        if any(row.sampling.strict for row in forest.rows):
            return laws.likely  # a grammar must not see prefixes that the text cannot reach
        judged, likely = forest.reachable, laws.likely
        p = only(laws.p_everywhere(judged).flatten(0, 1), judged.flatten())
        keys = [
            (row.copy, row.position + 1 + depth)
            for row, shape in zip(forest.rows, forest.shapes, strict=True)
            for depth in (*shape.depths, *[0] * (forest.width - len(shape.depths)))
        ]
        drawn = rng.fold(_STREAM).categorical(p, at=keys, ahead=True)
        return torch.where(judged, drawn.view_as(likely), likely)


def only(p: Tensor, active: Tensor) -> Tensor:
    """p `[rows, vocab]` with the law of rows that are not `active` `[rows]` replaced by a certainty."""
    certain = p.new_zeros(p.shape[-1])
    certain[0] = 1.0
    return p.where(active[:, None], certain)


def example(vocab_size: int) -> Walk:
    """A verifier for checks."""
    return Walk()
