"""Following a token down a forest: what every verifier that draws the target's own token first has in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.forest import NONE, Forest
from specdec.core.verdict import Verdict


def follow(forest: Forest, draw: Callable[[Tensor, int, Tensor], Tensor]) -> Verdict:
    """Draw the target's token at each node reached and follow it while it is in the forest.

    draw: `(node [rows], depth, alive [rows]) -> token [rows]`; called once a level, for rows that are alive.
    Below a token that ends its row nothing is drawn.
    """
    rows = torch.arange(len(forest.rows), device=forest.device)
    candidates, ends = forest.candidates, forest.ends()
    node = torch.zeros_like(rows)
    token = torch.zeros_like(rows)
    alive = torch.ones_like(rows, dtype=torch.bool)
    deepest = max(shape.judged_depth for shape in forest.shapes)
    for depth in range(deepest + 1):
        token = torch.where(alive, draw(node, depth, alive), token)
        if depth == deepest:
            break
        children = candidates.node[rows, node]  # [rows, most]
        match = (candidates.kind[rows, node] != NONE) & (forest.tokens.gather(1, children) == token[:, None])
        alive = alive & match.any(-1)
        first = match.long().argmax(-1, keepdim=True)
        node = torch.where(alive, children.gather(1, first)[:, 0], node)
        if ends is not None:
            alive = alive & ~ends[rows, node]
        if host.known_true(lambda: ~alive, forest.device):  # noqa: B023 - asked at once
            break
    return Verdict(node, token)
