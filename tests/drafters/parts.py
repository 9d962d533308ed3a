"""Drafters for tests of drafters made of drafters: scripted ones, and ones that write down what they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row


class Scripted(Drafter):
    """Drafts what `say(row, budget)` returns, a Draft, and keeps all budgets and outcomes it was given."""

    name = "scripted"

    def __init__(
        self, say: Callable[[Row, Budget], Draft], branching: bool = False, needs: Needs | None = None
    ) -> None:
        self.say, self.branching, self.needs = say, branching, needs or Needs()
        self.budgets: list[dict[int, Budget]] = []
        self.outcomes: list[Outcome] = []
        self.followed: list[dict[int, int]] = []

    def begin(self, context: Context) -> DraftSession:
        return _Session(self)


class _Session(DraftSession):
    def __init__(self, drafter: Scripted) -> None:
        self._drafter = drafter

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        self._drafter.budgets.append({row.index: budget for row, budget in zip(rows, budgets, strict=True)})
        return [
            self._drafter.say(row, budget) if min(budget.depth, budget.nodes) else Draft.empty()
            for row, budget in zip(rows, budgets, strict=True)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._drafter.outcomes += outcomes

    def follow(self, ancestors: Mapping[int, int]) -> None:
        self._drafter.followed.append(dict(ancestors))


def ahead(texts: Sequence[Sequence[int]], right: int = 10**6, step: int = 1) -> Callable[[Row, Budget], Draft]:
    """A chain of what `texts` says of the row, its first `right` tokens as they are and the others off by `step`."""

    def say(row: Row, budget: Budget) -> Draft:
        text = texts[row.index][len(row.tokens) :][: min(budget.depth, budget.nodes)]
        return Draft.point([token if at < right else (token + step) % 64 for at, token in enumerate(text)])

    return say


def full_tree(fanout: int) -> Callable[[Row, Budget], Draft]:
    """A tree of `fanout` children a node that takes the whole budget, its tokens hardly ever right."""

    def say(row: Row, budget: Budget) -> Draft:
        parents: list[int] = []
        depths: list[int] = []
        tokens: list[int] = []
        level = [-1]
        for depth in range(1, budget.depth + 1):
            below = []
            for parent in level:
                for child in range(fanout):
                    if len(parents) < budget.nodes:
                        parents.append(parent)
                        depths.append(depth)
                        tokens.append((row.anchor + 20 + child) % 64)
                        below.append(len(parents) - 1)
            level = below
        return Draft.point(tokens, parents)

    return say


def texts_of(out: Any, mask: torch.Tensor | None = None) -> list[list[int]]:
    """Each row's text without padding."""
    pads = [0] * len(out) if mask is None else (mask == 0).sum(1).tolist()
    return [row[pad:].tolist() for row, pad in zip(out, pads, strict=True)]
