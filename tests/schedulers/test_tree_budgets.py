"""Adaptive with drafters of trees, in made-up rounds: sizes that pay, the ledger, and what nodes and levels cost."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.draft import Draft
from specdec.core.state import Context, Outcome, Round, RoundTimes
from specdec.drafters.growth import worthwhile
from specdec.schedulers import Adaptive
from specdec.schedulers.cost import LevelCost, RoundCost
from specdec.schedulers.sizes import TreeSizes
from tests.schedulers.test_adaptive import NO_SCORES, Machine, linear, rows_of

pytestmark = pytest.mark.core

DEPTH, FAN = 6, 4


class Text:
    """A made-up text: what may follow, how likely each is, and what does follow. Trees of path probabilities."""

    def __init__(self, seed, sharp=(0.3, 0.95), hit=1.0):
        self.draw, self.sharp, self.hit = random.Random(seed), sharp, hit

    def nodes(self):
        """Nodes as (log value, path), the worthiest first, and the path that the text takes, None where it leaves."""
        first = [self.draw.uniform(*self.sharp) for _ in range(DEPTH)]
        levels = [[p, *[(1 - p) * 0.5**j for j in range(1, FAN)]] for p in first]
        found, frontier = [], [(0.0, ())]
        for chances in levels:
            below = [
                (value + math.log(p), (*path, order)) for value, path in frontier for order, p in enumerate(chances)
            ]
            found += below
            frontier = sorted(below, reverse=True)[:8]
        path = []
        for chances in levels:
            u, order = self.draw.random() / max(self.hit, 1e-9), None
            for place, p in enumerate(chances):
                if u < p:
                    order = place
                    break
                u -= p
            if order is None:
                break
            path.append(order)
        return sorted(found, key=lambda node: (-node[0], len(node[1]))), tuple(path)


class TreeMachine:
    """Plays rounds: the drafter drafts the worthiest nodes, all it may or, if `minds`, what pays."""

    def __init__(self, scheduler, text, plain=1.0, node=0.035, level=0.05, minds=True, noise=0.0):
        self.text, self.plain, self.node, self.level, self.minds, self.noise = text, plain, node, level, minds, noise
        self.rows = rows_of(1)
        self.session = scheduler.begin(Context(self.rows, 2, torch.device("cpu"), NO_SCORES), True)
        self.elapsed = self.tokens = self.worst = 0.0
        self.number, self.sizes, self.budgets = 1, [], []

    def round(self):
        budget = self.session.plan(self.rows)
        self.budgets.append(budget)
        nodes, text = self.text.nodes()
        chosen = [path for _, path in nodes if len(path) <= budget.depth][: budget.nodes]
        if self.minds and budget.depth:
            values = [value for value, path in nodes if len(path) <= budget.depth][: budget.nodes]
            chosen = chosen[: worthwhile(values, budget)]
        chosen.sort(key=lambda path: (len(path), path))
        place = {path: node for node, path in enumerate(chosen)}
        draft = Draft.point([0] * len(chosen), [place.get(path[:-1], -1) for path in chosen])
        kept = tuple(place[text[:d]] + 1 for d in range(1, len(text) + 1) if text[:d] in place)
        levels = max(map(len, chosen), default=0)
        machine = 1.0 + self.noise * (2 * self.text.draw.random() - 1)
        drafting = machine * self.plain * self.level * levels
        rest = machine * self.plain * (1 + 0.05 * (len(chosen) > 0) + self.node * len(chosen))
        outcome = Outcome(self.rows[0], draft, (0,) * len(chosen), kept, (0,) * (len(kept) + 1), NO_SCORES, 0)
        times = RoundTimes(drafting, rest, 0.0, drafting + rest)
        self.session.observe(Round(self.number, (outcome,), times, 1 + len(chosen)))
        self.number += 1
        self.elapsed += drafting + rest
        self.tokens += len(kept) + 1
        self.worst = max(self.worst, drafting + rest)
        self.sizes.append(len(chosen))


class BusyMachine(TreeMachine):
    """A machine with spells in which every round takes `slow` times as long: what plain rounds would take is known."""

    def __init__(self, *args, seed, slow, spell, calm, **options):
        super().__init__(*args, noise=0.1, **options)
        self.chance, self.slow, self.spell, self.calm = random.Random(seed), slow, spell, calm
        self.usual, self.busy, self.plain_would = self.plain, False, 0.0

    def round(self):
        u = self.chance.random()
        self.busy = u > 1 / self.spell if self.busy else u < 1 / self.calm
        self.plain = self.usual * (self.slow if self.busy else 1.0)
        before = self.tokens
        super().round()
        self.plain_would += self.plain * (self.tokens - before)


def rate(machine, rounds, warm=0):
    """Tokens a second, plain decoding's being 1, after `warm` rounds."""
    for _ in range(warm):
        machine.round()
    before = machine.tokens, machine.elapsed
    for _ in range(rounds):
        machine.round()
    return (machine.tokens - before[0]) / (machine.elapsed - before[1]) * machine.plain


def best_fixed(sharp, node, level=0.05, rounds=250):
    """The best rate of trees that have one size in every round."""
    text, counts = Text(99, sharp), dict.fromkeys((2, 4, 8, 12, 16, 24, 32, 48, 64), 0)
    for _ in range(rounds):
        nodes, path = text.nodes()
        taken = {path[:depth] for depth in range(1, len(path) + 1)}
        for size in counts:
            counts[size] += sum(place in taken for _, place in nodes[:size])
    rates = [(1 + kept / rounds) / (1.05 + node * size + level * min(DEPTH, size)) for size, kept in counts.items()]
    return max(1.0, *rates)


# --- sizes that pay -------------------------------------------------------------------------------------


@pytest.mark.parametrize("minds", [True, False])
@pytest.mark.parametrize(
    ("sharp", "node", "noise"),
    [((0.3, 0.95), 0.035, 0.2), ((0.6, 0.99), 0.02, 0.0), ((0.2, 0.7), 0.08, 0.0), ((0.6, 0.95), 0.002, 0.2)],
    ids=str,
)
def test_it_comes_near_the_best_size(minds, sharp, node, noise):
    best = best_fixed(sharp, node)
    whole = [
        rate(TreeMachine(Adaptive(), Text(seed, sharp), node=node, minds=minds, noise=noise), 120) for seed in range(3)
    ]
    assert sum(whole) / 3 >= 0.9 * best  # the beginning included


def test_trees_are_larger_where_nodes_cost_less():
    settled = []
    for node in (0.1, 0.03, 0.003):
        machine = TreeMachine(Adaptive(), Text(3), node=node)
        rate(machine, 150)
        settled.append(sum(machine.sizes[60:]) / 90)
    assert settled[0] < 0.7 * settled[1] < 0.5 * settled[2] and settled[2] > 30


def test_sizes_are_found_step_by_step():
    machine = TreeMachine(Adaptive(), Text(3, (0.6, 0.95)), node=0.002)
    rate(machine, 40)
    assert machine.sizes[:2] == [0, 8]
    assert all(size <= max(8, 2 * max(machine.sizes[:at])) for at, size in enumerate(machine.sizes) if at)
    assert max(machine.sizes) > 32


# --- the ledger -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("minds", [True, False])
@pytest.mark.parametrize("node", [0.005, 0.035, 0.2])
def test_trees_that_are_always_wrong_cost_little(minds, node):
    for seed in range(3):
        machine = TreeMachine(Adaptive(), Text(seed, (0.5, 0.95), hit=0.0), node=node, minds=minds)
        assert rate(machine, 128) >= 0.97
        assert rate(machine, 200) >= 0.98


@settings(max_examples=25)
@given(
    hits=st.lists(st.sampled_from([0.0, 0.0, 0.3, 1.0]), min_size=1, max_size=6),
    node=st.floats(0.0, 0.5),
    level=st.floats(0.0, 0.5),
    margin=st.sampled_from([0.0, 0.02, 0.2]),
    minds=st.booleans(),
)
def test_never_slower_than_plain_by_more_than_margin_credit_and_one_round(hits, node, level, margin, minds):
    machine = TreeMachine(Adaptive(margin=margin), Text(1), node=node, level=level, minds=minds)
    for hit in hits:
        machine.text.hit = hit
        for _ in range(12):
            machine.round()
            assert machine.elapsed <= (1 + margin) * machine.tokens + 1.0 + machine.worst + 1e-9


@pytest.mark.parametrize(("hit", "least", "mean"), [(0.0, 0.85, 0.96), (0.3, 0.8, 0.96), (1.0, 0.9, 1.6)])
@pytest.mark.parametrize(("slow", "spell", "calm"), [(4, 1.5, 20), (4, 20, 50), (8, 3, 50)])
def test_a_machine_with_slow_spells_is_no_reason_to_draft_in_vain(hit, least, mean, slow, spell, calm):
    scheduler, speeds = Adaptive(), []
    for call in range(60):
        machine = BusyMachine(scheduler, Text(call, hit=hit), node=0.05, seed=call, slow=slow, spell=spell, calm=calm)
        while machine.tokens < 96:
            machine.round()
        speeds.append(machine.plain_would / machine.elapsed)
    assert min(speeds) >= least and sum(speeds) / len(speeds) >= mean


def test_drafters_that_change_their_minds_are_followed():
    machine = TreeMachine(Adaptive(), Text(2, (0.6, 0.95), hit=0.0))
    rate(machine, 150)
    assert sum(machine.sizes[-50:]) <= 40
    machine.text.hit = 1.0
    assert rate(machine, 100, warm=60) > 1.5
    machine.text.hit = 0.0
    assert rate(machine, 150, warm=100) >= 0.97


# --- what budgets carry ---------------------------------------------------------------------------------


def test_budgets_say_what_a_node_and_a_level_cost_and_the_going_rate():
    machine = TreeMachine(Adaptive(), Text(2), plain=2.0, node=0.04, level=0.1)
    rate(machine, 80)
    budget = next(budget for budget in reversed(machine.budgets) if budget.depth)
    assert budget.cost(20) - budget.cost(10) == pytest.approx(10 * 0.08, rel=0.15)
    assert budget.step == pytest.approx(0.2, rel=0.25)
    assert budget.rate == pytest.approx(machine.tokens / machine.elapsed, rel=0.2)
    assert budget.depth <= budget.nodes <= 64


def test_costs_are_remembered_and_the_next_call_need_not_begin_small():
    scheduler = Adaptive()
    rate(TreeMachine(scheduler, Text(2, (0.6, 0.95)), node=0.002), 60)
    again = TreeMachine(scheduler, Text(3, (0.6, 0.95)), plain=3.0, node=0.002)
    rate(again, 8)
    assert again.sizes[0] == 0 or max(again.sizes[:2]) > 8
    assert max(again.sizes) > 32


def test_limits_of_the_config_hold():
    machine = TreeMachine(Adaptive(max_depth=2, max_nodes=5), Text(2), node=0.002)
    rate(machine, 60)
    assert max(machine.sizes) == 5 and max(budget.depth for budget in machine.budgets) == 2
    machine = TreeMachine(Adaptive(max_nodes=0), Text(2))
    rate(machine, 20)
    assert max(budget.depth for budget in machine.budgets) == 0


def test_the_most_nodes_are_a_chains_longest_too():
    machine = Machine(Adaptive(max_depth=16, max_nodes=4), linear(1.0, 0.1, 0.0), lambda row, depth: depth)
    for _ in range(40):
        machine.round()
    assert max(machine.depths) == 4


# --- estimates ------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(base=st.floats(0.0, 1.0), step=st.floats(0.0, 1.0), seed=st.integers(0, 9))
def test_a_line_in_levels_is_learnt(base, step, seed):
    draw, costs = random.Random(seed), LevelCost()
    for _ in range(60):
        levels = draw.randint(1, 8)
        costs = costs.observe(levels, base + step * levels)
    for levels in (1, 4, 8):
        assert costs(levels) == pytest.approx(base + step * levels, rel=0.05, abs=0.02)
    assert costs(0) == 0.0 and costs.scaled(3.0)(4) == pytest.approx(3 * costs(4))


def test_drafts_of_one_depth_share_their_time_among_their_levels():
    costs = LevelCost()
    assert costs.step is None and costs(5) == 0.0
    for _ in range(5):
        costs = costs.observe(4, 0.8)
    assert costs.step == pytest.approx(0.2) and costs(2) == pytest.approx(0.4)
    assert costs.observe(4, 99.0)(4) < 1.3  # one hiccup of the machine is not believed


def test_a_round_is_its_draft_and_its_pass():
    costs = RoundCost().observe(0, 0, 0.0, 1.0)
    for nodes, levels in ((4, 2), (16, 4), (8, 4), (12, 3)) * 5:
        costs = costs.observe(nodes, levels, 0.1 * levels, 1.0 + 0.03 * nodes + 0.1 * levels)
    assert costs.plain == 1.0 and costs.largest == 16
    assert costs(10, 3) == pytest.approx(1.6, rel=0.03) and costs(0) == 1.0
    assert costs.scaled(2.0)(10, 3) == pytest.approx(3.2, rel=0.03)


def test_a_drafter_that_minds_its_costs_gets_all_the_room_there_is():
    costs = RoundCost().observe(0, 0, 0.0, 1.0).observe(8, 3, 0.1, 1.4)
    sizes = TreeSizes(64)
    assert sizes.best(costs)[0] == 8
    for _ in range(6):
        sizes.observe(32, 1.0, 7, 3)
    limit, gain = sizes.best(costs)
    assert limit == 64 and gain == pytest.approx(2.0 / costs(7, 3), rel=0.05)


def test_a_round_that_the_machine_slowed_down_does_not_forbid_trees_for_good() -> None:
    scheduler = Adaptive()
    row = rows_of(1)[0]
    context = Context((row,), 100, torch.device("cpu"), NO_SCORES)
    tree = Draft.point([1, 2, 3, 4], [-1] * 4)

    def call(rounds: int, slow: float) -> int:
        """Rounds with drafts; the first of them takes `slow` plain rounds, and every draft keeps a token."""
        session = scheduler.begin(context, True)
        session.observe(event(0, Draft.empty(), (), 1.0))
        drafted = 0
        for number in range(1, rounds):
            budget = session.plan((row,))
            draft = tree if budget.nodes >= 4 and budget.depth else Draft.empty()
            kept = (1,) if draft is tree else ()
            drafted += draft is tree
            seconds = 1.0 if draft is not tree else slow if drafted == 1 else 1.1
            session.observe(event(number, draft, kept, seconds))
        return drafted

    def event(number: int, draft: Draft, kept: tuple[int, ...], seconds: float) -> Round:
        tokens = tuple(range(len(kept) + 1))
        outcome = Outcome(row, draft, tuple(draft.tokens), kept, tokens, NO_SCORES, 0)
        return Round(number, (outcome,), RoundTimes(0.0, seconds, 0.0, seconds), 1 + len(draft))

    call(12, slow=1000.0)
    assert call(200, slow=1.1) > 100
