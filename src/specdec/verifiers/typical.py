"""Typical acceptance: keep what the target finds probable enough. Approximate, and declared so."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.contracts import Exactness
from specdec.core.draft import Kind, Topology
from specdec.core.forest import Forest
from specdec.core.interfaces import Verifier
from specdec.core.rng import Rng
from specdec.core.sampling import Laws, best
from specdec.core.verdict import Verdict
from specdec.verifiers.typical_config import TypicalConfig
from specdec.verifiers.walk import only

_STREAM = 20
_TINY = 1e-5  # added to p inside the logarithm of the entropy, as in the authors' code


class Typical(Verifier):
    """Keeps the longest path on which every token x has p(x) > min(epsilon, delta exp(-H(p))), H being the entropy
    of the target's processed law p; of several such paths the most probable one (Medusa, arXiv 2401.10774, 2.3.1).

    epsilon, delta: thresholds; Medusa's are 0.09 and 0.3. bonus: "draw" draws the token after the path from p,
        "argmax" takes its most probable one, as Medusa's fast mode does.

    The law of the output is not the target's: unlikely tokens are rarer in it, the more the better the drafter
    guesses what is likely. docs/approximate.md has the measured distance. At temperature 0 it is argmax decoding.
    """

    name = "typical"
    exactness = Exactness.APPROXIMATE
    bias_note = (
        "typical acceptance keeps every drafted token that the target finds probable enough, so likely tokens become "
        "more frequent than under the target's law; see docs/approximate.md for how far"
    )
    judges = frozenset(Kind)
    branching = True

    def __init__(self, *, epsilon: float = 0.09, delta: float = 0.3, bonus: Literal["draw", "argmax"] = "draw") -> None:
        self._config = TypicalConfig(epsilon=epsilon, delta=delta, bonus=bonus)

    @property
    def config(self) -> TypicalConfig:
        return self._config

    @classmethod
    def from_config(cls, config: TypicalConfig) -> Typical:
        return cls(epsilon=config.epsilon, delta=config.delta, bonus=config.bonus)

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        tables, rows = forest.tables, laws.rows
        open_ = torch.ones_like(tables.judged) if (ends := forest.ends()) is None else ~ends
        open_[:, 0] = True  # the anchor ended nothing
        kept = torch.zeros_like(tables.judged)  # [rows, width]
        kept[:, 0] = True
        score = torch.zeros(kept.shape, dtype=torch.float64, device=forest.device)  # sum of log p along the path
        for level in _levels(forest.shapes, forest.width, forest.device):
            active = (kept & open_)[level.row, level.node]  # [places]
            if host.known_true(lambda: ~active, forest.device):  # noqa: B023 - asked at once
                break
            p = laws.p_at(level.row, level.node, level.places, active)  # [places, vocab]
            at = level.parent  # [children], place of each child's parent
            token = forest.tokens.view(-1)[level.child]
            px = p[at, token]
            good = active[at] & (px > self._threshold(p)[at])
            kept.view(-1)[level.child] = good
            score.view(-1)[level.child] = score[level.row, level.node][at] + torch.where(good, px, 1.0).log()
        depth = torch.where(kept, tables.depth, -1)
        deepest = depth == depth.amax(-1, keepdim=True)
        leaf = torch.where(deepest, score, -torch.inf).argmax(-1)  # [rows]
        goes_on = open_[rows, leaf]
        law = only(laws.p_anywhere(leaf, goes_on), goes_on)
        if self._config.bonus == "argmax":
            return Verdict(leaf, best(law))
        return Verdict(leaf, rng.fold(_STREAM).categorical(law, at=[(row.copy, row.rounds) for row in forest.rows]))

    def _threshold(self, p: Tensor) -> Tensor:
        """`[places]`: what a token's probability must exceed, for laws p `[places, vocab]`."""
        entropy = -(p * (p + _TINY).log()).sum(-1)
        return (self._config.delta * (-entropy).exp()).clamp(max=self._config.epsilon)


@dataclass(frozen=True, eq=False)
class _Level:
    """Nodes of one depth that have judged children, and these children.

    row, node: `[places]` int64, and places the same on the host. child: `[children]`, places in the flattened
    `[rows, width]`. parent: `[children]`, index into places.
    """

    row: Tensor
    node: Tensor
    places: tuple[tuple[int, int], ...]
    child: Tensor
    parent: Tensor


@lru_cache(maxsize=256)
def _levels(shapes: tuple[Topology, ...], width: int, device: torch.device) -> tuple[_Level, ...]:
    found: dict[int, dict[tuple[int, int], list[int]]] = {}
    for row, shape in enumerate(shapes):
        for node, above in enumerate(shape.parents):
            if node not in shape.scratch:
                place = (row, above + 1)
                found.setdefault(shape.depths[above + 1], {}).setdefault(place, []).append(row * width + node + 1)
    levels = []
    for _, level in sorted(found.items()):
        places = tuple(level)
        levels.append(
            _Level(
                row=host.send([row for row, _ in places], device),
                node=host.send([node for _, node in places], device),
                places=places,
                child=host.send([child for children in level.values() for child in children], device),
                parent=host.send([at for at, children in enumerate(level.values()) for _ in children], device),
            )
        )
    return tuple(levels)


def example(vocab_size: int) -> Typical:
    """A verifier for checks."""
    return Typical()
