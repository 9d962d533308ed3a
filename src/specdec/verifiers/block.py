"""Block: judge a sampled chain as a whole; never accepts less than the textbook rule."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Kind
from specdec.core.forest import Forest
from specdec.core.interfaces import Verifier
from specdec.core.rng import Rng
from specdec.core.sampling import Laws
from specdec.core.verdict import Verdict
from specdec.verifiers.block_config import BlockConfig
from specdec.verifiers.token import normalised

_ACCEPT, _DRAW = 4, 5


class Block(Verifier):
    """Exact and optimal for one sampled chain: block verification (Sun et al., arXiv 2403.10444, theorem 2).

    With w(0) = 1 and w(i) = min(1, w(i-1) p(x_i) / q(x_i)), the longest prefix is kept that a coin of probability
    h allows: h = w at the end of the chain, 1 at its start, and R / (R + 1 - w) between, R being the sum of the
    positive part of w p - q. After a prefix that ends early the next token has that positive part as its law.
    A POINT candidate is the case where q is one-hot; for chains of those alone `walk` accepts as much.
    """

    name = "block"
    judges = frozenset(Kind)

    @property
    def config(self) -> BlockConfig:
        return BlockConfig()

    @classmethod
    def from_config(cls, config: BlockConfig) -> Block:
        return cls()

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        accept, draw = rng.fold(_ACCEPT), rng.fold(_DRAW)
        keys = [(row.copy, row.rounds) for row in forest.rows]
        last = self._last_nodes(forest)  # [rows], end of the chain; a token that ends the row cuts it short
        p = laws.p_along_chains(last)  # [rows, width, vocab]
        broken = p[..., 0].isnan()
        if not host.known_true(lambda: ~broken, forest.device):
            last = torch.minimum(last, _first(broken, otherwise=forest.width))  # nothing is judged by NaN
        if forest.width == 1:
            return Verdict(torch.zeros_like(last), draw.categorical(p[:, 0], at=keys))
        q = forest.q_along_chains(laws.vocab_size, last)  # [rows, width, vocab], zero from `last` on
        w = self._weights(forest, p, q)  # [rows, width]
        # The whole chain first: its coin has probability w, and where it succeeds nothing else is needed.
        whole = accept.bernoulli(w.gather(1, last[:, None])[:, 0], at=[(*key, 0) for key in keys])
        if host.known_true(lambda: whole, forest.device):
            return Verdict(last, draw.categorical(p[laws.rows, last], at=keys))
        leaf = torch.where(whole, last, 0)
        after = self._after(w, p, q)  # [rows, width, vocab], law of the next token, unnormalised
        mass = after.sum(-1)
        # 1 - w first: a sum would round small mass away. Nothing over nothing: the chain's law is the target's own.
        h = torch.nan_to_num(mass / (mass + (1.0 - w)), nan=1.0)
        leaf = self._longest(forest, h, last, leaf, accept)
        at = (laws.rows, leaf)
        # Where rounding leaves nothing of w p - q, p equals q and is itself the law to draw from.
        return Verdict(leaf, draw.categorical(normalised(after[at], p[at]), at=keys))

    def _longest(self, forest: Forest, h: Tensor, last: Tensor, leaf: Tensor, accept: Rng) -> Tensor:
        """`[rows]`: `leaf`, or the last node before `last` whose coin of probability h succeeds, 0 if none does."""
        for node in reversed(range(1, forest.width - 1)):
            at_play = (leaf == 0) & (last > node)
            keys = [(row.copy, row.rounds, node) for row in forest.rows]
            leaf = leaf + node * accept.bernoulli(h[:, node] * at_play, at=keys)
            if host.known_true(lambda: leaf > 0, forest.device):  # noqa: B023 - asked at once
                break
        return leaf

    def _after(self, w: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """Unnormalised law `[rows, width, vocab]` of the token after each node; w p at the end, where q is zero."""
        return (w[..., None] * p - q).clamp_(min=0.0)

    def _last_nodes(self, forest: Forest) -> Tensor:
        ends, lengths = forest.ends(), forest.tables.length
        if ends is None:
            return lengths
        ends = ends.clone()
        ends[:, 0] = False  # the anchor ended nothing
        return torch.minimum(lengths, _first(ends, otherwise=forest.width))

    def _weights(self, forest: Forest, p: Tensor, q: Tensor) -> Tensor:
        """w `[rows, width]`: the running product of ratios over its running maximum, which is min(1, w r) unrolled."""
        x = forest.tokens[:, 1:, None]
        px, qx = p[:, :-1].gather(2, x)[..., 0], q[:, :-1].gather(2, x)[..., 0]  # [rows, width - 1]
        ratio = (px / qx.clamp_(min=1e-300)).clamp_(max=1e100)
        product = ratio.log_().cumsum(-1)
        w = (product - product.cummax(-1).values.clamp_(min=0.0)).exp_()
        return torch.nn.functional.pad(w, (1, 0), value=1.0)


def _first(flags: Tensor, otherwise: int) -> Tensor:
    """`[rows]`: place of the first of `flags` `[rows, width]` that is set, or `otherwise`."""
    return torch.where(flags.any(-1), flags.long().argmax(-1), otherwise)


def example(vocab_size: int) -> Block:
    """A verifier for checks."""
    return Block()
