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
        last = self._last_nodes(forest)  # [rows], end of the chain; a token that ends the row cuts it short
        p = laws.p_along_chains(last)  # [rows, width, vocab]
        w, after = self._weigh(forest, p, last)
        mass = after.sum(-1)  # [rows, width]
        denominator = mass + (1.0 - w)  # 1 - w first: the sum would round mass away where it is small
        between = torch.where(denominator > 0, mass / denominator, torch.ones_like(w))
        nodes = torch.arange(forest.width, device=forest.device)
        h = torch.where(nodes == last[:, None], w, between)
        h = torch.where(nodes > last[:, None], 0.0, h)
        h[:, 0] = 1.0
        leaf = torch.zeros_like(last)
        undecided = torch.ones_like(last, dtype=torch.bool)
        for node in reversed(range(1, forest.width)):
            keys = [(row.copy, row.rounds, node) for row in forest.rows]
            stops = accept.bernoulli(torch.where(undecided, h[:, node], 0.0), at=keys)
            leaf = torch.where(stops, node, leaf)
            undecided = undecided & ~stops
            if host.known_true(lambda: ~undecided, forest.device):  # noqa: B023 - asked at once
                break
        # Where rounding leaves nothing of w p - q, p equals q and is itself the law to draw from.
        law = normalised(after[laws.rows, leaf], p[laws.rows, leaf])
        return Verdict(leaf, draw.categorical(law, at=[(row.copy, row.rounds) for row in forest.rows]))

    def _last_nodes(self, forest: Forest) -> Tensor:
        lengths = host.send([len(draft) for draft in forest.drafts], forest.device)
        ends = forest.ends()
        if ends is None:
            return lengths
        ends = ends.clone()
        ends[:, 0] = False  # the anchor ended nothing
        first = torch.where(ends.any(-1), ends.long().argmax(-1), forest.width)
        return torch.minimum(lengths, first)

    def _weigh(self, forest: Forest, p: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """w `[rows, width]`, and the unnormalised law of the token after each node `[rows, width, vocab]`."""
        if forest.width == 1:
            return torch.ones_like(p[:, :, 0]), p
        q, x = forest.q_along_chains(p.shape[-1]), forest.tokens[:, 1:, None]  # q: [rows, width - 1, vocab]
        px, qx = p[:, :-1].gather(2, x)[..., 0], q.gather(2, x)[..., 0]  # [rows, width - 1]
        ratio = torch.where(px > 0, px / qx, torch.zeros_like(px))
        weights = [torch.ones_like(px[:, 0])]
        for node in range(forest.width - 1):
            weights.append((weights[-1] * ratio[:, node]).clamp(max=1.0))
        w = torch.stack(weights, 1)
        inside = torch.arange(forest.width - 1, device=forest.device) < last[:, None]  # before the chain's end
        early = (w[:, :-1, None] * p[:, :-1] - q).clamp_(min=0.0)
        return w, torch.cat([torch.where(inside[..., None], early, p[:, :-1]), p[:, -1:]], 1)


def example(vocab_size: int) -> Block:
    """A verifier for checks."""
    return Block()
