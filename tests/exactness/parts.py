"""Drafters that know the text and are wrong in every way, and models whose rounding is played by a hook."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec.core.draft import ANCHOR, Draft
from specdec.core.interfaces import StatelessDrafter
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row


class Mixed(StatelessDrafter):
    """Drafts what `texts` says of its row up to some depth, wrong after that; trees with wrong siblings all around.

    texts: row index to the whole text. Shape, depth and mistakes change from round to round.
    """

    name = "mixed"

    def __init__(self, texts: Sequence[Sequence[int]], branching: bool, seed: int = 0) -> None:
        self.texts, self.branching, self.seed = [list(text) for text in texts], branching, seed
        self.asked: list[tuple[int, ...]] = []

    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        self.asked.append(tuple(row.tokens))
        chance = random.Random(f"{self.seed} {row.index} {len(row.tokens)}")
        ahead = self.texts[row.index][len(row.tokens) :]
        depth = chance.randint(0, budget.depth)
        right = chance.choice([depth, depth, chance.randint(0, depth)])
        tokens: list[int] = []
        parents: list[int] = []

        def add(parent: int, token: int) -> int:
            if len(tokens) < budget.nodes:
                tokens.append(token % context.vocab_size)
                parents.append(parent)
            return len(tokens) - 1

        at = ANCHOR
        for level in range(min(depth, budget.nodes)):
            true = ahead[level] if level < len(ahead) else 0
            here = true if level < right else true + chance.randint(1, 9)
            if not self.branching:
                at = add(at, here)
                continue
            wrong = chance.sample(range(10, 20), 3)
            before, after = chance.choice([(0, 1), (1, 0), (2, 1), (0, 0)])
            siblings = [add(at, true + shift) for shift in wrong[:before]]
            node = add(at, here)
            siblings += [add(at, true + shift) for shift in wrong[before : before + after]]
            for sibling in siblings:
                if level + 1 < depth and chance.random() < 0.4:
                    add(sibling, true)
            if len(tokens) >= budget.nodes:
                break
            at = node
        return Draft.point(tokens, parents)


def noise_where(model: Any, moved: Callable[[torch.Tensor], torch.Tensor], size: float) -> Any:
    """Add noise of `size` to the logits of queries that `moved` names; returns the handle that ends it.

    moved: positions `[batch, width]` of a pass after the prompt to bool `[batch, width]`. The noise of a token at a
    position is always the same.
    """

    def hook(_: Any, __: Any, kwargs: dict[str, Any], output: Any) -> Any:
        positions = kwargs.get("position_ids")
        if positions is None or bool((positions[:, 0] == 0).any()):
            return output  # the pass over the prompts
        logits = output.logits
        token = torch.arange(logits.shape[-1])
        sign = ((token * 7919 + positions[..., None] * 104729) // 13 % 2) * 2 - 1  # [batch, width, vocab]
        output.logits = logits + (sign * moved(positions)[..., None] * size).to(logits.dtype)
        return output

    return model.register_forward_hook(hook, with_kwargs=True)


def off_the_chain(positions: torch.Tensor) -> torch.Tensor:
    """Nodes whose place in the pass is not their depth: those that lie in other slots than their own."""
    return positions != positions[:, :1] + torch.arange(positions.shape[1])
