"""Static trees: their order, their cuts, and that the search finds the best one there is."""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.errors import CheckpointError, ConfigError
from specdec.heads.trees import PUBLISHED, StaticTree, cartesian, read_tree, search, search_ranks


def closed(paths):
    return all(len(path) == 1 or path[:-1] in paths[:place] for place, path in enumerate(paths))


@pytest.mark.parametrize(("name", "nodes", "depth", "ranks"), [("mc_sim_7b_63", 63, 4, 10), ("eagle1_25", 25, 5, 4)])
def test_published_trees_have_their_published_sizes(name, nodes, depth, ranks):
    tree = PUBLISHED[name]
    assert (len(tree), tree.depth, tree.ranks) == (nodes, depth, ranks)
    assert len(set(tree.paths)) == nodes and closed(tree.paths) and not tree.is_chain
    by_level = {1: 10, 2: 28, 3: 23, 4: 2} if name == "mc_sim_7b_63" else {1: 4, 2: 8, 3: 8, 4: 3, 5: 2}
    assert {d: sum(len(path) == d for path in tree.paths) for d in by_level} == by_level


def test_parents_are_those_of_the_paths():
    for tree in [*PUBLISHED.values(), cartesian([3, 2, 1])]:
        for path, parent in zip(tree.paths, tree.parents, strict=True):
            assert (path[:-1] == () and parent == -1) or tree.paths[parent] == path[:-1]


def test_a_cartesian_tree_is_every_path_level_by_level():
    tree = cartesian([2, 3])
    assert tree.paths == ((0,), (1,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    assert tree.parents == (-1, -1, 0, 0, 0, 1, 1, 1)
    assert cartesian([1, 1, 1]).is_chain


def test_paths_wait_for_their_parents():
    tree = StaticTree(((0, 0, 1), (1,), (0, 0), (0,)))
    assert tree.paths == ((1,), (0,), (0, 0), (0, 0, 1)) and tree.parents == (-1, -1, 1, 2)


@pytest.mark.parametrize(
    ("paths", "values", "said"),
    [
        ([], None, "at least one path"),
        ([(0, 1)], None, r"path \[0, 1\] has no parent: \[0\]"),
        ([(0,), (0,)], None, r"path \[0\] is in the tree twice"),
        ([(-1,)], None, "counted from 0"),
        ([()], None, "one or more ranks"),
        ([(0,)], [0.5, 0.5], "1 paths but 2 values"),
        ([(0,), (0, 0)], [0.5, 0.6], r"path \[0, 0\] has value 0.6"),
        ([(0,)], [1.5], "has value 1.5"),
    ],
)
def test_what_is_no_tree_is_refused(paths, values, said):
    with pytest.raises(ValueError, match=said):
        StaticTree(tuple(paths), None if values is None else tuple(values))


@given(st.sets(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12), st.data())
def test_every_cut_is_a_tree_and_the_worthiest_part_of_it(ends, data):
    paths = list({path[: n + 1] for path in ends for n in range(len(path))})
    shares = {path: data.draw(st.floats(0.0, 1.0)) for path in paths}
    values = tuple(prod(shares[path[: n + 1]] for n in range(len(path))) for path in paths)
    tree = StaticTree(tuple(paths), values)
    assert closed(tree.paths) and list(tree.values) == sorted(values, reverse=True)
    depth, nodes = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 15))
    part = tree.cut(depth, nodes)
    fitting = [path for path in tree.paths if len(path) <= depth]
    if part is None:
        assert not fitting or not nodes
    else:
        assert part.paths == tuple(fitting[:nodes]) and closed(part.paths)
        assert part.values == tuple(dict(zip(tree.paths, tree.values, strict=True))[path] for path in part.paths)


def test_a_cut_by_rank_for_a_small_vocabulary():
    part = PUBLISHED["mc_sim_7b_63"].cut(4, 63, ranks=2)
    assert part.ranks == 2 and closed(part.paths)
    assert set(part.paths) == {path for path in PUBLISHED["mc_sim_7b_63"].paths if max(path) < 2}
    assert PUBLISHED["mc_sim_7b_63"].cut(4, 63, ranks=0) is None


def trees(paths, size):
    """Every prefix-closed set of `size` of these paths."""
    return (found for found in combinations(paths, size) if all(len(p) == 1 or p[:-1] in found for p in found))


chances = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(lambda parts: [part / 20 for part in parts])


@given(st.lists(chances, min_size=1, max_size=3), st.integers(1, 5))
def test_the_search_keeps_as_many_tokens_as_the_best_tree_there_is(accuracies, nodes):
    every = [path for d in range(len(accuracies)) for path in product(*(range(len(a)) for a in accuracies[: d + 1]))]
    worth = {path: prod(accuracies[depth][rank] for depth, rank in enumerate(path)) for path in every}
    best = max(
        (sum(worth[path] for path in tree) for size in range(1, nodes + 1) for tree in trees(every, size)), default=0.0
    )
    found = search(accuracies, nodes)
    assert len(found) <= nodes and closed(found.paths)
    assert sum(found.values) == pytest.approx(best)
    assert found.values == pytest.approx([worth[path] for path in found.paths])


@given(st.lists(st.tuples(*[st.integers(-1, 2)] * 3), min_size=1, max_size=12), st.integers(1, 5))
def test_the_search_on_positions_keeps_as_many_tokens_as_the_best_tree_there_is(ranks, nodes):
    def kept(tree):
        return sum(sum(row[: len(path)] == path for path in tree) for row in ranks)

    every = sorted({row[:d] for row in ranks for d in (1, 2, 3) if min(row[:d]) >= 0})
    best = max((kept(tree) for size in range(1, nodes + 1) for tree in trees(every, size)), default=0)
    found = search_ranks(ranks, nodes)
    assert len(found) <= nodes and closed(found.paths)
    assert kept(found.paths) == best == pytest.approx(sum(found.values) * len(ranks))


def test_ties_go_to_the_shallower_node():
    assert search([[0.5, 0.25], [0.5]], 3).paths == ((0,), (1,), (0, 0))


def test_nodes_that_are_never_right_are_left_out():
    assert search([[0.5, 0.0], [0.0]], 9).paths == ((0,),)
    assert search([[0.0, 0.0]], 9).paths == ((0,),) and search_ranks([(-1,)], 3).paths == ((0,),)


@pytest.mark.parametrize(
    ("accuracies", "nodes"), [([], 3), ([[]], 3), ([[0.5]], 0), ([[1.2]], 1), ([[-0.1]], 1), ([[0.8, 0.8]], 1)]
)
def test_a_search_for_nothing_is_refused(accuracies, nodes):
    with pytest.raises(ValueError, match="expected"):
        search(accuracies, nodes)


def test_a_tree_comes_back_from_its_file(tmp_path):
    for tree in [search([[0.5, 0.2], [0.25, 0.125]], 6), PUBLISHED["eagle1_25"]]:
        tree.save(tmp_path / "tree.json")
        assert read_tree(tmp_path / "tree.json") == tree
    (tmp_path / "list.json").write_text("[[0], [0, 1]]")
    assert read_tree(tmp_path / "list.json").paths == ((0,), (0, 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[0, 1]]", "holds no tree: path .* has no parent"),
        ("{", "cannot be read as JSON"),
        ('{"nodes": 3}', "holds no tree: expected a list of paths"),
        ('{"values": [1]}', "holds no tree"),
        ("3", "holds no tree"),
        ('["ab"]', "holds no tree"),
    ],
)
def test_a_file_without_a_tree_is_named(tmp_path, text, said):
    (tmp_path / "tree.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"tree.json.*{said}"):
        read_tree(tmp_path / "tree.json")
    with pytest.raises(ConfigError, match=r"no tree.*mc_sim_7b_63"):
        read_tree(tmp_path / "other.json")


@pytest.mark.parametrize(("decay", "tokens"), [(0.9, 3.72), (0.7, 2.19), (0.5, 1.64)])
def test_golden_expected_tokens_of_five_heads(decay, tokens):
    tree = search([[decay**head] for head in range(1, 6)], 5)
    assert tree.is_chain and tree.depth == 5
    assert 1 + sum(tree.values) == pytest.approx(tokens, abs=0.005)


def test_the_golden_candidate_tree():
    tree, candidates = cartesian([2, 2]), [[7, 8], [3, 4]]
    assert [candidates[len(path) - 1][path[-1]] for path in tree.paths] == [7, 8, 3, 4, 3, 4]
    assert tree.parents == (-1, -1, 0, 0, 1, 1)
