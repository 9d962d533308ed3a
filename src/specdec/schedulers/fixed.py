"""Fixed: the same budget every round."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.core.interfaces import Scheduler, ScheduleSession
from specdec.core.state import Budget, Context, Row
from specdec.schedulers.fixed_config import FixedConfig


class Fixed(Scheduler):
    """Draft up to `depth` tokens and `nodes` nodes a row, whatever happened so far.

    nodes: None means a chain of `depth` for chain drafters, and up to 64 nodes for trees.
    """

    name = "fixed"

    def __init__(self, depth: int = 5, nodes: int | None = None) -> None:
        self._config = FixedConfig(depth=depth, nodes=nodes)

    @property
    def config(self) -> FixedConfig:
        return self._config

    @classmethod
    def from_config(cls, config: FixedConfig) -> Fixed:
        return cls(depth=config.depth, nodes=config.nodes)

    def begin(self, context: Context, drafts: bool) -> ScheduleSession:
        nodes = max(self._config.depth, 64) if self._config.nodes is None else self._config.nodes
        return _Same(Budget(self._config.depth, nodes))


class _Same(ScheduleSession):
    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def plan(self, rows: Sequence[Row]) -> Budget:
        return self._budget


def example(vocab_size: int) -> Fixed:
    """A scheduler for checks."""
    return Fixed(depth=2)
