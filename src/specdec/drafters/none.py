"""No draft: plain decoding, through the same loop as everything else."""

from __future__ import annotations

from specdec.core.draft import Draft
from specdec.core.interfaces import StatelessDrafter
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row
from specdec.drafters.none_config import NoDraftConfig


class NoDraft(StatelessDrafter):
    """Guesses nothing: every round is one plain step of the target. The baseline of every comparison."""

    name = "none"
    drafts = False

    @property
    def config(self) -> NoDraftConfig:
        return NoDraftConfig()

    @classmethod
    def from_config(cls, config: NoDraftConfig) -> NoDraft:
        return cls()

    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        return Draft.empty()


def example(vocab_size: int) -> NoDraft:
    """A drafter for checks."""
    return NoDraft()
