"""Jacobi: what the last pass said of every position is the next guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.carry import Carry, up_to_end
from specdec.drafters.fill import Fill, fill_problems, filling
from specdec.drafters.jacobi_config import JacobiConfig


class Jacobi(Drafter):
    """Solves the next `block_size` tokens as a system of equations, one Jacobi step a pass.

    Decoding is a fixed point: each token is what the target says after those before it. A pass over a block of guesses
    gives what the target says after each of them; that, shifted past what was accepted, is the next block. It is right
    where the block before was, so no pass emits fewer tokens than plain decoding, and block size 1 is plain decoding.
    At temperature > 0 with the verifier `walk` "what the target says" is its draw with the noise of the position, so
    the fixed point is the text of the seed.

    fill: first guess of a place, of no consequence but for speed. Needs no training and no memory.
    Source: Santilli et al., arXiv 2305.10427; as a drafter, Fu et al., arXiv 2402.02057, section 2.
    """

    name = "jacobi"
    needs = Needs(choices=("decided",))

    def __init__(self, block_size: int = 5, fill: Fill = "last") -> None:
        self._config = JacobiConfig(block_size=block_size, fill=fill)

    @property
    def config(self) -> JacobiConfig:
        return self._config

    @classmethod
    def from_config(cls, config: JacobiConfig) -> Jacobi:
        return cls(config.block_size, config.fill)

    def problems(self, target: Target, tokenizer: Any = None) -> list[str]:
        return fill_problems(self._config.fill, self.name, target)

    def begin(self, context: Context) -> DraftSession:
        return _Session(self._config, context)


class _Session(DraftSession):
    def __init__(self, config: JacobiConfig, context: Context) -> None:
        self._config = config
        self._carries = {row.index: Carry() for row in context.rows}

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        drafts = []
        for row, budget in zip(rows, budgets, strict=True):
            count = min(budget.depth, budget.nodes, self._config.block_size - 1)
            guess = self._carries[row.index].guess(count, filling(self._config.fill, row))
            drafts.append(Draft.point(up_to_end(guess, row.eos)) if guess else Draft.empty())
        return drafts

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._carries[outcome.row.index].step(outcome)


def example(vocab_size: int) -> Jacobi:
    """A drafter for checks."""
    return Jacobi()
