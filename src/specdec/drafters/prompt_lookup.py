"""Prompt lookup: guess that what followed the last few tokens before will follow them again."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from specdec.core.draft import Draft
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.carry import up_to_end
from specdec.drafters.growth import worthwhile
from specdec.drafters.prompt_lookup_config import PromptLookupConfig

_LONGEST = 4  # matches of so many tokens or more are equally good evidence


class PromptLookup(Drafter):
    """Copies the continuation of an earlier occurrence of the last n-gram, the longest n first.

    Needs no model and no training. Strong where the answer repeats the prompt: editing, extracting, summarising.
    A copy that reaches the end of the text goes on with what it has copied. Where costs are known, it is cut where
    tokens are no longer worth their cost, by how often tokens after so long a match have been right in this text.
    Source: Saxena, "Prompt Lookup Decoding", 2023.
    """

    name = "prompt-lookup"
    free = True

    def __init__(
        self,
        max_ngram: int = 3,
        min_ngram: int = 1,
        match: Literal["recent", "first"] = "recent",
        max_tokens: int | None = None,
    ) -> None:
        self._config = PromptLookupConfig(max_ngram=max_ngram, min_ngram=min_ngram, match=match, max_tokens=max_tokens)

    @property
    def config(self) -> PromptLookupConfig:
        return self._config

    @classmethod
    def from_config(cls, config: PromptLookupConfig) -> PromptLookup:
        return cls(config.max_ngram, config.min_ngram, config.match, config.max_tokens)

    def begin(self, context: Context) -> DraftSession:
        return _Session(self._config, context)


class _Session(DraftSession):
    def __init__(self, config: PromptLookupConfig, context: Context) -> None:
        self._config = config
        self._indices = {row.index: NGramIndex(config) for row in context.rows}
        self._evidence = {row.index: Evidence() for row in context.rows}
        self._values: dict[int, list[float]] = {}  # of the nodes of each row's last draft, logs of their chances

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        return [self._draft(row, budget) for row, budget in zip(rows, budgets, strict=True)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.tokens and not outcome.done:  # what a stop cut away was not rejected
                self._evidence[outcome.row.index].observe(len(outcome.draft), outcome.accepted)

    def follow(self, ancestors: Mapping[int, int]) -> None:
        before = dict(self._evidence)
        self._evidence.update({row: copy.deepcopy(before[ancestor]) for row, ancestor in ancestors.items()})
        for row in ancestors:
            self._indices[row] = NGramIndex(self._config)

    def confidences(self, row: Row) -> Tensor | None:
        return torch.tensor(self._values.get(row.index, []), dtype=torch.float64).exp()

    def _draft(self, row: Row, budget: Budget) -> Draft:
        index, evidence = self._indices[row.index], self._evidence[row.index]
        index.update(row.tokens)
        room = min(budget.depth, budget.nodes)
        if self._config.max_tokens is not None:
            room = min(room, self._config.max_tokens)
        guess, evidence.size = index.continuation(row.tokens, room)
        guess = up_to_end(guess, row.eos)  # what followed an end in the text cannot follow it here
        values = evidence.values(len(guess))
        guess = guess[: worthwhile(values, budget, free=True)]
        self._values[row.index] = values[: len(guess)]
        return Draft.point(guess) if guess else Draft.empty()


@dataclass(eq=False)
class Evidence:
    """How often copied tokens have been right in one text, by how many tokens before them had matched.

    size: tokens that the last n-gram matched; each copied token that is right makes the match one longer.
    """

    size: int = 0
    right: list[float] = field(default_factory=lambda: [1.0] * _LONGEST)
    tried: list[float] = field(default_factory=lambda: [2.0] * _LONGEST)

    def values(self, count: int) -> list[float]:
        """Log of the chance that the first 1, 2, ... `count` tokens after the last match are all right."""
        values, value = [], 0.0
        for place in range(count):
            at = self._at(place)
            value += math.log(self.right[at] / self.tried[at])
            values.append(value)
        return values

    def observe(self, drafted: int, accepted: int) -> None:
        """The first `accepted` of the `drafted` tokens were right, the next, if there is one, was wrong."""
        for place in range(min(drafted, accepted + 1)):
            at = self._at(place)
            self.tried[at] += 1.0
            self.right[at] += place < accepted

    def _at(self, place: int) -> int:
        return min(self.size + place, _LONGEST) - 1


class NGramIndex:
    """Where each n-gram of a growing text was last (or first) followed by something.

    `update` costs time in the number of new tokens, `continuation` in the number of n-gram sizes.
    """

    def __init__(self, config: PromptLookupConfig) -> None:
        self._sizes = range(config.max_ngram, config.min_ngram - 1, -1)
        self._recent = config.match == "recent"
        self._places: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in self._sizes}
        self._seen = 1  # n-grams that end before place `_seen` are indexed

    def update(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that have gained a continuation; `tokens` is the whole text."""
        for end in range(self._seen, len(tokens)):
            for size, places in self._places.items():
                if size <= end:
                    ngram = tuple(tokens[end - size : end])
                    if self._recent:
                        places[ngram] = end
                    else:
                        places.setdefault(ngram, end)
        self._seen = max(self._seen, len(tokens))

    def continuation(self, tokens: Sequence[int], length: int) -> tuple[list[int], int]:
        """`length` tokens that followed the longest known n-gram at the end of `tokens`, and its size; or `[], 0`."""
        if length <= 0:
            return [], 0
        for size, places in self._places.items():
            if size < len(tokens):
                place = places.get(tuple(tokens[-size:]))
                if place is not None:
                    copied = list(tokens[place : place + length])
                    period = len(copied)  # reached the end of the text: what was copied follows itself
                    return [copied[at % period] for at in range(length)], size
        return [], 0


def example(vocab_size: int) -> PromptLookup:
    """A drafter for checks."""
    return PromptLookup()
