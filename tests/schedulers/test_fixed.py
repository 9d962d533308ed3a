"""Fixed: one budget, cut to what may still be emitted."""

from __future__ import annotations

import pytest

from specdec.core.state import Budget
from specdec.schedulers import Fixed

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("depth", "nodes", "expected"), [(5, None, (5, 64)), (5, 9, (5, 9)), (0, None, (0, 64)), (100, None, (100, 100))]
)
def test_the_budget_is_the_same_every_round(depth, nodes, expected):
    session = Fixed(depth, nodes).begin(None, True)
    budgets = [session.plan([]) for _ in range(3)]
    assert {(budget.depth, budget.nodes) for budget in budgets} == {expected}
    assert not Fixed().measures_time


@pytest.mark.parametrize(("room", "depth"), [(100, 5), (6, 5), (5, 4), (2, 1), (1, 0)])
def test_a_budget_leaves_room_for_the_targets_own_token(room, depth):
    cut = Budget(5, 64, len, 2.0).within(room)
    assert cut.depth == depth and cut.nodes == (64 if depth else 0)
    assert cut.cost is len and cut.rate == 2.0


def test_config():
    made = Fixed(3, 8)
    assert Fixed.from_config(made.config).config == made.config
    with pytest.raises(ValueError, match="depth"):
        Fixed(-1)
