"""Adaptive, driven with made-up rounds: the time ledger, the depth it settles on, probing, and what it remembers."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.acceptance import Acceptance
from specdec.core.draft import Draft
from specdec.core.sampling import Sampling
from specdec.core.state import Context, Outcome, Round, RoundTimes, Row, Scores
from specdec.drafters.growth import worthwhile
from specdec.schedulers import Adaptive
from specdec.schedulers.cost import CostCurve, LevelCost
from specdec.schedulers.learnt import Learnt
from specdec.schedulers.sizes import TreeSizes

pytestmark = pytest.mark.core

NO_SCORES = Scores(torch.zeros(1, 1, 2))


def rows_of(count):
    return tuple(Row(index, [1], Sampling(), max_length=10**6) for index in range(count))


class Machine:
    """Plays rounds of a session: `cost(live, nodes)` seconds each, acceptance as `accept(live, depth)` says."""

    def __init__(self, scheduler, cost, accept, live=1, widths=()):
        self.cost, self.accept, self.minds = (
            cost,
            accept,
            False,
        )  # minds: it drafts no node that is worth less than it costs
        self.rows = rows_of(live)
        context = Context(self.rows, 2, torch.device("cpu"), NO_SCORES, widths=widths)
        self.session = scheduler.begin(context, True)
        self.elapsed = self.earned = self.worst = 0.0
        self.number, self.depths = 0, []
        self._observe([0] * live, [0] * live, 123.0)  # the pass over the prompts: no measure of anything

    def _observe(self, depths, accepted, seconds):
        outcomes = []
        for row, depth, kept in zip(self.rows, depths, accepted, strict=True):
            draft = Draft.point([0] * depth)
            path, tokens = tuple(range(1, kept + 1)), (0,) * (kept + 1)
            outcomes.append(Outcome(row, draft, (0,) * depth, path, tokens, NO_SCORES, row.index))
        times = RoundTimes(0.0, seconds, 0.0, seconds)
        self.session.observe(Round(self.number, tuple(outcomes), times, 1 + max(depths)))
        self.number += 1

    def round(self, live=None):
        self.rows = self.rows[:live]
        budget = self.session.plan(self.rows)
        depth = min(budget.depth, budget.nodes)
        if self.minds and depth and budget.rate is not None:
            # The n-th node is thought to bring 3 ** -n tokens.
            depth = worthwhile([-node * math.log(3.0) for node in range(1, depth + 1)], budget, free=True)
        self.depths.append(depth)
        accepted = [min(self.accept(row.index, depth), depth) for row in self.rows]
        seconds = self.cost(len(self.rows), depth)
        self._observe([depth] * len(self.rows), accepted, seconds)
        self.elapsed += seconds
        self.earned += self.cost(len(self.rows), 0) * (sum(accepted) / len(self.rows) + 1)
        self.worst = max(self.worst, seconds)
        return depth


def linear(plain=1.0, first=0.1, slope=0.05):
    return lambda live, nodes: plain * (1 + 0.1 * (live - 1)) + (first + slope * nodes if nodes else 0.0)


def chances(*by_depth, seed=0):
    """Each drafted token at depth d is kept with chance `by_depth[d - 1]`, the last one repeated."""
    draw = random.Random(seed)

    def accept(row, depth):
        for level in range(depth):
            if draw.random() >= by_depth[min(level, len(by_depth) - 1)]:
                return level
        return depth

    return accept


def best_rate(cost, chance, most):
    """Tokens per second of every fixed depth."""
    return [sum(chance**d for d in range(depth + 1)) / cost(1, depth) for depth in range(most + 1)]


# --- the ledger -----------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    script=st.lists(st.integers(0, 20), min_size=5, max_size=120),
    first=st.floats(0.0, 8.0),
    slope=st.floats(0.0, 2.0),
    margin=st.sampled_from([0.0, 0.02, 0.2]),
    most=st.integers(0, 16),
)
def test_never_slower_than_plain_by_more_than_margin_credit_and_one_round(script, first, slope, margin, most):
    steps = iter(script)
    machine = Machine(Adaptive(most, 64, margin), linear(1.0, first, slope), lambda row, depth: next(steps))
    for _ in script:
        assert machine.round() <= most
        # Where one node costs what five do, drafts of other sizes pass for a slower machine at first: 5 %.
        assert machine.elapsed <= (1.05 + margin) * machine.earned + 1.0 + machine.worst + 1e-9


@settings(max_examples=80)
@given(
    script=st.lists(st.integers(0, 6), min_size=4, max_size=80),
    ends=st.lists(st.integers(1, 12), min_size=4, max_size=4),
    slope=st.floats(0.0, 2.0),
)
def test_the_ledger_holds_while_rows_finish(script, ends, slope):
    steps = iter(script * 5)
    machine = Machine(Adaptive(), linear(1.0, 0.5, slope), lambda row, depth: next(steps, 0), live=5)
    left = [live for live, rounds in zip((5, 4, 3, 2), ends, strict=True) for _ in range(rounds)]
    for live in [*left, *[1] * 40]:
        machine.round(live)
        credit = machine.cost(5, 0)
        assert machine.elapsed <= 1.02 * machine.earned + credit + machine.worst + 1e-9


def test_a_drafter_that_is_always_wrong_costs_little():
    machine = Machine(Adaptive(), linear(1.0, 0.3, 0.1), lambda row, depth: 0)
    for _ in range(300):
        machine.round()
    assert machine.elapsed <= 1.02 * machine.earned + 1.0 + machine.worst
    assert sum(depth > 0 for depth in machine.depths[50:]) <= 250 / 8
    assert max(machine.depths[50:]) <= 3  # probes are short
    assert 0 in machine.depths and machine.depths[0] == 0


def test_batches_in_which_a_row_ends_do_not_draft_blindly():
    # Nothing has been measured for four rows when the fifth ends; that is no reason to draft at full depth.
    machine = Machine(Adaptive(), linear(1.0, 0.5, 0.5), lambda row, depth: 0, live=5)
    for _ in range(40):
        machine.round(5)
    depths = [machine.round(4) for _ in range(30)]
    assert sum(depth > 1 for depth in depths) == 0


# --- what it settles on ---------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.7, 0.85, 0.95])
@pytest.mark.parametrize("slope", [0.02, 0.1, 0.3])
def test_it_comes_near_the_best_fixed_depth(chance, slope):
    cost = linear(1.0, 0.1, slope)
    machine = Machine(Adaptive(max_depth=12), cost, chances(chance, seed=3))
    for _ in range(400):
        machine.round()
    rates = best_rate(cost, chance, 12)
    settled = [rates[depth] for depth in machine.depths[150:]]
    # Where little is kept the estimate is noisy, and leaving the drafter alone costs little.
    assert sum(settled) / len(settled) >= (0.92 if chance > 0.5 else 0.85) * max(rates)


def test_more_acceptance_means_more_depth():
    settled = []
    for chance in (0.4, 0.7, 0.9):
        machine = Machine(Adaptive(), linear(1.0, 0.1, 0.1), chances(chance, seed=1))
        for _ in range(300):
            machine.round()
        settled.append(sum(machine.depths[150:]) / 150)
    assert settled[0] < settled[1] < settled[2] <= 16


def test_a_drafter_that_becomes_right_is_used_again():
    good = {"now": False}
    machine = Machine(Adaptive(), linear(1.0, 0.1, 0.02), lambda row, depth: depth if good["now"] else 0)
    for _ in range(200):
        machine.round()
    assert sum(machine.depths[-60:]) <= 3
    good["now"] = True
    for _ in range(200):
        machine.round()
    assert sum(machine.depths[-50:]) / 50 > 8


def test_a_drafter_that_becomes_wrong_is_left_alone():
    good = {"now": True}
    machine = Machine(Adaptive(), linear(1.0, 0.2, 0.1), lambda row, depth: depth if good["now"] else 0)
    for _ in range(60):
        machine.round()
    assert machine.depths[-1] >= 10
    good["now"] = False
    for _ in range(120):
        machine.round()
    assert sum(machine.depths[-40:]) <= 5


def test_drafting_that_can_never_pay_stops():
    machine = Machine(Adaptive(), linear(1.0, 30.0, 0.0), lambda row, depth: depth)
    for _ in range(300):
        machine.round()
    assert machine.elapsed <= 1.02 * machine.earned + 1.0 + machine.worst


def test_depth_zero_and_drafters_without_drafts_stay_plain():
    machine = Machine(Adaptive(max_depth=0), linear(), lambda row, depth: depth)
    assert {machine.round() for _ in range(40)} == {0}
    context = Context(rows_of(1), 2, torch.device("cpu"), NO_SCORES)
    assert Adaptive().begin(context, False).plan(context.rows).depth == 0


# --- what it remembers ----------------------------------------------------------------------------------


def test_costs_and_worth_are_remembered_from_call_to_call():
    scheduler = Adaptive()
    first = Machine(scheduler, linear(1.0, 0.1, 0.02), lambda row, depth: depth)
    for _ in range(60):
        first.round()
    assert first.depths[0] == 0
    # The first round says how fast the machine is now; the remembered proportions decide from then on.
    second = Machine(scheduler, linear(3.0, 0.3, 0.06), lambda row, depth: depth)
    assert second.round() == 16  # no plain round is needed again, and no short drafts
    assert second.session.costs(16) == pytest.approx(3 * 1.42, rel=0.1)
    third = Machine(scheduler, linear(1.0, 0.1, 0.02), lambda row, depth: 0)
    for _ in range(60):
        third.round()
    assert sum(depth > 0 for depth in third.depths[20:]) <= 6  # rounds that say otherwise are believed
    assert Machine(Adaptive(), linear(), lambda row, depth: depth).round() == 0


def test_calls_may_lose_in_trying_a_few_rounds_of_what_earlier_ones_saved():
    """Were it not so, three drafts in a row of which nothing is kept would end drafting in every short call."""

    def spent(*before):
        scheduler = Adaptive()
        for right in before:
            machine = Machine(scheduler, linear(1.0, 0.3, 0.1), lambda row, depth, right=right: depth if right else 0)
            for _ in range(60):
                machine.round()
        machine = Machine(scheduler, linear(1.0, 0.3, 0.1), lambda row, depth: 0)
        worst = 0.0
        for _ in range(60):
            machine.round()
            worst = max(worst, machine.elapsed - 1.02 * machine.earned)
        return worst, machine.worst

    fresh, saved, lost = spent(), spent(True), spent(True, False)
    assert fresh[0] <= 1.0 + fresh[1]
    assert fresh[0] < saved[0] <= 1.0 + 4.0 + saved[1]
    assert lost[0] <= 1.0 + lost[1]  # what was lost is not lost twice


@settings(max_examples=40)
@given(
    calls=st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=30), min_size=1, max_size=12),
    first=st.floats(0.0, 4.0),
)
def test_all_calls_together_cost_no_more_than_the_margin_and_two_rounds_each(calls, first):
    # Drafts of one token, so that what a round costs is known as soon as one was drafted.
    scheduler, elapsed, allowed = Adaptive(max_depth=1), 0.0, 0.0
    for script in [[1] * 60, *calls]:
        steps = iter(script)
        machine = Machine(scheduler, linear(1.0, first, 0.0), lambda row, depth, steps=steps: next(steps))
        for _ in script:
            machine.round()
        elapsed += machine.elapsed
        allowed += 1.02 * machine.earned + 1.0 + machine.worst
        assert elapsed <= allowed + 1e-9


def test_trees_of_another_limit_are_learnt_anew():
    learnt = Learnt()
    learnt.keep(Acceptance(), TreeSizes(15), 9.0)
    assert learnt.sizes(15, ()) is not learnt.sizes(15, ())  # copies
    assert learnt.sizes(31, ()).limits == (8, 15, 31) and learnt.sizes(31, (1, 8, 16)).limits == (7, 15)
    assert learnt.saved == 4.0


def test_a_call_that_is_faster_than_the_last_does_not_take_drafts_for_free():
    """After a long prompt rounds were slow. Compared with those, drafts of a short one look cheaper than nothing."""
    scheduler = Adaptive()
    slow = Machine(scheduler, linear(2.0, 0.2, 0.04), lambda row, depth: depth)
    for _ in range(60):
        slow.round()
    fast = Machine(scheduler, linear(1.0, 0.1, 0.02), lambda row, depth: 0)
    for _ in range(100):
        fast.round()
    assert fast.elapsed <= 1.02 * fast.earned + 1.0 + 4.0 + fast.worst


def test_a_generation_that_gets_faster_is_noticed():
    """Plain rounds were measured when rounds were slow, and every round since was drafted."""
    seconds = {"plain": 2.0}
    machine = Machine(
        Adaptive(),
        lambda live, nodes: linear(seconds["plain"], 0.1, 0.02)(live, nodes),
        lambda row, depth: 1 if seconds["plain"] == 2.0 else 0,
    )
    for _ in range(30):
        machine.round()
    assert machine.depths[-1] > 0
    seconds["plain"] = 1.0
    before = machine.elapsed, machine.earned
    for _ in range(200):
        machine.round()
    assert machine.elapsed - before[0] <= 1.08 * (machine.earned - before[1])


def test_two_sessions_of_one_scheduler_keep_their_own_ledgers():
    scheduler = Adaptive()
    wrong = Machine(scheduler, linear(1.0, 0.3, 0.1), lambda row, depth: 0)
    right = Machine(scheduler, linear(1.0, 0.3, 0.1), lambda row, depth: depth)
    for _ in range(120):
        wrong.round(), right.round()
    assert sum(wrong.depths[-40:]) <= 5 < sum(right.depths[-40:])


def test_budgets_carry_costs_and_rate():
    machine = Machine(Adaptive(max_nodes=9), linear(1.0, 0.1, 0.02), lambda row, depth: depth)
    for _ in range(60):
        machine.round()
    budget = machine.session.plan(machine.rows)
    assert budget.depth == 9 and budget.nodes == 9
    assert budget.cost(9) == pytest.approx(1.28, rel=0.05)
    assert budget.rate is not None and budget.rate > 0


def test_config():
    made = Adaptive(max_depth=3, max_nodes=7, margin=0.5)
    assert Adaptive.from_config(made.config).config == made.config
    for wrong in ({"max_depth": -1}, {"max_nodes": -1}, {"margin": 1.0}, {"margin": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Adaptive(**wrong)


# --- the cost curve -------------------------------------------------------------------------------------


def test_nothing_is_forecast_before_the_first_plain_round():
    with pytest.raises(ValueError, match="no plain round"):
        CostCurve().observe(3, 1.0)(3)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 64), st.floats(1e-4, 10.0)), min_size=1, max_size=40),
)
def test_forecasts_never_fall_with_more_nodes(rounds):
    curve = CostCurve().observe(0, 1.0)
    for nodes, seconds in rounds:
        curve = curve.observe(nodes, seconds)
    values = [curve(nodes) for nodes in range(65)]
    assert all(value > 0 for value in values)
    assert all(b >= a - 1e-12 for a, b in itertools.pairwise(values))
    assert max(values) <= 60 * 10.0


@settings(max_examples=60)
@given(plain=st.floats(0.01, 1.0), step=st.floats(0.0, 0.5), slope=st.floats(0.0, 0.1), seed=st.integers(0, 9))
def test_a_straight_line_is_learnt(plain, step, slope, seed):
    draw, curve = random.Random(seed), CostCurve()
    cost = lambda nodes: plain * (1 + (step + slope * nodes if nodes else 0))  # noqa: E731
    for _ in range(120):
        nodes = draw.randint(0, 16)
        curve = curve.observe(nodes, cost(nodes))
    for nodes in (0, 1, 4, 16):
        assert curve(nodes) == pytest.approx(cost(nodes), rel=0.08)


def test_one_hiccup_of_the_machine_is_not_believed():
    curve = CostCurve()
    for _ in range(20):
        curve = curve.observe(0, 1.0).observe(4, 1.2)
    shaken = curve.observe(0, 500.0).observe(4, 500.0)
    assert shaken(0) < 1.5 and shaken(4) < 2.0
    assert curve(0) == pytest.approx(1.0)  # observing makes a new curve


def test_a_lasting_change_is_believed():
    curve = CostCurve()
    for _ in range(20):
        curve = curve.observe(0, 1.0).observe(4, 1.2)
    for _ in range(100):
        curve = curve.observe(0, 5.0).observe(4, 6.0)
    assert curve(0) == pytest.approx(5.0, rel=0.05) and curve(4) == pytest.approx(6.0, rel=0.1)


def test_a_slow_spell_of_the_machine_leaves_prices_alone():
    curve = CostCurve()
    for _ in range(20):
        curve = curve.observe(0, 1.0).observe(4, 1.2)
    for stale in range(30):  # drafts only, while the machine is slow, then again as it was
        curve = curve.observe(4, 4.8 if stale < 15 else 1.2, stale)
    assert curve(0) == pytest.approx(1.0, rel=0.05) and curve(4) == pytest.approx(1.2, rel=0.05)


def test_a_plain_round_of_a_slow_spell_does_not_make_drafts_look_cheap():
    curve = CostCurve()
    for _ in range(20):
        curve = curve.observe(0, 1.0).observe(64, 3.5)
    curve = curve.observe(0, 4.0, 16)
    for stale in range(3):
        curve = curve.observe(64, 3.5, stale)
    assert curve(64) > 2.5 * curve(0)


def test_a_machine_that_becomes_faster_does_not_make_nodes_free():
    curve = CostCurve()
    for _ in range(20):
        curve = curve.observe(0, 1.0).observe(4, 1.1).observe(16, 1.4, 1)
    for stale in range(2, 12):
        nodes = 16 if stale % 2 else 4
        curve = curve.observe(nodes, 0.5 * (1.4 if nodes == 16 else 1.1), stale)
    assert curve(0) == pytest.approx(0.5, rel=0.05)
    assert curve(16) - curve(4) == pytest.approx(0.15, rel=0.3)


def test_the_first_drafts_of_many_rows_are_short():
    """Before anything is measured, nodes of a batch are taken to cost as many rows as it has."""
    alone = Machine(Adaptive(), linear(), lambda row, depth: 0)
    batch = Machine(Adaptive(), linear(), lambda row, depth: 0, live=8)
    for machine in (alone, batch):
        machine.round(), machine.round()
    assert alone.depths[1] > batch.depths[1]


def test_prices_are_known_when_a_row_has_ended():
    machine = Machine(Adaptive(), linear(slope=2.0), lambda row, depth: 0, live=3)
    for _ in range(40):
        machine.round()
    before = len(machine.depths)
    for _ in range(6):
        machine.round(2)
    assert machine.depths[before] == 0 and sum(machine.depths[before:]) <= 2  # a plain round first, and no new search


def test_a_first_draft_that_was_compiled_says_nothing_for_good():
    curve, levels = CostCurve().observe(0, 1.0).observe(16, 900.0), LevelCost().observe(4, 300.0)
    curve = curve.observe(0, 1.0).observe(16, 1.3)
    assert curve(16) == pytest.approx(1.3, rel=0.05)
    for _ in range(2):
        levels = levels.observe(4, 0.4)
    assert levels(4) == pytest.approx(0.4, rel=0.05) and levels.step == pytest.approx(0.1, rel=0.05)


# --- passes of a few widths -----------------------------------------------------------------------------


def test_nodes_of_one_width_have_one_price():
    curve = CostCurve(widths=(1, 8, 16)).observe(0, 1.0)
    for _ in range(30):
        curve = curve.observe(3, 1.1).observe(0, 1.0).observe(12, 1.4).observe(0, 1.0)
    assert {curve(nodes) for nodes in range(1, 8)} == {curve(7)} and {curve(nodes) for nodes in range(8, 16)} == {
        curve(15)
    }
    assert curve(0) < curve(7) < curve(15) < curve(16) < curve(17)  # wider passes have a price for each node
    assert [curve.filled(nodes) for nodes in (0, 1, 7, 8, 15, 16)] == [0, 7, 7, 15, 15, 16]
    assert curve(7) == pytest.approx(1.1, rel=0.05) and curve(15) == pytest.approx(1.4, rel=0.05)


@pytest.mark.parametrize("max_nodes", [5, 64])
def test_budgets_fill_the_width_that_they_pay_for(max_nodes):
    machine = Machine(
        Adaptive(max_nodes=max_nodes),
        lambda live, nodes: 1.1 if nodes else 1.0,
        lambda row, depth: depth,
        widths=(1, 8),
    )
    for _ in range(20):
        machine.round()
        budget = machine.session.plan(machine.rows)
        assert budget.nodes in (0, min(7, max_nodes)) or budget.nodes > 7


def test_what_was_learnt_for_other_widths_is_not_taken_over():
    scheduler = Adaptive()
    first = Machine(scheduler, linear(1.0, 0.1, 0.02), lambda row, depth: depth, widths=(1, 8))
    for _ in range(20):
        first.round()
    assert Machine(scheduler, linear(1.0, 0.1, 0.02), lambda row, depth: depth).round() == 0


@pytest.mark.parametrize("price, widths", [(1.5, (1, 8)), (2.2, (1, 8)), (3.5, ())])
def test_a_drafter_that_minds_a_price_that_was_wrong_is_asked_to_draft_again(price, widths):
    """The first drafts took long, so the drafter finds none that pays, and nothing would ever say what they cost."""
    scheduler = Adaptive()
    first = Machine(
        scheduler, lambda live, nodes: price if nodes else 1.0, lambda row, depth: min(depth, 1), widths=widths
    )
    while not any(first.depths):
        first.round()
    second = Machine(
        scheduler, lambda live, nodes: 1.1 if nodes else 1.0, lambda row, depth: min(depth, 1), widths=widths
    )
    second.minds = True
    for _ in range(80):
        second.round()
    assert sum(depth > 0 for depth in second.depths[-40:]) > 30


def test_no_draft_is_larger_than_the_widest_padded_pass():
    accept = lambda row, depth: depth  # noqa: E731
    machine = Machine(
        Adaptive(max_depth=64), lambda live, nodes: 1.01 if nodes else 1.0, accept, widths=(1, 8, 16, 32, 64)
    )
    for _ in range(60):
        machine.round()
    assert max(machine.depths) == 63


def test_trees_of_padded_passes_are_told_apart_by_their_widths():
    """Eight nodes cost what fifteen do: a limit between two widths would be no limit of its own."""
    assert TreeSizes(15, (1, 8, 16, 32)).limits == (7, 15)
    assert TreeSizes(20, (1, 8, 16, 32)).limits == (7, 15, 20)
    assert TreeSizes(5, (1, 8)).limits == (5,) and TreeSizes(64, (1,)).limits == (64,)
    assert TreeSizes(64).limits == (8, 16, 32, 64)


def test_fewer_nodes_are_those_that_cost_less():
    padded, free = CostCurve(widths=(1, 8, 16)), CostCurve()
    assert [padded.fewer(nodes) for nodes in (15, 12, 8, 7, 3)] == [7, 7, 7, 0, 0]
    assert [free.fewer(nodes) for nodes in (15, 7, 1)] == [7, 3, 0]


def test_bad_luck_at_the_start_of_short_calls_does_not_end_drafting():
    """A third of the drafts keep three tokens and the others none: worth 1.3 of plain decoding, but in bursts."""
    elapsed = earned = 0.0
    for seed in range(4):
        scheduler, draw = Adaptive(max_depth=3), random.Random(seed)
        accept = lambda row, depth, draw=draw: 3 * (draw.random() < 0.3)  # noqa: E731
        for call in range(40):
            machine = Machine(scheduler, linear(1.0, 0.4, 0.02), accept)
            for _ in range(25):
                machine.round()
            if call >= 5:
                elapsed, earned = elapsed + machine.elapsed, earned + machine.earned
    assert earned / elapsed >= 1.21
