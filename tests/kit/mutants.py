"""Drafters with one fault each, as they were found in published code or are easily written."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import torch

from specdec.core.draft import Draft, Kind
from specdec.core.interfaces import Drafter, DraftSession, StatelessDrafter
from specdec.core.state import Budget
from specdec.drafters.prompt_lookup import PromptLookup
from specdec.testing.honest import TableDrafter


def table(vocab):
    """A law of full support for every prefix, no two alike."""

    def law(prefix):
        mixed = 7
        for token in prefix:
            mixed = (mixed * 29 + token + 1) % 9973
        return [1 + (mixed * (token + 3) // 5) % 7 for token in range(vocab)]

    return law


def pairs(rows, budgets):
    return zip(rows, budgets, strict=True)


# --- drafters -------------------------------------------------------------------------------------------


class Point(StatelessDrafter):
    """Honest to begin with: the likeliest tokens of a table."""

    name = "point"

    def __init__(self, vocab):
        self.vocab, self.table = vocab, table(vocab)

    def guess(self, row, budget):
        tokens = []
        while len(tokens) < min(budget.depth, budget.nodes):
            law = self.table((*row.tokens, *tokens))
            tokens.append(law.index(max(law)))
        return tokens

    def propose(self, row, budget, rng, context):
        return Draft.point(self.guess(row, budget))


class Sampled(TableDrafter):
    """Honest to begin with: a chain drawn from a table."""

    fan = (1,) * 6
    kind = "iid"

    def __init__(self, vocab):
        super().__init__(table(vocab), self.kind, self.fan)


class ArgmaxSaidIid(Sampled):
    """Argmax tokens, declared as samples of the law they are the argmax of."""

    def _children(self, law, fanout, rng):
        return [(int(law.argmax()), Kind.IID)]


class DroppedAfterLook(Sampled):
    """Drafting stops before a token of low confidence, instead of after it."""

    def _children(self, law, fanout, rng):
        return [child for child in super()._children(law, fanout, rng) if law[child[0]] > 0.3]


class WrongQ(Sampled):
    """Reports the law before its own temperature."""

    def propose(self, row, budget, rng, context):
        draft = super().propose(row, budget, rng, context)
        if not len(draft):
            return draft
        warped = draft.q.pow(2.0)
        return replace(draft, q=warped / warped.sum(-1, keepdim=True))


class QOfTheWrongPosition(Sampled):
    """The law stands one node too low."""

    def propose(self, row, budget, rng, context):
        draft = super().propose(row, budget, rng, context)
        return replace(draft, q=draft.q.roll(-1, 0)) if len(draft) else draft


class SortedSiblings(Sampled):
    """Siblings drawn without replacement, then sorted by probability."""

    fan, kind = (2, 2), "no-replace"

    def _children(self, law, fanout, rng):
        return sorted(super()._children(law, fanout, rng), key=lambda child: -float(law[child[0]]))


class PrunedSiblings(Sampled):
    """Of two independent siblings the less likely is dropped after it was drawn."""

    fan = (2, 1)

    def _children(self, law, fanout, rng):
        return [max(super()._children(law, fanout, rng), key=lambda child: float(law[child[0]]))]


class LeaksBetweenGenerations(Point):
    """Remembers the last text on the drafter instead of in a session."""

    def __init__(self, vocab):
        super().__init__(vocab)
        self.seen = 0

    def propose(self, row, budget, rng, context):
        self.seen += 1
        return Draft.point([(token + self.seen) % self.vocab for token in self.guess(row, budget)])


class IgnoresBudget(Point):
    """Always three tokens."""

    def propose(self, row, budget, rng, context):
        return Draft.point([0, 1, 0])


class IgnoresEmptyBudget(Point):
    """Takes a budget of nothing for one of one."""

    def propose(self, row, budget, rng, context):
        return Draft.point(self.guess(row, Budget(max(1, budget.depth), max(1, budget.nodes))))


class MutatesRow(Point):
    """Writes its guess into the row, past the lock."""

    def propose(self, row, budget, rng, context):
        list.append(row.tokens, 0)
        return Draft.empty()


class CountsRounds(Point):
    """Moves the row's round counter on."""

    def propose(self, row, budget, rng, context):
        row.rounds += 1
        return Draft.empty()


class IdOutOfRange(Point):
    """The id after the last."""

    def propose(self, row, budget, rng, context):
        return Draft.point([self.vocab] * min(1, budget.depth, budget.nodes))


class ChildBeforeParent(Point):
    """Leaves first."""

    branching = True

    def propose(self, row, budget, rng, context):
        return Draft.point([0, 1], [1, -1]) if budget.depth > 1 and budget.nodes > 1 else Draft.empty()


class UndeclaredTree(Point):
    """Branches, and declares chains."""

    def propose(self, row, budget, rng, context):
        return Draft.point([0, 1], [-1, -1]) if budget.depth and budget.nodes > 1 else Draft.empty()


class UndeclaredKind(Sampled):
    """Samples, and declares POINT."""

    def __init__(self, vocab):
        super().__init__(vocab)
        self.emits = frozenset({Kind.POINT})


class UnseededRandomness(Point):
    """Draws from torch's global generator."""

    def propose(self, row, budget, rng, context):
        return Draft.point([int(torch.rand(()) * self.vocab) for _ in self.guess(row, budget)])


class PythonRandomness(Point):
    """Draws from Python's global generator."""

    def propose(self, row, budget, rng, context):
        return Draft.point([random.randrange(self.vocab) for _ in self.guess(row, budget)])


def verify_stream():
    """The stream that the engine keeps for the verifier, taken off the stack."""
    frame = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if hasattr(owner, "verify_rng"):
            return owner.verify_rng
        frame = frame.f_back
    raise LookupError("no engine is running")


class SharesTheVerifiersStream(Point):
    """Draws its guess with the noise of the target's own token."""

    def propose(self, row, budget, rng, context):
        if not min(budget.depth, budget.nodes):
            return Draft.empty()
        law = torch.tensor([self.table(tuple(row.tokens))], dtype=torch.float64)
        key = (row.copy, row.position + 1)
        return Draft.point([int(verify_stream().fold(1).categorical(law, at=[key]))])


class RowsMixedUp(Drafter):
    """Gives each row the draft of its neighbour."""

    name = "mixed-up"

    def __init__(self, vocab):
        self.inner = Point(vocab)

    def begin(self, context):
        class Session(DraftSession):
            def propose(session, rows, budgets, rng):
                drafts = [self.inner.propose(row, budget, rng, context) for row, budget in pairs(rows, budgets)]
                return [*drafts[1:], *drafts[:1]]

        return Session()


class ByPlaceInBatch(Drafter):
    """Keeps what it learns by the row's place among the live rows, not by the row."""

    name = "by-place"

    def __init__(self, vocab):
        pass

    def begin(self, context):
        class Session(DraftSession):
            def __init__(session):
                session.seen = {}

            def propose(session, rows, budgets, rng):
                drafts = []
                for place, (row, budget) in enumerate(pairs(rows, budgets)):
                    text = session.seen.setdefault(place, list(row.tokens))
                    room = min(budget.depth, budget.nodes)
                    drafts.append(Draft.point(text[:room]))
                return drafts

        return Session()


class BreaksWhenLeft(Drafter):
    """Refuses to begin where the generation before did not end."""

    name = "locks"

    def __init__(self, vocab):
        self.inner, self.open = Point(vocab), 0

    def begin(self, context):
        if self.open > 0:
            raise RuntimeError("a generation is open")
        self.open = len(context.rows)

        class Session(DraftSession):
            def propose(session, rows, budgets, rng):
                drafts = [self.inner.propose(row, budget, rng, context) for row, budget in pairs(rows, budgets)]
                self.open = sum(row.room > 2 for row in rows)
                return drafts

        return Session()


class ReturnsNoList(Drafter):
    """One draft, bare, instead of one a row."""

    name = "no-list"

    def __init__(self, vocab):
        pass

    def begin(self, context):
        class Session(DraftSession):
            def propose(session, rows, budgets, rng):
                return Draft.empty()

        return Session()


class Hangs(Point):
    """Never answers."""

    def propose(self, row, budget, rng, context):
        while True:
            pass


class HalfPrecisionQ(Sampled):
    """Draws in float64 and reports the law in bfloat16."""

    def propose(self, row, budget, rng, context):
        draft = super().propose(row, budget, rng, context)
        return replace(draft, q=draft.q.bfloat16()) if len(draft) else draft


class UnnormalisedQ(Sampled):
    """Reports weights instead of probabilities."""

    def propose(self, row, budget, rng, context):
        draft = super().propose(row, budget, rng, context)
        return replace(draft, q=draft.q * 3) if len(draft) else draft


class SharedNoise(Sampled):
    """Every token of a draft is drawn with the noise of the first."""

    def propose(self, row, budget, rng, context):
        class OneKey:
            def categorical(self, p, at=None):
                return rng.categorical(p, at=[(row.rounds,)] * len(p))

        return super().propose(row, budget, OneKey(), context)


class ForgetsAnOption(PromptLookup):
    """Builds itself from its config without one of the options."""

    def __init__(self, vocab=0, max_ngram=2):
        super().__init__(max_ngram=max_ngram)

    @classmethod
    def from_config(cls, config):
        return cls(max_ngram=3)


class ForgetsEndedRows(Drafter):
    """Keeps something for each row and throws it away when the row ends, for good."""

    name = "forgets"
    emits = frozenset({Kind.IID})

    def __init__(self, vocab):
        self.inner = Sampled(vocab)

    def begin(self, context):
        kept = {row.index: len(row.tokens) for row in context.rows}

        class Session(DraftSession):
            def propose(session, rows, budgets, rng):
                for index in kept.keys() - {row.index for row in rows}:
                    del kept[index]
                return [
                    self.inner.propose(row, budget, rng.fold(row.copy, row.rounds, kept[row.index]), context)
                    for row, budget in pairs(rows, budgets)
                ]

        return Session()
