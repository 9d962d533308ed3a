"""First: several drafters in order, and in each row the first that has a guess drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec.core.draft import Draft
from specdec.core.interfaces import DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row
from specdec.drafters.first_config import FirstConfig
from specdec.drafters.several import Several, SeveralSession

if TYPE_CHECKING:
    from specdec.core.interfaces import Drafter

_NOTHING = Budget(0, 0)


class First(Several):
    """Asks its drafters in the order given and hands on the first draft that holds a guess, row by row.

    All of them learn what became of the text. Put what is cheap and sure first: a model drafts only in rows where
    nothing before it had a guess. Exact with any drafters, as a draft is handed on as it is.
    """

    name = "first"
    config_class = FirstConfig

    def begin(self, context: Context) -> DraftSession:
        return _Session(self.drafters, context)


class _Session(SeveralSession):
    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        chosen = [Draft.empty()] * len(rows)
        made: list[list[tuple[Draft, Sequence[int]]]] = [[] for _ in rows]
        for number in range(len(self._drafters)):
            left = [_NOTHING if len(draft) else budget for draft, budget in zip(chosen, budgets, strict=True)]
            for at, draft in enumerate(self._ask(number, rows, left, rng)):
                made[at].append((draft, range(1, len(draft) + 1)))
                if len(draft):
                    chosen[at] = draft
        self._made.update({row.index: drafts for row, drafts in zip(rows, made, strict=True)})
        return chosen


def example(vocab_size: int) -> Drafter:
    """A drafter for checks: what followed before, else what a random model says."""
    from specdec.drafters.draft_model import example as draft_model
    from specdec.drafters.prompt_lookup import PromptLookup

    return First(PromptLookup(min_ngram=2), draft_model(vocab_size))
