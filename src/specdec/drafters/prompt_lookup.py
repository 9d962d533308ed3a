"""Prompt lookup: guess that what followed the last few tokens before will follow them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from specdec.core.draft import Draft
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row
from specdec.drafters.prompt_lookup_config import PromptLookupConfig


class PromptLookup(Drafter):
    """Copies the continuation of an earlier occurrence of the last n-gram, the longest n first.

    Needs no model and no training. Strong where the answer repeats the prompt: editing, extracting, summarising.
    Source: Saxena, "Prompt Lookup Decoding", 2023.
    """

    name = "prompt-lookup"

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

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        drafts = []
        for row, budget in zip(rows, budgets, strict=True):
            index = self._indices[row.index]
            index.update(row.tokens)
            room = min(budget.depth, budget.nodes)
            if self._config.max_tokens is not None:
                room = min(room, self._config.max_tokens)
            guess = index.continuation(row.tokens, room)
            for place, token in enumerate(guess):
                if token in row.eos:  # what followed an end in the text cannot follow it here
                    guess = guess[: place + 1]
                    break
            drafts.append(Draft.point(guess) if guess else Draft.empty())
        return drafts


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

    def continuation(self, tokens: Sequence[int], length: int) -> list[int]:
        """Up to `length` tokens that followed the longest known n-gram at the end of `tokens`."""
        if length <= 0:
            return []
        for size, places in self._places.items():
            if size < len(tokens):
                place = places.get(tuple(tokens[-size:]))
                if place is not None:
                    return list(tokens[place : place + length])
        return []


def example(vocab_size: int) -> PromptLookup:
    """A drafter for checks."""
    return PromptLookup()
