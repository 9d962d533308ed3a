"""Drafters that know the true text and mix it with wrong tokens, so that every length of acceptance occurs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from torch import nn

from specdec.core.draft import ANCHOR, Draft
from specdec.core.engine import Generation, Parts
from specdec.core.interfaces import Drafter, StatelessDrafter
from specdec.core.rng import Rng, TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Row
from specdec.schedulers.fixed import Fixed
from specdec.targets.hf import HFTarget
from specdec.verifiers.greedy import Greedy

PROMPTS: tuple[tuple[int, ...], ...] = (
    (3, 5, 7, 11, 13, 2, 9, 17, 40, 41, 33),
    (9, 8, 7),
    (5,),
    (60, 61, 3, 4, 70, 8),
    (1, *range(20, 33)),
)
"""Of different lengths, one token and more than a window among them."""


class Scripted(StatelessDrafter):
    """Drafts the true continuation up to a depth that changes by row and round, wrong tokens beside and below it.

    texts: prompt to the whole true text. branching: trees with wrong siblings before and after the true node, and
    wrong nodes below wrong ones; else chains whose tail is wrong.
    """

    name = "scripted"

    def __init__(self, texts: Mapping[tuple[int, ...], Sequence[int]], branching: bool, seed: int = 0) -> None:
        self.texts, self.branching, self.seed = dict(texts), branching, seed

    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        random_ = random.Random(f"{self.seed} {row.index} {row.rounds}")
        text = self.texts[tuple(row.tokens[: row.prompt_length])]
        ahead = list(text[len(row.tokens) :])
        depth = random_.randint(0, budget.depth)
        right = random_.choice([0, depth, random_.randint(0, depth)])
        tokens: list[int] = []
        parents: list[int] = []

        def add(parent: int, token: int) -> int:
            tokens.append(token)
            parents.append(parent)
            return len(tokens) - 1

        at = ANCHOR
        for level in range(depth):
            true = ahead[level] if level < len(ahead) else 0
            wrong = [(true + shift) % context.vocab_size for shift in random_.sample(range(1, 20), 3)]
            if not self.branching:
                at = add(at, true if level < right else wrong[0])
                continue
            before, after = random_.randint(0, 2), random_.randint(0, 1)
            siblings = [add(at, token) for token in wrong[:before]]
            here = add(at, true) if level < right else None
            siblings += [add(at, token) for token in wrong[before : before + after]]
            for sibling in siblings:
                if level + 1 < depth and random_.random() < 0.5:
                    add(sibling, ahead[level + 1] if level + 1 < len(ahead) else 1)
            if here is None:
                break
            at = here
        return Draft.point(tokens, parents)


def run(
    model: nn.Module,
    drafter: Drafter,
    prompts: Sequence[tuple[int, ...]],
    count: int,
    *,
    groups: Sequence[int] | None = None,
    depth: int = 4,
) -> tuple[list[tuple[int, ...]], Generation]:
    """Greedy new tokens of each prompt through the engine, and the generation that made them."""
    generation = start(model, drafter, prompts, count, groups=groups, depth=depth)
    for _ in generation.rounds():
        pass
    return [tuple(row.new_tokens) for row in generation.rows], generation


def start(
    model: nn.Module,
    drafter: Drafter,
    prompts: Sequence[tuple[int, ...]],
    count: int | Sequence[int],
    *,
    groups: Sequence[int] | None = None,
    depth: int = 4,
) -> Generation:
    """A greedy generation that has not begun; `count` new tokens, for all rows or row by row."""
    counts = [count] * len(prompts) if isinstance(count, int) else list(count)
    numbers = list(range(len(prompts))) if groups is None else list(groups)
    greedy = Sampling(greedy=True)
    rows = tuple(
        Row(
            index, list(prompt), greedy, len(prompt) + counts[index],
            copy=numbers[:index].count(numbers[index]), group=numbers[index],
        )
        for index, prompt in enumerate(prompts)
    )  # fmt: skip
    parts = Parts(HFTarget(model), drafter, Greedy(), Fixed(depth, 64))
    return Generation(parts, rows, TorchRng(0), TorchRng(1))
