"""Dynamic against fixed trees on drafts made by hand, and by search over all fixed trees."""

from __future__ import annotations

import itertools
import random

import pytest

from specdec.analysis.tree_budgets import TreeBudgets, by_confidence, places

#            0        1
#          2   3      4
#        5
TREE = (-1, -1, 0, 0, 1, 2)
SURE = (0.5, 0.4, 0.1, 0.4, 0.4, 0.1)


def test_places_are_ranks_from_the_root_down():
    assert places(TREE, SURE) == [(0,), (1,), (0, 1), (0, 0), (1, 0), (0, 1, 0)]


def test_the_order_of_confidence_never_puts_a_node_before_its_parent():
    assert by_confidence(TREE, SURE) == [0, 1, 4, 2, 3, 5]
    rng = random.Random(1)
    for _ in range(50):
        parents = [-1 if not node else rng.randint(-1, node - 1) for node in range(12)]
        sure: list[float] = []
        for parent in parents:
            sure.append((1.0 if parent < 0 else sure[parent]) * rng.choice((0.5, 1.0)))
        order = by_confidence(parents, sure)
        assert sorted(order) == list(range(12))
        assert all(parent < 0 or order[parent] < order[node] for node, parent in enumerate(parents))


def test_what_each_tree_would_have_had_accepted():
    found = TreeBudgets()
    found.enter(TREE, (0, 1, 4), SURE)  # nodes 0 and 3
    found.enter(TREE, (0, 2, 5), SURE)  # nodes 1 and 4
    found.enter(TREE, (0,), SURE)
    assert [found.dynamic(n) for n in (0, 1, 2, 3, 4)] == pytest.approx([0, 1 / 3, 2 / 3, 1, 4 / 3])
    found.enter((-1, 0), (0, 1, 2), (0.9, 0.9))
    assert [found.fixed(n) for n in (1, 2, 3, 4)] == pytest.approx([2 / 4, 4 / 4, 5 / 4, 6 / 4])
    assert found.figures([2]) == {"rounds": 4, "accepted": {"2": {"dynamic": 1.0, "best_fixed": 1.0}}}
    assert TreeBudgets().figures([2]) == {"rounds": 0, "accepted": {"2": {"dynamic": 0.0, "best_fixed": 0.0}}}


def test_no_fixed_tree_has_more_accepted_than_the_best():
    rng, found = random.Random(2), TreeBudgets()
    paths = []
    for _ in range(30):
        node, path = rng.choice([None, 0, 1]), [0]
        while node is not None:
            path.append(node + 1)
            node = rng.choice([None, *(child for child, parent in enumerate(TREE) if parent == node)])
        paths.append(path)
        found.enter(TREE, path, SURE)
    for size in range(len(TREE) + 1):
        trees = (
            kept
            for kept in itertools.combinations(range(len(TREE)), size)
            if all(TREE[node] < 0 or TREE[node] in kept for node in kept)
        )
        best = max(sum(node - 1 in kept for path in paths for node in path if node) for kept in trees)
        assert found.fixed(size) == pytest.approx(best / len(paths))
