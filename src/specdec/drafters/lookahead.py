"""Lookahead: n-grams that the target's own Jacobi iterations produced, tried where their first token recurs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.errors import WindowNarrowedWarning
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.carry import Carry, up_to_end
from specdec.drafters.fill import Fill, fill_problems, filling
from specdec.drafters.lookahead_config import LookaheadConfig
from specdec.drafters.ngram_pool import NGramPool, trie
from specdec.drafters.window import Window


class Lookahead(Drafter):
    """Guesses what followed the last token before: in the text, or in a window of guesses scored in the same passes.

    form="window": each pass scores, beside the n-grams that are tried, a window of W columns and N - 1 rows of guesses
    as scratch nodes; every column gives an n-gram a pass. The pool keeps for each token the G that came last.
    form="simple": the pool holds what prompt and text say, the latest only; the n-gram stands at the head of a
    Jacobi block, which fills the rest.

    window, ngram, guesses: W, N and G; a pass scores about (W + G)(N - 1) nodes, as far as the scheduler's limit of
    nodes allows: the window is narrowed first. block_size, fill: of the simple form, as in `Jacobi`.

    Where the window would reach past the model's context it is narrowed, with one WindowNarrowedWarning a drafter.
    Source: Fu et al., arXiv 2402.02057.
    """

    name = "lookahead"

    def __init__(
        self,
        window: int = 7,
        ngram: int = 5,
        guesses: int = 7,
        *,
        prompt: bool = False,
        form: Literal["window", "simple"] = "window",
        block_size: int = 5,
        fill: Fill = "last",
    ) -> None:
        self._config = LookaheadConfig(
            window=window,
            ngram=ngram,
            guesses=guesses,
            prompt=prompt,
            form=form,
            block_size=block_size,
            fill=fill,
        )
        self.branching = form == "window"
        self.needs = Needs(choices=("top:1",) if form == "window" else ("decided",))
        self._warned = False

    @property
    def config(self) -> LookaheadConfig:
        return self._config

    @classmethod
    def from_config(cls, config: LookaheadConfig) -> Lookahead:
        return cls(**config.model_dump(exclude={"type"}))

    def problems(self, target: Target, tokenizer: Any = None) -> list[str]:
        return fill_problems(self._config.fill, self.name, target)

    def begin(self, context: Context) -> DraftSession:
        return _WindowSession(self, context) if self._config.form == "window" else _SimpleSession(self._config, context)

    def narrowed(self, reach: int, room: int, limit: int) -> None:
        """Say once that the window reaches `reach` tokens ahead and the context has room for `room` only."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"drafter '{self.name}': window={self._config.window} and ngram={self._config.ngram} look {reach} "
                f"tokens ahead; the model's context of {limit} tokens has room for {room}, so the window is narrowed "
                "near its end",
                WindowNarrowedWarning,
                stacklevel=2,
            )


class _WindowSession(DraftSession):
    """One pool and one window a row, and which nodes of the pass ended the window's columns."""

    def __init__(self, drafter: Lookahead, context: Context) -> None:
        self._drafter, self._config, self._limit = drafter, drafter.config, context.context_length
        config = drafter.config
        self._pools = {row.index: NGramPool(config.ngram - 1, config.guesses) for row in context.rows}
        self._windows = {row.index: Window(config.window, config.ngram) for row in context.rows}
        self._ends: dict[int, list[int]] = {}

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        return [self._draft(row, budget) for row, budget in zip(rows, budgets, strict=True)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            row, ends = outcome.row, self._ends.pop(outcome.row.index, ())
            if not outcome.tokens:
                continue  # the row stood still
            said = [outcome.choices["top:1"][node][0] for node in ends]
            for key, continuation in self._windows[row.index].step(said, len(outcome.tokens), row.eos):
                self._pools[row.index].add(key, continuation)

    def shown(self, row: Row) -> Mapping[str, Any]:
        columns = len(self._ends.get(row.index, ()))
        window = [list(line[:columns]) for line in self._windows[row.index].rows] if columns else []
        return {"window": window, "pool": self._pools[row.index].entries()}

    def _draft(self, row: Row, budget: Budget) -> Draft:
        pool, window = self._pools[row.index], self._windows[row.index]
        pool.read(row.tokens, 0 if self._config.prompt else row.prompt_length - 1)
        if min(budget.depth, budget.nodes) <= 0:
            return Draft.empty()
        reach = self._reach(row, window, budget)
        # What is tried now comes first, but it leaves the window half of a small budget: it is where guesses come from.
        wanted = window.nodes(window.fitting(budget.nodes, reach))
        guesses = [up_to_end(list(ngram), row.eos) for ngram in pool.get(row.anchor)]
        tokens, parents = trie(guesses, budget.depth, budget.nodes - min(wanted, budget.nodes // 2))
        judged = len(tokens)
        columns = window.fitting(budget.nodes - judged, reach)
        ahead, above = window.forest(row.anchor, columns, judged, filling("prompt", row))
        self._ends[row.index] = window.ends(columns, judged)
        return Draft.point(tokens + ahead, parents + above, scratch=range(judged, judged + len(ahead)))

    def _reach(self, row: Row, window: Window, budget: Budget) -> int:
        """How deep the window may lie."""
        reach = max(budget.depth, budget.reach)
        if self._limit is not None and window.depth > (room := max(0, self._limit - 1 - row.position)):
            self._drafter.narrowed(window.depth, room, self._limit)
            reach = min(reach, room)
        return reach


class _SimpleSession(DraftSession):
    """One pool and one Jacobi block a row."""

    def __init__(self, config: LookaheadConfig, context: Context) -> None:
        self._config = config
        self._pools = {row.index: NGramPool(config.ngram - 1, 1) for row in context.rows}
        self._carries = {row.index: Carry() for row in context.rows}

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        drafts = []
        for row, budget in zip(rows, budgets, strict=True):
            pool = self._pools[row.index]
            pool.read(row.tokens)
            count = max(0, min(budget.depth, budget.nodes, self._config.block_size - 1))
            guess = self._carries[row.index].guess(count, filling(self._config.fill, row))
            for ngram in pool.get(row.anchor):
                guess[: len(ngram)] = ngram[:count]
            guess = up_to_end(guess, row.eos)
            drafts.append(Draft.point(guess) if guess else Draft.empty())
        return drafts

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._carries[outcome.row.index].step(outcome)

    def shown(self, row: Row) -> Mapping[str, Any]:
        return {"pool": self._pools[row.index].entries()}


def example(vocab_size: int) -> Lookahead:
    """A drafter for checks."""
    return Lookahead(3, 3, 2, prompt=True)
