"""Token: the textbook rule, one candidate after another, on chains and trees of any kinds."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Kind
from specdec.core.forest import NO_REPLACE, NONE, POINT, Forest
from specdec.core.interfaces import Verifier
from specdec.core.rng import Rng
from specdec.core.sampling import Laws
from specdec.core.verdict import Verdict
from specdec.verifiers.token_config import TokenConfig
from specdec.verifiers.walk import only

_ACCEPT, _DRAW = 2, 3


class Token(Verifier):
    """Exact by sequential coupling: accept a candidate x of law q with probability min(1, p(x) / q(x)), else go on
    with the normalised positive part of p - q; a POINT candidate is the case where q is one-hot.

    On a sampled chain this is speculative sampling (Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al.,
    arXiv 2302.01318); on sampled trees recursive rejection, top down (SpecInfer, arXiv 2305.09781; without
    replacement: Sequoia, arXiv 2402.12374); on mixed siblings, sampled before POINT.
    """

    name = "token"
    judges = frozenset(Kind)
    branching = True

    @property
    def config(self) -> TokenConfig:
        return TokenConfig()

    @classmethod
    def from_config(cls, config: TokenConfig) -> Token:
        return cls()

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        accept, draw = rng.fold(_ACCEPT), rng.fold(_DRAW)
        rows, candidates, ends = laws.rows, forest.candidates, forest.ends()
        node = torch.zeros_like(rows)
        token = torch.zeros_like(rows)
        alive = torch.ones_like(rows, dtype=torch.bool)
        for depth in range(forest.depth + 1):
            p = laws.p(node, depth, alive)  # [rows, vocab], what is left of the target's law
            q = forest.q(node, laws.vocab_size)  # [rows, vocab], law of the next sampled candidate
            settled = ~alive  # rows that need no more candidates
            reached = node
            for order in range(candidates.most):
                child, kind = candidates.node[rows, node, order], candidates.kind[rows, node, order]
                if host.known_true(lambda: settled | (kind == NONE), forest.device):  # noqa: B023
                    break
                tried = ~settled & (kind != NONE)
                x = forest.tokens.gather(1, child[:, None])  # [rows, 1]
                point = (kind == POINT)[:, None]  # [rows, 1]
                law = torch.where(point, torch.zeros_like(q).scatter_(1, x, 1.0), q)
                keys = [(row.copy, row.rounds, depth, order) for row in forest.rows]
                coin = accept.bernoulli(torch.where(tried, acceptance(p, law, x), 0.0), at=keys)
                reached = torch.where(coin, child, reached)
                settled = settled | coin
                p = torch.where((tried & ~coin)[:, None], residual(p, law), p)
                # The next sibling of a draw without replacement was drawn from what this one left of q.
                without = normalised(q.scatter(1, x, 0.0), q)
                q = torch.where((tried & (kind == NO_REPLACE))[:, None], without, q)
            ended = ~settled  # no candidate was accepted: the row ends here
            drawn = draw.categorical(only(p, ended), at=[(row.copy, row.rounds, depth) for row in forest.rows])
            token = torch.where(ended, drawn, token)
            alive = alive & ~ended
            node = reached
            if ends is not None:
                alive = alive & ~ends[rows, node]
            if host.known_true(lambda: ~alive, forest.device):  # noqa: B023 - asked at once
                break
        return Verdict(node, token)


def acceptance(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """min(1, p(x) / q(x)) `[rows]` for laws `[rows, vocab]` and tokens x `[rows, 1]`; 0 where p(x) is 0."""
    px, qx = p.gather(1, x)[:, 0], q.gather(1, x)[:, 0]
    return torch.where(px > 0, (px / qx).clamp(max=1.0), torch.zeros_like(px))


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The normalised positive part of p - q, or p where rounding leaves nothing of it (p equals q)."""
    return normalised((p - q).clamp(min=0.0), p)


def normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """`weights` `[rows, vocab]` scaled to sum 1, or `otherwise` where they sum to nothing."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, otherwise)


def example(vocab_size: int) -> Token:
    """A verifier for checks."""
    return Token()
