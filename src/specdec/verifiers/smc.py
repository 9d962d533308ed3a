"""SMC: drafted tokens are kept and weighed instead of rejected; particles carry one text together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.contracts import Exactness
from specdec.core.draft import Kind
from specdec.core.forest import IID, NONE, Forest
from specdec.core.interfaces import Verifier
from specdec.core.rng import Key, Rng
from specdec.core.sampling import Laws
from specdec.core.state import Row
from specdec.core.verdict import Verdict
from specdec.verifiers.particles import Particles
from specdec.verifiers.smc_config import SMCConfig
from specdec.verifiers.walk import only

_DRAW, _COIN = 23, 24


class SMC(Verifier):
    """Sequential Monte Carlo: each of `particles` texts keeps its whole draft, its weight grows by p(x) / q(x) for
    every token x drawn from q, and a token drawn from p ends each block; light particles are replaced by copies of
    heavy ones when the effective sample size falls below `threshold` times their number; at the end one is drawn in
    proportion to weight (SMC-SD, Emara et al., arXiv 2604.15672; del Moral et al. 2006 for resampling).

    resampling: "systematic", "stratified" or "multinomial". power: aim at p^power of whole texts instead of p.

    Where q and p have not the same support, as under top-k, a draw from p takes the place of a token that p rules out,
    and, as often as p says what q cannot, of any other; the block ends there, and weights are those of the proposal
    that results. So no particle dies of it, no impossible token is ever text, and none that p can say is missed.
    POINT candidates are followed as far as draws from p agree with them, at weight one.

    Sums of weights times any function of the text have the right expectation for every number of particles; the law
    of the text that is picked is off by at most E_p[(w - 1)+] / particles a block, w being the weight of the block.
    """

    name = "smc"
    judges = frozenset({Kind.IID, Kind.POINT})
    greedy = False

    def __init__(
        self,
        particles: int = 8,
        *,
        threshold: float = 0.5,
        resampling: Literal["systematic", "stratified", "multinomial"] = "systematic",
        power: float = 1.0,
    ) -> None:
        self._config = SMCConfig(particles=particles, threshold=threshold, resampling=resampling, power=power)
        self.particles = self._config.particles
        if power == 1.0:
            self.exactness = Exactness.CONSISTENT
            self.bias_note = (
                f"the target's law in the limit of many particles, here {particles}: what they weigh is right on "
                "average, the one that is picked is only nearly drawn from the law"
            )
        else:
            self.exactness = Exactness.APPROXIMATE
            self.bias_note = f"the law aimed at is that of whole texts to the power {power:g}, not the target's own"

    @property
    def config(self) -> SMCConfig:
        return self._config

    @classmethod
    def from_config(cls, config: SMCConfig) -> SMC:
        return cls(config.particles, threshold=config.threshold, resampling=config.resampling, power=config.power)

    def gather(self, rows: Sequence[Row], rng: Rng) -> Particles:
        return Particles(rows, rng, self._config.threshold, self._config.resampling)

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        coin, draw, power = rng.fold(_COIN), rng.fold(_DRAW), self._config.power
        rows, candidates, ends = laws.rows, forest.candidates, forest.ends()
        node = torch.zeros_like(rows)
        token = torch.zeros_like(rows)
        alive = torch.ones_like(rows, dtype=torch.bool)
        gains: list[Tensor] = []  # [rows] a level: what the token there adds to the log weight
        for depth in range(forest.depth + 1):
            keys = [(row.copy, row.rounds, depth) for row in forest.rows]
            p = laws.p(node, depth, alive)  # [rows, vocab]
            aim = p if power == 1.0 else _tempered(p, power)
            child, kind = candidates.node[rows, node, 0], candidates.kind[rows, node, 0]
            x = forest.tokens.gather(1, child[:, None])  # [rows, 1]
            sampled = kind == IID
            proposal = _Proposal.of(forest, laws, node, sampled, p, aim)
            elsewhere = alive & (~sampled | proposal.leaves(coin, keys))
            kept = alive & ~elsewhere & (p.gather(1, x)[:, 0] > 0)
            own = alive & ~kept  # these say what the target draws
            y = x
            if not host.known_true(lambda: ~own, forest.device):  # noqa: B023 - asked at once
                drawn = draw.categorical(only(proposal.instead(elsewhere), own), at=keys)
                y = torch.where(own[:, None], drawn[:, None], x)
            at = y.clamp(max=laws.vocab_size - 1)  # what is drawn from NaN is no id; the engine says so
            gain = power * p.gather(1, at).log() - proposal.at(at).log()
            gains.append(torch.where(alive, gain[:, 0], 0.0))
            token = torch.where(alive, y[:, 0], token)
            goes_on = kept | (own & ~sampled & (kind != NONE) & (y == x)[:, 0])
            node = torch.where(goes_on, child, node)
            alive = goes_on if ends is None else goes_on & ~ends[rows, node]
            if host.known_true(lambda: ~alive, forest.device):  # noqa: B023 - asked at once
                break
        missing = [torch.zeros_like(gains[0])] * (forest.depth + 1 - len(gains))
        return Verdict(node, token, torch.stack([*gains, *missing], 1))


@dataclass(frozen=True, eq=False)
class _Proposal:
    """The law by which a node's next token comes about.

    Where q cannot give what the target can, in the share `missing` of the target's law, the target draws from that
    share with just this chance. Else the drafted token stands, or, where p rules it out, a draw from the share of
    the target's law that q can give.

    q: `[rows, vocab]`, zero for rows without a sampled candidate. aim: `[rows, vocab]`, what the target draws from.
    missing: `[rows, 1]`, share of `aim` outside the support of q. refused: `[rows, 1]`, share of q that p rules out.
    """

    q: Tensor | None
    aim: Tensor
    missing: Tensor
    refused: Tensor

    @classmethod
    def of(cls, forest: Forest, laws: Laws, node: Tensor, sampled: Tensor, p: Tensor, aim: Tensor) -> _Proposal:
        """That at `node` `[rows]`, where `sampled` `[rows]` says which rows have a sampled candidate."""
        all_ = torch.ones_like(aim[:, :1])
        if host.known_true(lambda: ~sampled, forest.device):
            return cls(None, aim, all_, all_)
        q = forest.q(node, laws.vocab_size) * sampled[:, None]
        missing = (aim * (q == 0)).sum(-1, keepdim=True).clamp(max=1.0)
        return cls(q, aim, missing, (q * (p == 0)).sum(-1, keepdim=True))

    def leaves(self, coin: Rng, keys: Sequence[Key]) -> Tensor:
        """`[rows]` bool: whether the target draws what q cannot give."""
        missing = self.missing[:, 0]
        if host.known_true(lambda: missing == 0, missing.device):
            return torch.zeros_like(missing, dtype=torch.bool)
        always = ~(missing < 1.0 - 1e-12)  # NaN too
        return always | coin.bernoulli(missing.masked_fill(always, 1.0), at=keys)

    def instead(self, elsewhere: Tensor) -> Tensor:
        """What the target draws from, `[rows, vocab]`, unnormalised: what q cannot give, or what it can."""
        if self.q is None:
            return self.aim
        return self.aim * ((self.q == 0) == elsewhere[:, None])

    def at(self, token: Tensor) -> Tensor:
        """`[rows, 1]`: the probability of `token` `[rows, 1]`."""
        aim = self.aim.gather(1, token)
        if self.q is None:
            return aim
        q = self.q.gather(1, token)
        return torch.where(q > 0, (1.0 - self.missing) * q + self.refused * aim, aim)


def _tempered(p: Tensor, power: float) -> Tensor:
    """p^power `[rows, vocab]`, normalised."""
    raised = p**power
    return raised / raised.sum(-1, keepdim=True)


def example(vocab_size: int) -> SMC:
    """A verifier for checks."""
    return SMC(2, threshold=0.9)
