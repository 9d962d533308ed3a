"""`Suffix`: guess that what followed the longest repeated suffix most often will follow it again."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

from specdec.core.draft import Draft
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row

from specdec_suffix.automaton import SuffixAutomaton
from specdec_suffix.plugin import SuffixConfig
from specdec_suffix.store import Reader, TextStore


class Suffix(Drafter):
    """Drafts a POINT chain from the longest match of the last tokens in prompt, output and past outputs.

    min_match: fewest tokens that must match. max_tokens: most tokens drafted in a round.
    min_share: a token is drafted while the path to it was taken in this share of the counted cases.
    share: search past outputs of this drafter too. store: a file that keeps them, or a `TextStore` that several
        drafters share. store_tokens: most tokens of past outputs that are searched.

    What is drafted from a store depends on what other requests wrote; the text that is generated does not.
    """

    name = "suffix"

    def __init__(
        self,
        *,
        min_match: int = 2,
        max_tokens: int | None = None,
        min_share: float = 0.25,
        share: bool = False,
        store: str | os.PathLike[str] | TextStore | None = None,
        store_tokens: int = 100_000,
    ) -> None:
        path = store.path if isinstance(store, TextStore) else store
        self._config = SuffixConfig(
            min_match=min_match,
            max_tokens=max_tokens,
            min_share=min_share,
            share=share or (path is None and store is not None),
            store=None if path is None else os.fspath(path),
            store_tokens=store.limit if isinstance(store, TextStore) else store_tokens,
        )
        self.store = store if isinstance(store, TextStore) else None
        if self.store is None and (share or path is not None):
            self.store = TextStore(path, store_tokens)

    @property
    def config(self) -> SuffixConfig:
        return self._config

    @classmethod
    def from_config(cls, config: SuffixConfig) -> Suffix:
        return cls(**config.model_dump(exclude={"type"}))

    def begin(self, context: Context) -> DraftSession:
        return _Session(self._config, self.store, context)


class _Session(DraftSession):
    def __init__(self, config: SuffixConfig, store: TextStore | None, context: Context) -> None:
        self._config, self._vocab = config, context.vocab_size
        self._texts = {row.index: _Text(store) for row in context.rows}
        self._store, self._unfinished = store, list(context.rows)
        if store is not None:
            # A session hears of no row that ends in the last round: the engine then drops it.
            weakref.finalize(self, _keep, store, self._unfinished)

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        if self._store is not None and len(rows) < len(self._unfinished):
            _keep(self._store, self._unfinished)
        return [self._draft(row, budget) for row, budget in zip(rows, budgets, strict=True)]

    def _draft(self, row: Row, budget: Budget) -> Draft:
        text = self._texts[row.index]
        text.update(row.tokens)
        room = min(budget.depth, budget.nodes)
        if self._config.max_tokens is not None:
            room = min(room, self._config.max_tokens)
        guess = text.follow(room, self._config.min_match, self._config.min_share) if room > 0 else []
        for place, token in enumerate(guess):
            if token >= self._vocab:  # a store that another tokenizer wrote
                guess = guess[:place]
                break
            if token in row.eos:  # what followed an end in a text cannot follow it here
                guess = guess[: place + 1]
                break
        return Draft.point(guess) if guess else Draft.empty()


class _Text:
    """One row's text so far, and where it stands in the store."""

    def __init__(self, store: TextStore | None) -> None:
        self._own = SuffixAutomaton()
        self._past: Reader | None = None if store is None else store.open()

    def update(self, tokens: Sequence[int]) -> None:
        new = tokens[len(self._own) :]
        self._own.extend(new)
        if self._past is not None:
            self._past.read(new)

    def follow(self, most: int, shortest: int, least: float) -> list[int]:
        """The continuation of the longer match; of equals, that of the row's own text."""
        match = self._own.longest_repeat()
        past = self._past
        if past is not None and past.matched > max(match.length, shortest - 1) and (found := past.follow(most, least)):
            return found
        return self._own.follow(match, most, least) if match.length >= shortest else []


def _keep(store: TextStore, rows: list[Row]) -> None:
    """Move the outputs of rows that have ended to the store."""
    ended = [row for row in rows if row.done]
    rows[:] = [row for row in rows if not row.done]
    for row in ended:
        store.add(row.new_tokens)


def example(vocab_size: int) -> Suffix:
    """A drafter for checks."""
    return Suffix(min_match=1)
