"""Trees grown from confidences: the kept nodes form a tree, the best one of its size, whatever the oracle says."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.state import Budget
from specdec.drafters.growth import grow, likeliest, widths, worthwhile


class Table:
    """Confidences from a function of the path: `children(row, path)` is a list of (token, log confidence)."""

    def __init__(self, children, rows=1):
        self.children, self.rows, self.asked = children, rows, []

    def root(self):
        self.paths = [[()] for _ in range(self.rows)]
        return self._answer()

    def below(self, frontier):
        paths = []
        for row in range(self.rows):
            mine = [
                (*self.paths[row][parent], token)
                for token, parent in zip(frontier.tokens[row].tolist(), frontier.parents[row].tolist(), strict=True)
            ]
            paths.append(mine)
        self.paths = paths
        self.asked.append(frontier)
        return self._answer()

    def _answer(self):
        answers = [[self.children(row, path) for path in self.paths[row]] for row in range(self.rows)]
        tokens = torch.tensor([[[token for token, _ in node] for node in row] for row in answers])
        chances = [[[chance for _, chance in node] for node in row] for row in answers]
        return tokens, torch.tensor(chances, dtype=torch.float64)


def paths_of(draft):
    """Every node of a draft as the path of its tokens."""
    found = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), int(token)))
    return found


def tree_of(children, depth, nodes, fan, most=64, **known):
    budget = Budget(depth, nodes, **known)
    oracle = Table(lambda row, path: children(path)[:fan])
    ((draft, *_),) = grow(oracle, [budget], most).drafts([budget])
    return draft


def golden(path):
    base = 0.7 - 0.1 * len(path)
    return [(10 * len(path) + 1, math.log(base)), (10 * len(path) + 2, math.log(base - 0.3))]


def test_the_printed_dynamic_tree():
    draft = tree_of(golden, depth=4, nodes=5, fan=2, most=2)
    by_depth = sorted(range(len(draft)), key=lambda node: (draft.topology.depths[node + 1], node))
    assert [draft.tokens[node] for node in by_depth] == [1, 2, 11, 12, 11]


def test_fan_out_one_is_a_chain():
    draft = tree_of(lambda path: [(10 * len(path) + 1, -0.5)], depth=5, nodes=9, fan=1)
    assert draft.parents == (-1, 0, 1, 2, 3) and draft.tokens == (1, 11, 21, 31, 41)
    assert list(draft.topology.depths[1:]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("candidates", [[[7, 8], [3, 4], [9, 1]], [[1, 2, 3], [4, 5, 6]], [[5, 6, 7, 8]]], ids=str)
def test_equal_confidences_give_the_cartesian_tree(candidates):
    every = [path for depth in range(len(candidates)) for path in itertools.product(*candidates[: depth + 1])]
    fan = len(candidates[0])

    def children(path):
        return [(token, -0.25) for token in candidates[len(path)]]

    draft = tree_of(children, len(candidates), len(every), fan)
    assert sorted(paths_of(draft)) == sorted(every)
    for nodes in range(1, len(every)):  # a smaller one holds the shallowest nodes
        part = tree_of(children, len(candidates), nodes, fan)
        assert sorted(map(len, paths_of(part))) == sorted(map(len, every))[:nodes]


@dataclass(frozen=True)
class Case:
    """A random oracle: log confidences at each path from a table of a few numbers whose sums are exact, so ties too."""

    chances: tuple[float, ...]
    fan: int
    depth: int
    nodes: int
    seed: int

    def __call__(self, path):
        code = self.seed
        for token in path:
            code = (code * 31 + token + 7) % 10007
        return [(rank, self.chances[(code + 13 * rank) % len(self.chances)]) for rank in range(self.fan)]

    def value(self, path):
        return math.exp(sum(self(path[:length])[token][1] for length, token in enumerate(path)))

    def best(self):
        """Value of the best subtree, by trying the worthiest nodes of all there are."""
        every = [
            path for length in range(1, self.depth + 1) for path in itertools.product(range(self.fan), repeat=length)
        ]
        return sum(sorted(map(self.value, every), reverse=True)[: self.nodes])


cases = st.builds(
    Case,
    chances=st.lists(st.sampled_from([-math.inf, 0.0, -0.25, -0.5, -1.0, -3.0]), min_size=1, max_size=5).map(tuple),
    fan=st.integers(1, 3),
    depth=st.integers(1, 4),
    nodes=st.integers(1, 12),
    seed=st.integers(0, 500),
)


def every_subtree_value(case):
    """The largest value of any ancestor-closed set of that many nodes, by trying all of them."""

    def best(frontier, left):
        if not left or not frontier:
            return 0.0
        node, rest = frontier[0], frontier[1:]
        without = best(rest, left)
        below = [(*node, token) for token in range(case.fan)] if len(node) < case.depth else []
        return max(without, case.value(node) + best(rest + below, left - 1))

    return best([(token,) for token in range(case.fan)], case.nodes)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_the_kept_nodes_are_a_tree_of_maximal_value(case):
    draft = tree_of(case, case.depth, case.nodes, case.fan)
    kept = paths_of(draft)
    assert len(set(kept)) == len(kept) <= case.nodes
    assert all(path[:-1] == () or path[:-1] in kept for path in kept)
    assert max(map(len, kept), default=0) <= case.depth
    assert sum(map(case.value, kept)) == pytest.approx(case.best(), abs=1e-9)
    if kept:  # ties go to the shallower node: nothing that was left out is as worthy and less deep
        least = min(map(case.value, kept))
        tied = [path for path in kept if case.value(path) == least]
        left_out = [
            path
            for length in range(1, case.depth + 1)
            for path in itertools.product(range(case.fan), repeat=length)
            if path not in kept and (path[:-1] == () or path[:-1] in kept) and case.value(path) > 0
        ]
        for path in left_out:
            assert case.value(path) < least or (len(path) >= max(map(len, tied)) and case.value(path) == least)


@settings(max_examples=40, deadline=None)
@given(cases.filter(lambda case: case.nodes <= 6 and case.depth <= 3))
def test_the_best_tree_is_that_of_the_worthiest_nodes(case):
    # What the property above takes for granted, by trying every subtree.
    assert every_subtree_value(case) == pytest.approx(case.best(), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(cases, st.integers(1, 4))
def test_a_narrow_frontier_keeps_the_best_of_what_it_looked_at(case, most):
    budget = Budget(case.depth, case.nodes)
    grown = grow(Table(lambda row, path: case(path)), [budget], most)
    ((draft, known, _),) = grown.drafts([budget])
    assert [math.exp(value) for value in known] == pytest.approx(list(map(case.value, paths_of(draft))))
    values = grown.values[0].exp().tolist()
    kept = paths_of(draft)
    assert sum(map(case.value, kept)) == pytest.approx(sum(sorted(values, reverse=True)[: case.nodes]), abs=1e-9)
    assert all(path[:-1] == () or path[:-1] in kept for path in kept)
    for node, parent in enumerate(grown.parents[0].tolist()):
        assert parent < node and (parent < 0 or values[node] <= values[parent])


@settings(max_examples=40, deadline=None)
@given(st.lists(cases, min_size=2, max_size=4))
def test_a_rows_tree_does_not_depend_on_the_batch(several):
    fan = min(case.fan for case in several)
    budgets = [Budget(case.depth, case.nodes) for case in several]
    together = grow(Table(lambda row, path: several[row](path)[:fan], len(several)), budgets, 3).drafts(budgets)
    for case, (draft, *_) in zip(several, together, strict=True):
        alone = tree_of(case, case.depth, case.nodes, fan, most=3)
        assert (alone.tokens, alone.parents) == (draft.tokens, draft.parents)


def test_what_a_node_sees_are_its_ancestors():
    case = Case((-0.5, -1.0, -1.25), 2, 4, 12, 3)
    oracle = Table(lambda row, path: case(path))
    grow(oracle, [Budget(4, 12)], 3)
    every, before = [], [()]
    for frontier in oracle.asked:
        tokens, parents = frontier.tokens[0].tolist(), frontier.parents[0].tolist()
        mine = [(*before[parent], token) for token, parent in zip(tokens, parents, strict=True)]
        every += mine
        for path, seen in zip(mine, frontier.seen[0].tolist(), strict=True):
            assert [every[i] for i, flag in enumerate(seen) if flag] == [path[: i + 1] for i in range(len(path))]
        before = mine


@pytest.mark.parametrize("fan", [1, 2, 5])
def test_no_more_is_expanded_than_may_be_kept(fan):
    for nodes, depth in itertools.product(range(9), range(6)):
        found = widths([Budget(depth, nodes)], fan, 4)
        assert len(found) <= max(0, depth - 1)
        for level, width in enumerate(found, start=1):
            assert 1 <= width <= 4 and width + level <= nodes
    assert widths([Budget(5, 64)], 4, 4) == (4, 4, 4, 4) and widths([Budget(5, 5)], 1, 4) == (1, 1, 1, 1)
    assert widths([Budget(0, 0), Budget(3, 5)], 2, 4) == widths([Budget(3, 5)], 2, 4)


def test_a_budget_of_nothing_gives_nothing():
    case = Case((-0.5,), 2, 3, 8, 1)
    budgets = [Budget(0, 5), Budget(3, 8), Budget(3, 0)]
    drafts = grow(Table(lambda row, path: case(path), 3), budgets, 4).drafts(budgets)
    assert [bool(len(draft)) for draft, *_ in drafts] == [False, True, False]


@pytest.mark.parametrize("broken", [math.nan, -math.inf, math.inf, 5.0])
def test_confidences_that_are_none_cost_nodes_only(broken):
    class Broken(Table):
        def _answer(self):
            tokens, chances = super()._answer()
            return tokens, chances.index_fill(2, torch.tensor([1]), broken)

    budget = Budget(3, 8)
    ((draft, *_),) = grow(Broken(lambda row, path: [(3, -0.5), (4, -0.5)]), [budget], 4).drafts([budget])
    draft.topology  # noqa: B018 - raises where it is no forest
    assert len(draft) == (8 if broken > 0 else 3)  # without the broken children, a chain


def test_only_what_pays_is_drafted():
    def children(path):
        return [(1, math.log(0.5)), (2, math.log(0.25))]

    every = [path for length in range(1, 5) for path in itertools.product((0, 1), repeat=length)]
    worth = [math.prod((0.5, 0.25)[step] for step in path) for path in every]
    for price in (0.01, 0.06, 0.2, 0.3, 0.9):
        draft = tree_of(children, 4, 20, 2, cost=lambda nodes, price=price: 1.0 + price * nodes, rate=1.0)
        assert len(draft) == min(20, max(1, sum(value > price for value in worth)))


def test_growing_stops_where_a_level_does_not_pay():
    def asked(step, chance=0.5):
        oracle = Table(lambda row, path: [(1, math.log(chance))])
        grow(oracle, [Budget(8, 8, lambda nodes: 1.0, 1.0, step=step)], 4)
        return len(oracle.asked)

    # The node of level n is worth chance ** n.
    assert [asked(step) for step in (0.0, 0.1, 0.2, 0.3, 0.6)] == [7, 2, 1, 0, 0]
    assert asked(0.3, chance=0.9) > 5


def test_a_cheap_round_takes_all_and_a_step_in_cost_is_skipped_or_paid():
    values = [math.log(v) for v in (0.9, 0.5, 0.3, 0.29, 0.28)]
    step = Budget(5, 5, lambda nodes: 1.0 if nodes <= 2 else 1.5, 1.0)
    assert worthwhile(values, step) == 5  # 0.87 more for a step of 0.5
    assert worthwhile(values, replace(step, rate=2.0)) == 2
    assert worthwhile(values, Budget(5, 3)) == 3 and worthwhile([-math.inf] * 3, Budget(5, 3)) == 0
    assert worthwhile([], step) == 0


def test_chains_mind_costs_too():
    budget = Budget(6, 6, lambda nodes: 0.2 * nodes, 1.0)
    ((draft, *_),) = grow(Table(lambda row, path: [(5, math.log(0.5))]), [budget], 1).chains([budget])
    assert torch.equal(draft.tokens, torch.tensor([5, 5]))  # 0.5 and 0.25 pay 0.2, 0.125 does not
    ((whole, *_),) = grow(Table(lambda row, path: [(5, math.log(0.5))]), [Budget(6, 4)], 1).chains([Budget(6, 4)])
    assert len(whole) == 4 and isinstance(whole.tokens, torch.Tensor)


def test_the_likeliest_tokens_and_their_chances():
    torch.manual_seed(0)
    logits = torch.randn(3, 2, 500)
    tokens, chances = likeliest(logits, 4)
    want = logits.log_softmax(-1).topk(4)
    assert torch.equal(tokens, want.indices) and torch.allclose(chances, want.values, atol=1e-6)
    assert likeliest(logits.bfloat16(), 2)[1].dtype == torch.float32
    assert likeliest(logits.double(), 2)[1].dtype == torch.float64
    broken = logits.clone()
    broken[0] = math.nan
    assert (likeliest(broken, 3)[0] < 500).all()


@settings(max_examples=30, deadline=None)
@given(cases)
def test_what_was_expanded_is_told(case):
    oracle, budget = Table(lambda row, path: case(path)), Budget(case.depth, case.nodes)
    ((draft, _, expanded),) = grow(oracle, [budget], 3).drafts([budget])
    asked, before = [], [()]
    for frontier in oracle.asked:
        tokens, parents = frontier.tokens[0].tolist(), frontier.parents[0].tolist()
        before = [(*before[parent], token) for token, parent in zip(tokens, parents, strict=True)]
        asked += before
    kept = paths_of(draft)
    assert [kept[node] if node >= 0 else None for node in expanded] == [p if p in kept else None for p in asked]
    inner = {draft.parents[node] for node in range(len(draft))} - {-1}
    assert inner <= set(expanded)  # below a node that was not asked about, nothing is known
