"""Schedulers and targets with one fault each."""

from __future__ import annotations

import copy

import torch

from specdec.core.interfaces import Scheduler, ScheduleSession
from specdec.core.state import Budget, Scores
from specdec.testing.tabular import TabularTarget
from specdec.testing.tiny import TinyTarget
from tests.kit.mutants import table, verify_stream

# --- schedulers -----------------------------------------------------------------------------------------


class _Plan(Scheduler):
    """A scheduler made of one function of the round's number and rows."""

    name = "plan"

    def begin(self, context, drafts):
        class Session(ScheduleSession):
            rounds = 0

            def plan(session, rows):
                session.rounds += 1
                return self.budget(session.rounds, rows)

        return Session()


class NegativeBudget(_Plan):
    """Counts down past zero."""

    def budget(self, number, rows):
        return Budget(5 - number, 5 - number)


class UnboundedBudget(_Plan):
    """Doubles for ever."""

    def budget(self, number, rows):
        return Budget(2**number, 2**number)


class FractionalBudget(_Plan):
    """Divides and does not round."""

    def budget(self, number, rows):
        return Budget(number / 2, number)


class RandomBudget(_Plan):
    """Throws dice."""

    def budget(self, number, rows):
        return Budget(int(torch.randint(5, ())), 8)


class RemembersGenerations(_Plan):
    """Counts rounds on the scheduler instead of in the session."""

    total = 0

    def budget(self, number, rows):
        self.total += 1
        return Budget(self.total % 4, 8)


class Peeks(_Plan):
    """Asks the verifier's stream what the target will say, and drafts only where that suits it."""

    def budget(self, number, rows):
        law = torch.ones(1, 3)
        keys = [(row.copy, row.rounds, 0) for row in rows]
        coin = verify_stream().fold(4).bernoulli(torch.full((len(rows),), 0.5), at=keys)
        return Budget(1, 1) if law.sum() and bool(coin[0]) else Budget(0, 0)


class ReturnsInt(_Plan):
    """A depth where a budget is due."""

    def budget(self, number, rows):
        return 3


# --- targets --------------------------------------------------------------------------------------------


class Linked(TabularTarget):
    """A tabular target whose session remembers what was scored, and so can go wrong."""

    def __init__(self, vocab):
        super().__init__(table(vocab), vocab)

    def begin(self, rows, needs):
        inner, target = super().begin(rows, needs), self

        class Session(type(inner)):
            def score(session, forest):
                scores = super().score(forest)
                return Scores(target.scored(session, forest, scores.logits))

            def commit(session, outcomes, live):
                target.committed(session, outcomes)

        return Session(inner._target, inner._rows)

    def scored(self, session, forest, logits):
        return logits

    def committed(self, session, outcomes):
        pass


class SiblingsSeeEachOther(Linked):
    """A causal mask over the nodes of the pass: every node sees all that stand before it."""

    def scored(self, session, forest, logits):
        logits = logits.clone()
        for index, row in enumerate(forest.rows):
            tokens = forest.tokens[index].tolist()
            for node in range(1, 1 + len(forest.drafts[index])):
                logits[index, node] = self.logits((*row.tokens, *tokens[1 : node + 1]))
        return logits


class ForgetsToRollBack(Linked):
    """Rejected tokens stay in front of the anchor."""

    def committed(self, session, outcomes):
        stale = session.__dict__.setdefault("stale", {})
        for outcome in outcomes:
            rejected = [token for node, token in enumerate(outcome.drafted, 1) if node not in outcome.path]
            stale.setdefault(outcome.row.index, []).extend(rejected)

    def scored(self, session, forest, logits):
        stale = session.__dict__.get("stale", {})
        logits = logits.clone()
        for index, (row, shape) in enumerate(zip(forest.rows, forest.shapes, strict=True)):
            tokens = forest.tokens[index].tolist()
            for node, path in enumerate(shape.paths):
                prefix = (*row.tokens[:-1], *stale.get(row.index, []), row.tokens[-1], *(tokens[at] for at in path))
                logits[index, node] = self.logits(prefix)
        return logits


class RowsOfTheBatchSwapped(Linked):
    """Hands the first live row the logits of the last."""

    def scored(self, session, forest, logits):
        return logits.flip(0)


class WrongPositions(Linked):
    """A chain's nodes are scored one place too early."""

    def scored(self, session, forest, logits):
        return logits.roll(1, 1)


class ChangesTheModel(TinyTarget):
    """Switches the cache off in the model's own config."""

    def __init__(self, vocab):
        super().__init__(vocab)
        self.model = copy.deepcopy(self.model)

    def begin(self, rows, needs):
        self.model.config.use_cache = False
        return super().begin(rows, needs)


class ChangesTheWeights(ChangesTheModel):
    """Scales the head a little, in place."""

    def begin(self, rows, needs):
        with torch.inference_mode(False), torch.no_grad():
            self.model.lm_head.weight.mul_(1.0001)
        return TinyTarget.begin(self, rows, needs)


class FeaturesOfTheNextNode(TinyTarget):
    """Delivers each node the feature of its neighbour."""

    def begin(self, rows, needs):
        session = super().begin(rows, needs)
        score = session.score

        def shifted(forest):
            scores = score(forest)
            return Scores(scores.logits, {name: value.roll(1, 1) for name, value in scores.features.items()})

        session.score = shifted
        return session
