"""Values of trees: against the engine, against a search through all trees, and dynamic against fixed ones."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.analysis import (
    best_nodes,
    expected_accepted_tokens,
    expected_tree_tokens,
    fixed_value_mass,
    path_values,
    value_mass,
)
from specdec.core.draft import Kind, topology
from specdec.core.engine import Generation, Parts
from specdec.core.sampling import Sampling
from specdec.core.state import Row
from specdec.schedulers import Fixed
from specdec.testing.enumeration import enumerate_law
from specdec.testing.honest import TableDrafter
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Walk

TREE = (-1, -1, 0, 0, 1, 2)


def closed(parents, kept):
    return all(parents[node] < 0 or parents[node] in kept for node in kept)


@st.composite
def trees(draw):
    """Parents of up to 8 nodes, and chances of 0 to 1 in eighths, so that values are often equal."""
    count = draw(st.integers(1, 8))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(count))
    return parents, [draw(st.integers(0, 8)) / 8 for _ in range(count)]


@given(case=trees())
def test_values_are_products_along_paths_and_never_grow(case):
    parents, chance = case
    values = path_values(chance, parents).tolist()
    for node, path in enumerate(topology(parents, (Kind.POINT,) * len(parents)).paths[1:]):
        product = 1.0
        for at in path:
            product *= chance[at - 1]
        assert values[node] == pytest.approx(product)
        assert parents[node] < 0 or values[node] <= values[parents[node]]
    assert float(expected_tree_tokens(chance, parents)) == pytest.approx(1 + sum(values))


@settings(max_examples=60)
@given(case=trees())
def test_the_worthiest_nodes_are_the_best_tree_of_their_number(case):
    parents, chance = case
    values = path_values(chance, parents)
    for budget in range(len(parents) + 2):
        kept = best_nodes(values, budget).tolist()
        assert len(kept) == min(budget, len(parents)) and closed(parents, kept)
        every = [some for some in combinations(range(len(parents)), len(kept)) if closed(parents, some)]
        best = max(sum(values[list(some)].tolist()) for some in every)
        assert float(value_mass(values, budget)) == pytest.approx(best)
        assert float(values[kept].sum()) == pytest.approx(best)


def test_a_chain_is_a_tree():
    chain = tuple(range(-1, 5))
    assert float(expected_tree_tokens([0.7] * 6, chain)) == pytest.approx(float(expected_accepted_tokens(0.7, 6)))


@pytest.mark.parametrize("fanouts", [(1, 1), (2, 1), (2, 2), (3,)])
def test_a_pass_of_the_engine_emits_as_many(fanouts):
    p = {(): (4, 3, 2), (0,): (1, 6, 2), (1,): (3, 3, 1), (2,): (2, 1, 7)}

    def table(prefix):
        return p[prefix[-1:]]

    def run(rng):
        drafter = TableDrafter(table, "point", fanouts)
        parts = Parts(TabularTarget(table, 3), drafter, Walk(), Fixed(len(fanouts), 64))
        events = Generation(parts, (Row(0, [0], Sampling(greedy=False), 30),), rng.fold(1), rng.fold(2)).rounds()
        first = next(events).rows[0].tokens[-1]
        outcome = next(events).rows[0]
        tokens = [first, *outcome.drafted]
        chance = [
            table((tokens[parent + 1],))[tokens[node + 1]] / sum(table((tokens[parent + 1],)))
            for node, parent in enumerate(outcome.draft.parents)
        ]
        return len(outcome.tokens), float(expected_tree_tokens(chance, outcome.draft.parents)), first

    law = enumerate_law(run)
    mean = sum(weight * count for (count, _, _), weight in law.items())
    assert mean == pytest.approx(sum(weight * expected for (_, expected, _), weight in law.items()))


@given(seed=st.integers(0, 999), budget=st.integers(0, 8))
def test_a_fixed_tree_is_worth_no_more_than_a_dynamic_one(seed, budget):
    chance = torch.rand(5, len(TREE), generator=torch.Generator().manual_seed(seed))
    values = path_values(chance, TREE)
    dynamic, fixed = value_mass(values, budget), float(fixed_value_mass(values, budget))
    assert dynamic.shape == (5,) and fixed <= float(dynamic.mean()) + 1e-9
    every = [
        float(values[:, list(some)].sum(-1).mean())
        for some in combinations(range(len(TREE)), min(budget, len(TREE)))
        if closed(TREE, some)
    ]
    assert fixed == pytest.approx(max(every))
    one = fixed_value_mass(values[:1], budget)
    assert float(one) == pytest.approx(float(dynamic[0]))  # a single context has nothing to average


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: path_values([0.5], (-1, 0)), r"chance is \[1\] for 2 parents"),
        (lambda: path_values([0.5, 0.5], (0, -1)), "node 0 has parent 0"),
        (lambda: path_values([1.5], (-1,)), "expected a probability"),
        (lambda: value_mass([0.5], -1), "budget is -1"),
        (lambda: value_mass(0.5, 1), "one number"),
        (lambda: fixed_value_mass([0.5, 0.5], 1), r"expected \[contexts, nodes\]"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
