"""Block: judge a sampled chain as a whole; never accepts less than the textbook rule."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Kind
from specdec.core.forest import POINT, Forest
from specdec.core.interfaces import Verifier
from specdec.core.rng import Rng
from specdec.core.sampling import Laws
from specdec.core.verdict import Verdict
from specdec.verifiers.block_config import BlockConfig
from specdec.verifiers.token import normalised
from specdec.verifiers.walk import only

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
        device, rows = forest.device, laws.rows
        last = self._last_nodes(forest)  # [rows], end of the chain, an eos cuts it short
        weights, laws_after, target = self._weigh(forest, laws, last)
        leaf = torch.zeros_like(rows)
        token = torch.zeros_like(rows)
        open_rows = torch.ones_like(rows, dtype=torch.bool)
        for node in reversed(range(len(weights))):
            w, law = weights[node], laws_after[node]  # [rows], [rows, vocab]
            mass = law.sum(-1)
            denominator = mass + (1.0 - w)  # 1 - w first: the sum would round mass away where it is small
            between = torch.where(denominator > 0, mass / denominator, torch.ones_like(w))
            h = torch.where(last == node, w, between)
            h = torch.ones_like(w) if node == 0 else torch.where(open_rows & (node <= last), h, 0.0)
            keys = [(row.copy, row.rounds, node) for row in forest.rows]
            stops = open_rows & accept.bernoulli(h, at=keys)
            if not host.known_true(lambda: ~stops, device):  # noqa: B023 - asked at once
                # Where rounding leaves nothing of w p - q, p equals q and is itself the law to draw from.
                drawn = draw.categorical(only(normalised(law, target[node]), stops), at=keys)
                leaf = torch.where(stops, node, leaf)
                token = torch.where(stops, drawn, token)
            open_rows = open_rows & ~stops
            if host.known_true(lambda: ~open_rows, device):  # noqa: B023 - asked at once
                break
        return Verdict(leaf, token)

    def _last_nodes(self, forest: Forest) -> Tensor:
        lengths = torch.tensor([len(draft) for draft in forest.drafts], device=forest.device)
        ends = forest.ends()
        if ends is None:
            return lengths
        ends = ends.clone()
        ends[:, 0] = False  # the anchor ended nothing
        first = torch.where(ends.any(-1), ends.long().argmax(-1), forest.width)
        return torch.minimum(lengths, first)

    def _law(self, forest: Forest, node: Tensor, laws: Laws) -> Tensor:
        """q `[rows, vocab]` of the only child of `node` `[rows]`; one-hot where it is a POINT candidate."""
        child, kind = (table[laws.rows, node, 0] for table in (forest.candidates.node, forest.candidates.kind))
        q = forest.q(node, laws.vocab_size)
        one_hot = torch.zeros_like(q).scatter_(1, forest.tokens.gather(1, child[:, None]), 1.0)
        return torch.where((kind == POINT)[:, None], one_hot, q)

    def _weigh(
        self, forest: Forest, laws: Laws, last: Tensor
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """At every node: w `[rows]`, the unnormalised law of the token after it and p, both `[rows, vocab]`."""
        rows = laws.rows
        w = torch.ones_like(rows, dtype=torch.float64)
        weights, after, target = [w], [], []
        for node in range(forest.width):
            here = torch.full_like(rows, node).minimum(last)
            inside = last > node
            p = laws.p(here, node, last >= node)  # [rows, vocab]
            q = self._law(forest, here, laws)
            target.append(p)
            after.append(torch.where(inside[:, None], (w[:, None] * p - q).clamp(min=0.0), p))
            if node + 1 == forest.width:
                break
            x = forest.tokens[:, node + 1 : node + 2]
            px, qx = p.gather(1, x)[:, 0], q.gather(1, x)[:, 0]
            ratio = torch.where(px > 0, w * px / qx, torch.zeros_like(w)).clamp(max=1.0)
            w = torch.where(inside, ratio, w)
            weights.append(w)
        return weights, after, target


def example(vocab_size: int) -> Block:
    """A verifier for checks."""
    return Block()
