"""Parts with one fault each, as they were found in published code or are easily written."""

from __future__ import annotations

import copy
import random
import sys
from dataclasses import replace

import torch

from specdec.core.contracts import Exactness
from specdec.core.draft import Draft, Kind
from specdec.core.forest import Forest
from specdec.core.interfaces import Drafter, DraftSession, Scheduler, ScheduleSession, StatelessDrafter, Verifier
from specdec.core.sampling import Laws
from specdec.core.state import Budget, Scores
from specdec.core.verdict import RowVerdict, Verdict
from specdec.testing.honest import TableDrafter
from specdec.testing.tabular import TabularTarget
from specdec.verifiers.block import Block
from specdec.verifiers.greedy import Greedy
from specdec.verifiers.token import Token
from specdec.verifiers.walk import Walk


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


# --- verifiers ------------------------------------------------------------------------------------------


class SwappedResidual(Token):
    """The positive part of q - p instead of p - q: the textbook rule for one candidate, done by hand."""

    branching = False
    judges = frozenset({Kind.IID})

    def verify(self, forest, laws, rng):
        return Verifier.verify(self, forest, laws, rng)

    def judge(self, draft, law, rng):
        for node, token in enumerate(draft.tokens):
            p, q = law(node), draft.q[node].double()
            if not bool(rng.bernoulli((p[token] / q[token]).clamp(max=1.0)[None])):
                return RowVerdict(node, int(rng.categorical(self.left(p, q)[None])))
        return RowVerdict(len(draft), int(rng.categorical(law(len(draft))[None])))

    def left(self, p, q):
        rest = (q - p).clamp(min=0.0)
        return rest if rest.sum() > 0 else p


class ResidualIsTheTarget(SwappedResidual):
    """A rejected candidate is followed by a draw from p itself."""

    def left(self, p, q):
        return p


class HonestByHand(SwappedResidual):
    """The same rule without its fault."""

    def left(self, p, q):
        rest = (p - q).clamp(min=0.0)
        return rest if rest.sum() > 0 else p


class AcceptsTheEdge(Token):
    """`u <= p / q` with a uniform of its own: a u of 0 accepts what has probability 0."""

    branching = False
    judges = frozenset({Kind.IID})

    def verify(self, forest, laws, rng):
        return Verifier.verify(self, forest, laws, rng)

    def judge(self, draft, law, rng):
        for node, token in enumerate(draft.tokens):
            p, q = law(node), draft.q[node].double()
            u = float(rng.categorical(torch.ones(1, 4))[0]) / 4
            if not u <= float(p[token] / q[token]):
                rest = (p - q).clamp(min=0.0)
                return RowVerdict(node, int(rng.categorical((rest if rest.sum() > 0 else p)[None])))
        return RowVerdict(len(draft), int(rng.categorical(law(len(draft))[None])))


class UncappedBlock(Block):
    """The whole block is judged by the uncapped ratio."""

    def _weights(self, forest, p, q):
        w, x = super()._weights(forest, p, q), forest.tokens[:, 1:, None]
        ratio = (p[:, :-1].gather(2, x) / q[:, :-1].gather(2, x).clamp(min=1e-300))[..., 0].prod(-1)
        return torch.cat([w[:, :-1], ratio.clamp(max=1.0)[:, None]], 1)


class WrongBlockResidual(Block):
    """Block acceptance with the residual of the token rule: p - q instead of w p - q."""

    def _after(self, w, p, q):
        right, wrong = super()._after(w, p, q), super()._after(torch.ones_like(w), p, q)
        return wrong * right.sum(-1, keepdim=True) / wrong.sum(-1, keepdim=True).clamp(min=1e-12)


class LastWins(Greedy):
    """Of equal logits the last."""

    def _all_at_once(self, forest, laws):
        choice = laws.vocab_size - 1 - laws.logits.flip(-1).max(-1).indices
        return Verdict(torch.zeros_like(choice[:, 0]), choice[:, 0])


class AcceptsScratch(Walk):
    """Follows whatever node has the token, judged or not."""

    def verify(self, forest, laws, rng):
        shapes = tuple(draft_without_scratch(draft).topology for draft in forest.drafts)
        return super().verify(replace(forest, shapes=shapes), Laws(Scores(laws.logits), forest), rng)


def draft_without_scratch(draft):
    return replace(draft, scratch=frozenset())


class ContinuesAfterEos(Walk):
    """Draws on below a token that ended the row."""

    def verify(self, forest, laws, rng):
        class Deaf(Forest):
            def ends(self):
                return None

        deaf = copy.copy(forest)
        object.__setattr__(deaf, "__class__", Deaf)
        return super().verify(deaf, laws, rng)


class NoNodePrefix(Walk):
    """Processors see the row's text, not the node's path."""

    def verify(self, forest, laws, rng):
        class Blind(Laws):
            def processed(self, node, depth, active=None):
                return super().processed(node, 0, active)

        return super().verify(forest, Blind(Scores(laws.logits), forest), rng)


class LeafOfTheLongest(Greedy):
    """Falls off its row: the last node of the pass, padding or not."""

    def verify(self, forest, laws, rng):
        verdict = super().verify(forest, laws, rng)
        return Verdict(torch.full_like(verdict.leaf, forest.width - 1), verdict.next_token)


class RowsShareACoin(Walk):
    """One draw for all rows, keyed by the first one's position."""

    def verify(self, forest, laws, rng):
        total = sum(row.position for row in forest.rows)
        return super().verify(forest, laws, rng.fold(total))


class SilentlyApproximate(Greedy):
    """Approximate, and does not say how."""

    exactness = Exactness.APPROXIMATE


class ReturnsNone(Walk):
    """Forgets its return."""

    def verify(self, forest, laws, rng):
        super().verify(forest, laws, rng)


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
