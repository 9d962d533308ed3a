"""Merge: the candidates of several drafters in one tree, so that one pass verifies them all."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specdec.core import host
from specdec.core.contracts import validate_ids
from specdec.core.draft import Draft, Kind
from specdec.core.engine import blame
from specdec.core.errors import InvalidDraftError
from specdec.core.interfaces import DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.earnings import Division, Earnings
from specdec.drafters.joint import join
from specdec.drafters.merge_config import MergeConfig
from specdec.drafters.several import Several, SeveralSession
from specdec.drafters.worthiest import worthiest

if TYPE_CHECKING:
    from specdec.core.interfaces import Drafter


class Merge(Several):
    """Puts what its drafters guess into one tree a row: shared prefixes are scored once, each node keeps its kind.

    A round's nodes are divided by measured acceptance, row by row; a drafter that has not earned a node is asked from
    time to time only. Drafters are asked in the order given, and what one leaves of its share goes to the next, so
    those that often have no guess stand first. All of them learn what became of the text.

    Where all of them draft for free and say how sure they are of each node, each is asked for the whole budget, and the
    joint tree is cut to the nodes that are likeliest to become text and worth their time.

    Exact by sequential coupling. A node carries one law, so where two drafters drew candidates under one node, those
    of the later one are declared POINT: that costs acceptance and never the law. Where drafts lie on a GPU and two
    drafters guess for one row, their tokens are read, once a round, to see which prefixes they share.
    Source: speculative sampling over several drafters' candidates, Hu et al., arXiv 2502.18779.
    """

    name = "merge"
    config_class = MergeConfig

    def __init__(self, *drafters: Drafter) -> None:
        super().__init__(*drafters)
        guessing = [drafter for drafter in self.drafters if drafter.drafts]
        self.branching = self.branching or len(guessing) > 1
        if sum(any(kind.sampled for kind in drafter.emits) for drafter in guessing) > 1:
            self.emits = self.emits | {Kind.POINT}

    def begin(self, context: Context) -> DraftSession:
        return _Session(self.drafters, context)


class _Session(SeveralSession):
    def __init__(self, drafters: Sequence[Drafter], context: Context) -> None:
        super().__init__(drafters, context)
        # Of each row by itself: what a row drafts must not depend on the company it is in.
        self._earnings = {row.index: [Earnings() for _ in drafters] for row in context.rows}

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        if all(drafter.free for drafter in self._drafters if drafter.drafts):
            return self._worthiest(rows, budgets, rng)
        branching = [drafter.branching for drafter in self._drafters]
        divisions = [
            Division(budget, self._earnings[row.index], branching) for row, budget in zip(rows, budgets, strict=True)
        ]
        made: list[list[Draft]] = [[] for _ in rows]
        for number in range(len(self._drafters)):
            shares = [division.next(number) for division in divisions]
            for mine, division, draft in zip(made, divisions, self._ask(number, rows, shares, rng), strict=True):
                division.made(number, len(draft))
                mine.append(draft)
        known = self._tokens(rows, made)
        return [self._joint(row, drafts, known) for row, drafts in zip(rows, made, strict=True)]

    def _worthiest(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> list[Draft]:
        """Each drafter's guesses without regard to cost, of which the likeliest are kept."""
        unpriced = [Budget(budget.depth, budget.nodes) for budget in budgets]
        every = [self._ask(number, rows, unpriced, rng) for number in range(len(self._drafters))]
        joint = []
        for row, budget, drafts in zip(rows, budgets, zip(*every, strict=True), strict=True):
            chances = [self._sure(number, row, draft) for number, draft in enumerate(drafts)]
            draft, kept = worthiest(drafts, chances, budget)
            self._made[row.index] = list(kept)
            joint.append(draft)
        return joint

    def _sure(self, number: int, row: Row, draft: Draft) -> list[float]:
        if not len(draft):
            return []
        said, drafter = self._sessions[number].confidences(row), self._drafters[number]
        with blame(drafter, "confidences", row.rounds):
            if said is None or len(said) != len(draft):
                found = "none" if said is None else f"{len(said)}"
                raise InvalidDraftError(
                    f"row {row.index}: a drafter that declares `free` gives a confidence for each node of its draft; "
                    f"expected {len(draft)}, found {found}"
                )
        return [float(chance) for chance in said]

    def follow(self, ancestors: Mapping[int, int]) -> None:
        super().follow(ancestors)
        before = dict(self._earnings)
        self._earnings.update({row: copy.deepcopy(before[ancestor]) for row, ancestor in ancestors.items()})

    def _views(self, outcome: Outcome, made: Sequence[tuple[Draft, Sequence[int]]]) -> list[Outcome]:
        views = super()._views(outcome, made)
        if outcome.tokens:  # else the row stood still
            for earnings, view in zip(self._earnings[outcome.row.index], views, strict=True):
                earnings.observe(view.draft.topology.judged_depth, view.accepted)
        return views

    def _tokens(self, rows: Sequence[Row], made: Sequence[Sequence[Draft]]) -> dict[int, Sequence[int]]:
        """Ids on the host, by the identity of the draft, of all drafts that are to be joined with others."""
        known: dict[int, Sequence[int]] = {}
        waiting: list[Draft] = []
        for drafts in made:
            guesses = [draft for draft in drafts if len(draft)]
            for draft in guesses if len(guesses) > 1 else ():
                if isinstance(draft.tokens, tuple):
                    known[id(draft)] = draft.tokens
                else:
                    waiting.append(draft)
        if waiting:
            read = host.read(*(draft.token_tensor(self._context.device) for draft in waiting))
            known.update({id(draft): [*map(int, ids)] for draft, ids in zip(waiting, read, strict=True)})
            for row, drafts in zip(rows, made, strict=True):
                for drafter, draft in zip(self._drafters, drafts, strict=True):
                    with blame(drafter, "propose", row.rounds):
                        validate_ids(known.get(id(draft), ()), self._context.vocab_size, row.index)
        return known

    def _joint(self, row: Row, drafts: Sequence[Draft], known: dict[int, Sequence[int]]) -> Draft:
        """The row's one draft, with a note of which nodes are whose."""
        guesses = [number for number, draft in enumerate(drafts) if len(draft)]
        nodes: list[Sequence[int]] = [range(1, len(draft) + 1) for draft in drafts]
        joint = drafts[guesses[0]] if guesses else Draft.empty()
        if len(guesses) > 1:
            tokens = [known[id(drafts[number])] for number in guesses]
            joint, places = join([drafts[number] for number in guesses], tokens, self._context.device)
            for number, place in zip(guesses, places, strict=True):
                nodes[number] = place
        self._made[row.index] = list(zip(drafts, nodes, strict=True))
        return joint


def example(vocab_size: int) -> Drafter:
    """A drafter for checks: what followed before, and what a random model says."""
    from specdec.drafters.draft_model import example as draft_model
    from specdec.drafters.prompt_lookup import PromptLookup

    return Merge(PromptLookup(), draft_model(vocab_size))
