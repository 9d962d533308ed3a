"""The faults that published verifiers and drafters had, each put into an honest part and caught by enumeration.

A proof that cannot fail proves nothing: every test here runs the check of `test_exact` on a wrong part and asserts
that the law it finds is off.
"""

from __future__ import annotations

import pytest
import torch

from specdec.core.draft import Draft, Kind
from specdec.core.interfaces import StatelessDrafter, Verifier
from specdec.core.rng import TorchRng
from specdec.core.sampling import Laws, Sampling
from specdec.core.verdict import Verdict
from specdec.drafters.none import NoDraft
from specdec.schedulers.fixed import Fixed
from specdec.testing.enumeration import Branches, EnumeratingRng, enumerate_law, total_variation
from specdec.testing.honest import TableDrafter
from specdec.testing.running import generate_tokens
from specdec.testing.tabular import TabularTarget, sequence_law
from specdec.verifiers import token as token_module
from specdec.verifiers.block import Block
from specdec.verifiers.greedy import Greedy
from specdec.verifiers.token import Token
from specdec.verifiers.walk import Walk
from tests.law.tables import RandomTable

pytestmark = pytest.mark.core

PROMPT = (1, 0)
P = RandomTable(((5, 2, 1), (1, 6, 3), (2, 2, 5), (7, 1, 1), (0, 3, 4)))
Q = RandomTable(((1, 3, 4), (4, 2, 2), (3, 5, 0), (1, 1, 6), (2, 1, 1)))


def distance(verifier, drafter, *, p=P, sampling=None, step=None, length=3, vocab=3):
    """Total variation between the law of the real engine with these parts and the target's."""
    target = TabularTarget(p, vocab)
    law = enumerate_law(
        lambda rng: generate_tokens(target, drafter, verifier, Fixed(2, 64), [PROMPT], length, rng, sampling=sampling)[
            0
        ]
    )
    return total_variation(law, sequence_law(step or p, PROMPT, length))


def chain():
    return TableDrafter(Q, "iid", (1, 1))


@pytest.mark.parametrize("rule", [Token, Block])
def test_honest_chain_passes(rule):
    assert distance(rule(), chain()) < 1e-9


@pytest.mark.parametrize("style", ["iid", "no-replace", "point", "mixed"])
def test_honest_siblings_pass(style):
    assert distance(Token(), TableDrafter(Q, style, (2, 1))) < 1e-9


def test_residual_with_p_and_q_exchanged(monkeypatch):
    monkeypatch.setattr(token_module, "residual", lambda p, q: token_module.normalised((q - p).clamp(min=0), p))
    assert distance(Token(), chain()) > 0.01


def test_residual_that_is_the_target_itself(monkeypatch):
    monkeypatch.setattr(token_module, "residual", lambda p, q: p)
    assert distance(Token(), chain()) > 0.01


def test_residual_that_is_not_renormalised(monkeypatch):
    """With a further sibling to judge, an unnormalised residual makes its acceptance too small."""
    monkeypatch.setattr(token_module, "residual", lambda p, q: (p - q).clamp(min=0))
    assert distance(Token(), TableDrafter(Q, "iid", (2,))) > 0.005


def test_acceptance_of_the_reciprocal_ratio(monkeypatch):
    def reciprocal(p, q, x):
        px, qx = p.gather(1, x)[:, 0], q.gather(1, x)[:, 0]
        return torch.where(px > 0, (qx / px).clamp(max=1.0), torch.zeros_like(px))

    monkeypatch.setattr(token_module, "acceptance", reciprocal)
    assert distance(Token(), chain()) > 0.01


def test_a_zero_residual_is_no_division_by_zero():
    """p equal to q up to rounding, and a coin that rejects all the same: the target's law is drawn from."""
    same = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    assert torch.equal(token_module.residual(same, same), same)
    assert torch.equal(token_module.residual(same, same + 1e-17), same)


def test_a_coin_that_is_zero_accepts_no_impossible_token():
    """`u <= p / q` instead of `u < p / q`: with u = 0 it accepts a token of probability zero."""

    class AllZero(TorchRng):
        def _uniform(self, key):
            return 0.0

        def fold(self, *key):
            return AllZero(0)

    class Lenient(AllZero):
        def bernoulli(self, p, at=None):
            return self._uniforms(len(p), at, p.device) <= p

        def fold(self, *key):
            return Lenient(0)

    never, always = RandomTable(((0, 1, 1),)), RandomTable(((1, 0, 0),))

    def text(rng):
        return generate_tokens(
            TabularTarget(never, 3), TableDrafter(always, "iid", (1,)), Token(), Fixed(1), [PROMPT], 3, rng
        )[0]

    assert 0 not in text(AllZero(0))
    assert 0 in text(Lenient(0))


class Uncapped(Block):
    """The published code of hierarchical speculative decoding: the whole block is judged by the uncapped ratio."""

    def _weights(self, forest, p, q):
        w, x = super()._weights(forest, p, q), forest.tokens[:, 1:, None]
        ratio = (p[:, :-1].gather(2, x) / q[:, :-1].gather(2, x))[..., 0].prod(-1)
        return torch.cat([w[:, :-1], ratio.clamp(max=1.0)[:, None]], 1)


def test_block_with_an_uncapped_ratio():
    assert distance(Uncapped(), chain(), length=4) > 0.005


class WrongResidual(Block):
    """Block acceptance with the residual of the token rule: p - q instead of w p - q."""

    def _after(self, w, p, q):
        right, wrong = super()._after(w, p, q), super()._after(torch.ones_like(w), p, q)
        return wrong * right.sum(-1, keepdim=True) / wrong.sum(-1, keepdim=True).clamp(min=1e-12)


def test_block_with_the_residual_of_the_token_rule():
    """Shows where a prefix of weight below 1 is followed by a residual of several tokens."""

    def p(prefix):
        return (40, 60, 0, 0) if len(prefix) % 2 else (45, 35, 10, 10)

    def q(prefix):
        return (50, 50, 0, 0) if len(prefix) % 2 else (5, 25, 35, 35)

    drafter = TableDrafter(q, "iid", (1, 1))
    assert distance(Block(), drafter, p=p, length=4, vocab=4) < 1e-9
    assert distance(WrongResidual(), drafter, p=p, length=4, vocab=4) > 0.005


class ArgmaxSaidIid(TableDrafter):
    """Argmax tokens, declared as samples of the softmax they come from."""

    def _children(self, law, fanout, rng):
        return [(int(law.argmax()), Kind.IID)]


class Sorted(TableDrafter):
    """Siblings drawn without replacement, then sorted by their probability."""

    def _children(self, law, fanout, rng):
        children = super()._children(law, fanout, rng)
        return sorted(children, key=lambda child: -float(law[child[0]]))


class Pruned(TableDrafter):
    """Independent siblings of which the less likely is dropped after it was drawn."""

    def _children(self, law, fanout, rng):
        children = super()._children(law, fanout, rng)
        return [max(children, key=lambda child: float(law[child[0]]))]


class DroppedAfterLook(TableDrafter):
    """Drafting stops before a token of low confidence, instead of after it."""

    def _children(self, law, fanout, rng):
        return [child for child in super()._children(law, fanout, rng) if law[child[0]] > 0.4]


class KeptAfterLook(TableDrafter):
    """Drafting stops after a token of low confidence: a stopping time, and exact."""

    def propose(self, row, budget, rng, context):
        draft = super().propose(row, budget, rng, context)
        first = float(draft.q[0][draft.tokens[0]]) if len(draft) else 1.0
        if first > 0.4 or len(draft) < 2:
            return draft
        return Draft(draft.tokens[:1], draft.parents[:1], draft.kinds[:1], draft.q[:2])


class OtherLaw(TableDrafter):
    """Reports the law before its own temperature: not the one it drew from."""

    def propose(self, row, budget, rng, context):
        draft = super().propose(row, budget, rng, context)
        if not len(draft):
            return draft
        warped = draft.q.pow(2.0)
        return Draft(draft.tokens, draft.parents, draft.kinds, warped / warped.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("drafter", "least"),
    [
        (ArgmaxSaidIid(Q, "iid", (1, 1)), 0.02),
        (Sorted(Q, "no-replace", (2,)), 0.01),
        (Pruned(Q, "iid", (2,)), 0.01),
        (DroppedAfterLook(Q, "iid", (1, 1)), 0.01),
        (OtherLaw(Q, "iid", (1, 1)), 0.01),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TableDrafter) else "",
)
def test_dishonest_drafter(drafter, least):
    assert distance(Token(), drafter) > least


def test_a_stopping_time_that_keeps_its_token_is_exact():
    assert distance(Token(), KeptAfterLook(Q, "iid", (1, 1))) < 1e-9


def test_the_same_content_declared_point_is_exact():
    """What makes POINT the safe default: the pruned sample, declared POINT, keeps the law."""

    class Declared(Pruned):
        def propose(self, row, budget, rng, context):
            draft = super().propose(row, budget, rng, context)
            return Draft.point(draft.tokens, draft.parents)

    drafter = Declared(Q, "iid", (2,))
    drafter.emits = frozenset({Kind.POINT})
    assert distance(Walk(), drafter) < 1e-9


def test_draft_noise_shared_with_the_coins_that_judge():
    """One stream for both: the guess and its acceptance use the same noise, which enumeration reports by its key."""

    class OneStream(EnumeratingRng):
        def fold(self, *key):
            return OneStream(self._branches, self._path, self._used)

    class KeyedChain(TableDrafter):
        def propose(self, row, budget, rng, context):
            if not budget.depth:
                return Draft.empty()
            law = self._law(tuple(row.tokens))
            token = int(rng.categorical(law[None], at=[(row.copy, row.rounds, 0, 0)]))
            return Draft.sampled([token], law[None])

    def run(rng):
        return generate_tokens(TabularTarget(P, 3), KeyedChain(Q, "iid", (1,)), Token(), Fixed(1), [PROMPT], 3, rng)[0]

    assert total_variation(enumerate_law(run), sequence_law(P, PROMPT, 3)) < 1e-9
    branches = Branches()
    branches.start()
    with pytest.raises(AssertionError, match="used twice"):
        while True:
            run(OneStream(branches))
            branches.advance()
            branches.start()


def test_processors_that_are_not_given_the_nodes_own_prefix(monkeypatch):
    def penalty(prefix, scores):
        scores = scores.clone()
        for index in range(len(prefix)):
            scores[index, prefix[index, -1]] -= 2.0
        return scores

    sampling = Sampling((penalty,), elementwise=False, greedy=False)
    target = TabularTarget(P, 3)

    def step(prefix):
        return sampling.apply(torch.tensor([prefix]), target.logits(prefix)[None])[0].softmax(-1).tolist()

    assert distance(Walk(), TableDrafter(Q, "point", (1, 1)), sampling=sampling, step=step) < 1e-9
    honest = Laws.processed
    monkeypatch.setattr(Laws, "processed", lambda self, node, depth, active=None: honest(self, node, 0, active))
    assert distance(Walk(), TableDrafter(Q, "point", (1, 1)), sampling=sampling, step=step, length=4) > 0.01


def test_argmax_that_takes_the_last_of_equal_logits():
    """Two tokens tie everywhere: plain decoding takes the lower id, and so must every rule."""
    tied = RandomTable(((3, 5, 5), (4, 1, 4)))

    def text(verifier, drafter):
        return generate_tokens(
            TabularTarget(tied, 3), drafter, verifier, Fixed(2, 64), [PROMPT], 6, TorchRng(0),
            sampling=Sampling(greedy=True),
        )  # fmt: skip

    plain = text(Walk(), NoDraft())
    assert 2 not in plain[0]
    for verifier in (Greedy(), Walk(), Token(), Block()):
        assert text(verifier, TableDrafter(tied, "point", (1, 1))) == plain

    class LastWins(Greedy):
        def _all_at_once(self, forest, laws):
            flipped = laws.logits.flip(-1).max(-1).indices
            choice = laws.vocab_size - 1 - flipped
            return Verdict(torch.zeros_like(choice[:, 0]), choice[:, 0])

    assert text(LastWins(), NoDraft()) != plain


def test_a_verifier_that_accepts_scratch():
    """Scratch nodes are scored and never judged."""

    class WithScratch(StatelessDrafter):
        name, branching = "with-scratch", True

        def propose(self, row, budget, rng, context):
            if budget.depth < 2:
                return Draft.empty()
            return Draft.point([0, 1, 2], [-1, -1, 1], scratch=[1, 2])

    def kept(verifier):
        from specdec.core.engine import Generation, Parts
        from specdec.core.state import Row

        row = Row(0, list(PROMPT), Sampling(greedy=True), 12)
        parts = Parts(TabularTarget(RandomTable(((0, 1, 0),)), 3), WithScratch(), verifier, Fixed(2, 8))
        generation = Generation(parts, (row,), TorchRng(1), TorchRng(2))
        return sum(len(event.rows[0].path) for event in generation.rounds())

    for verifier in (Greedy(), Walk(), Token()):
        assert kept(verifier) == 0

    class Careless(Greedy):
        def verify(self, forest, laws, rng):
            if forest.width == 1:
                return super().verify(forest, laws, rng)
            best = laws.logits.max(-1).indices
            hit = (forest.tokens[:, 1:] == best[:, :1]).any(-1)
            leaf = torch.where(hit, (forest.tokens[:, 1:] == best[:, :1]).long().argmax(-1) + 1, 0)
            return Verdict(leaf, best.gather(1, leaf[:, None])[:, 0])

    assert kept(Careless()) > 0


def test_a_verifier_that_only_judges_rows_one_by_one_is_enough():
    """The short road: `judge` on one row, here the walk written in six lines, keeps the law too."""
    from specdec.core.verdict import RowVerdict

    class Short(Verifier):
        name = "short"

        def judge(self, draft, law, rng):
            node = 0
            while True:
                token = int(rng.categorical(law(node)[None]))
                below = [n + 1 for n, p in enumerate(draft.parents) if p == node - 1 and draft.tokens[n] == token]
                if not below:
                    return RowVerdict(node, token)
                node = below[0]

    assert distance(Short(), TableDrafter(Q, "point", (1, 1))) < 1e-9
