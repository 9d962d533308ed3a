"""Verifiers with one fault each."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from specdec.core.contracts import Exactness
from specdec.core.draft import Kind
from specdec.core.forest import Forest
from specdec.core.interfaces import Verifier
from specdec.core.sampling import Laws
from specdec.core.state import Scores
from specdec.core.verdict import RowVerdict, Verdict
from specdec.verifiers.block import Block
from specdec.verifiers.greedy import Greedy
from specdec.verifiers.particles import Particles
from specdec.verifiers.smc import SMC
from specdec.verifiers.token import Token
from specdec.verifiers.traversal import Traversal
from specdec.verifiers.walk import Walk


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


class ForgetsTheWeightAbove(Traversal):
    """Candidates of a tree are let in by p / s, as if nothing above had been in doubt."""

    def _entry(self, turn, x, v, sampled):
        return super()._entry(turn, x, v / v.sum(-1, keepdim=True).clamp(min=1e-300), sampled)


class KeepsTheWeight(Traversal):
    """A node whose candidates are rejected is judged with the weight that it had before them."""

    def _rest(self, turn, x, v, w, sampled):
        rest, _ = super()._rest(turn, x, v, w, sampled)
        return rest * w[:, None] / rest.sum(-1, keepdim=True).clamp(min=1e-300), w


class WrongTraversalResidual(Traversal):
    """Judges a tree from its leaves up, and leaves p - s of a rejected candidate instead of w p - s."""

    def _rest(self, turn, x, v, w, sampled):
        _, left = super()._rest(turn, x, v, w, sampled)
        wrong, _ = super()._rest(turn, x, v / w[:, None].clamp(min=1e-300), torch.ones_like(w), sampled)
        return wrong * left[:, None], left


class SiblingsAsIfReplaced(Traversal):
    """Judges siblings that were drawn without replacement by the law of the first of them."""

    def _without(self, turn, x, q, scale, count):
        return q[:count], scale[:count]


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


class WeightsForgotten(SMC):
    """Drafted tokens leave no weight."""

    def __init__(self):
        super().__init__(2, threshold=0.9)

    def verify(self, forest, laws, rng):
        verdict = super().verify(forest, laws, rng)
        return replace(verdict, log_weights=torch.zeros_like(verdict.log_weights))


class RatiosAlone(WeightsForgotten):
    """p / q for every drafted token, and nothing in place of what q cannot give."""

    judges = frozenset({Kind.IID})

    def verify(self, forest, laws, rng):
        last = forest.tables.length  # [rows]
        p, q = laws.p_along_chains(last), forest.q_along_chains(laws.vocab_size, last)
        x = forest.tokens[:, 1:, None]
        ratio = (p[:, :-1].gather(2, x) / q[:, :-1].gather(2, x).clamp(min=1e-300))[..., 0]
        ratio = torch.where(torch.arange(1, forest.width) <= last[:, None], ratio, 1.0)
        token = rng.categorical(p[laws.rows, last], at=[(row.copy, row.rounds) for row in forest.rows])
        return Verdict(last, token, torch.nn.functional.pad(ratio, (0, 1), value=1.0).log())


class KeepsOldWeights(WeightsForgotten):
    """Particles that were resampled by weight keep it, so that it counts twice."""

    def verify(self, forest, laws, rng):
        return SMC.verify(self, forest, laws, rng)

    def gather(self, rows, rng):
        return _Twice(rows, rng, 0.9, "systematic")


class _Twice(Particles):
    def ancestors(self, live):
        old = {output: list(group.log_weights) for output, group in self._groups.items()}
        moves = super().ancestors(live)
        for output, group in self._groups.items():
            group.log_weights = old[output]
        return moves
