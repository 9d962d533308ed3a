"""Traversal: judge a sampled tree as a whole, from its leaves up; block verification for trees."""

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
from specdec.verifiers.postorder import Level, Turn, visits_of
from specdec.verifiers.traversal_config import TraversalConfig
from specdec.verifiers.walk import only

_LEAF, _DRAW = 7, 8


class Traversal(Verifier):
    """Exact on any forest: traversal verification (Weng et al., arXiv 2505.12398); on a chain it is block verification.

    A node is reached with a weight w, the anchor with 1, and judges its candidates in their order. One with token x,
    drawn from s, is reached with weight min(1, w p(x) / s(x)) and judges its own candidates before it is judged
    itself, with the weight that they left it. When it and all below it are rejected, p becomes the normalised
    positive part of w p - s, of sum R, and w becomes R / (R + 1 - w). A POINT candidate is the case where s is
    one-hot; after a draw without replacement the next sibling's s lacks its token. The node that is kept is followed
    by a draw from the p that its candidates left.

    The weights depend on the draft alone. So all are computed first, level by level, and one draw says who is kept.
    """

    name = "traversal"
    judges = frozenset(Kind)
    branching = True

    @property
    def config(self) -> TraversalConfig:
        return TraversalConfig()

    @classmethod
    def from_config(cls, config: TraversalConfig) -> Traversal:
        return cls()

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        choose, draw = rng.fold(_LEAF), rng.fold(_DRAW)
        keys = [(row.copy, row.rounds) for row in forest.rows]
        if forest.width == 1:
            anchor = torch.zeros_like(laws.rows)
            return Verdict(anchor, draw.categorical(laws.p(anchor, 0), at=keys))
        visits, ends = visits_of(forest.shapes, forest.device), forest.ends()
        count = visits.node.shape[1]
        # The weight with which each visited node is reached, and then the one that its candidates leave it.
        weight = torch.zeros(visits.node.shape, dtype=torch.float64, device=forest.device)  # [rows, visits]
        weight[:, -1] = 1.0
        left = [pair for level in visits.levels if (pair := self._judge(level, forest, laws, weight.view(-1)))]
        missed = (1.0 - weight[:, :-1]).cumprod(1)
        chance = weight * torch.nn.functional.pad(missed, (1, 0), value=1.0)  # [rows, visits], of sum 1
        # Where the logits hold NaN the draw means nothing; the engine finds that in the token.
        visit = choose.categorical(chance, at=keys).clamp(max=count - 1)
        leaf = visits.node[laws.rows, visit]
        goes_on = torch.ones_like(leaf, dtype=torch.bool) if ends is None else (leaf == 0) | ~ends[laws.rows, leaf]
        law = _law_after(laws, leaf, laws.rows * count + visit, left, goes_on)
        return Verdict(leaf, draw.categorical(only(law, goes_on), at=keys))

    def _judge(self, level: Level, forest: Forest, laws: Laws, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        """Judge the candidates at the nodes of one level, whose entries in `weight` `[all visits]` are written.

        Returns the nodes' visits `[places]` and what is left of their laws `[places, vocab]`, unnormalised.
        """
        entry = weight[level.own]  # [places]
        closed = None
        if (ends := forest.ends()) is not None:  # below a token that ends its row nothing is judged
            closed = ends[level.row, level.node] & (level.node > 0)
            entry = entry.masked_fill(closed, 0.0)
        if (wanted := host.known_rows(entry > 0)) is not None and not all(wanted):
            kept = [index for index, want in enumerate(wanted) if want]
            if not kept:
                return None
            level, closed = level.of(kept), None
            entry = weight[level.own]
        w = entry
        v = laws.p_at(level.row, level.node, level.places, w > 0) * w[:, None]  # [places, vocab], w p
        q = forest.q_at(level.places, laws.vocab_size) if level.samples else None
        scale = torch.ones_like(w)  # s = scale q
        for turn, following in zip(level.turns, (*level.turns[1:], None), strict=True):
            n = turn.count
            x = forest.tokens[level.row[:n], turn.node][:, None]  # [n, 1]
            sampled = None if q is None else (q[:n], scale[:n])
            weight[turn.visit] = self._entry(turn, x, v[:n], sampled)
            rest, w_rest = self._rest(turn, x, v[:n], w[:n], sampled)
            v = rest if n == len(v) else torch.cat([rest, v[n:]])
            w = w_rest if n == len(w) else torch.cat([w_rest, w[n:]])
            if sampled is not None and turn.withouts and following is not None:
                q, scale = self._without(turn, x, *sampled, count=following.count)
        weight[level.own] = w if closed is None else torch.where(closed, weight[level.own], w)
        return level.own, v

    def _entry(self, turn: Turn, x: Tensor, v: Tensor, sampled: tuple[Tensor, Tensor] | None) -> Tensor:
        """min(1, w p(x) / s(x)) `[n]` for v = w p `[n, vocab]` and tokens x `[n, 1]`; 0 where p(x) is 0."""
        vx = v.gather(1, x)[:, 0]
        if sampled is None:
            return torch.where(vx > 0, vx.clamp(max=1.0), 0.0)  # NaN reaches nothing
        q, scale = sampled
        sx = torch.where(turn.point, 1.0, scale * q.gather(1, x)[:, 0])
        return torch.where(vx > 0, (vx / sx).clamp(max=1.0), 0.0)

    def _rest(
        self, turn: Turn, x: Tensor, v: Tensor, w: Tensor, sampled: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor]:
        """v `[n, vocab]` and w `[n]` once the candidates x `[n, 1]` are rejected."""
        rest = v
        if turn.samples and sampled is not None:
            q, scale = sampled
            s = scale.masked_fill(turn.point, 0.0) if turn.points else scale
            rest = torch.addcmul(v, q, s[:, None], value=-1.0).clamp_(min=0.0)
        if turn.points:
            rest = rest.scatter(1, x, rest.gather(1, x).masked_fill(turn.point[:, None], 0.0))
        mass = rest.sum(-1)
        whole = mass + (1.0 - w)  # 1 - w first: a sum would round small mass away
        kept = whole > 0
        if host.known_true(lambda: kept, kept.device):
            return rest / whole[:, None], mass / whole
        # Nothing over nothing: p equals s up to rounding, so the node's law stays the target's own.
        whole = torch.where(kept, whole, 1.0)
        return torch.where(kept[:, None], rest / whole[:, None], v), torch.where(kept, mass / whole, w)

    def _without(self, turn: Turn, x: Tensor, q: Tensor, scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """q and scale for the next siblings at the first `count` places: what was drawn without replacement is gone."""
        q, x, drawn = q[:count], x[:count], turn.without[:count]
        q = q.scatter(1, x, q.gather(1, x).masked_fill(drawn[:, None], 0.0))
        mass = q.sum(-1)
        return q, torch.where(drawn & (mass > 0), 1.0 / mass, scale[:count])


def _law_after(laws: Laws, leaf: Tensor, visit: Tensor, left: list[tuple[Tensor, Tensor]], goes_on: Tensor) -> Tensor:
    """Law `[rows, vocab]` of the token after `leaf` `[rows]`, unnormalised: what its candidates left, if it had any."""
    known = torch.zeros_like(goes_on)
    law = None
    for own, v in left:
        here = own == visit[:, None]  # [rows, places]
        found = here.any(-1)
        known = known | found
        picked = v[here.long().argmax(-1)]
        law = picked if law is None else torch.where(found[:, None], picked, law)
    fresh = goes_on & ~known
    if law is not None and host.known_true(lambda: ~fresh, fresh.device):
        return law
    p = laws.p_anywhere(leaf, fresh)
    return p if law is None else torch.where(known[:, None], law, p)


def example(vocab_size: int) -> Traversal:
    """A verifier for checks."""
    return Traversal()
