"""Drafts, their topology, and forests: what follows from `parents`, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.draft import ANCHOR, Candidate, Draft, Kind, topology
from specdec.core.forest import IID, NO_REPLACE, NONE, POINT, Forest
from specdec.core.sampling import Sampling
from specdec.core.state import Row

pytestmark = pytest.mark.core
CPU = torch.device("cpu")


@st.composite
def forests(draw, most=10):
    """Parents in topological order, with a scratch set that is closed downward."""
    count = draw(st.integers(0, most))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(count))
    scratch = set()
    for node, parent in enumerate(parents):
        if parent in scratch or (draw(st.booleans()) and draw(st.booleans())):
            scratch.add(node)
    return parents, frozenset(scratch)


@given(forests())
def test_everything_follows_from_parents(forest):
    parents, scratch = forest
    shape = topology(parents, (Kind.POINT,) * len(parents), scratch)
    for node, parent in enumerate(parents):
        above, here = shape.paths[parent + 1], shape.paths[node + 1]
        assert here == (*above, node + 1) and shape.depths[node + 1] == len(here)
        stands = [candidate.node for candidate in shape.candidates[parent + 1]]
        assert (node + 1 in stands) == (node not in scratch)
    assert shape.depth == max(map(len, shape.paths)) and shape.judged == len(parents) - len(scratch)
    assert shape.is_chain == (parents == tuple(range(-1, len(parents) - 1)))
    assert sum(map(len, shape.candidates)) == shape.judged
    for at_node in shape.candidates:  # siblings stand in draw order
        assert [candidate.node for candidate in at_node] == sorted(candidate.node for candidate in at_node)


def test_equal_forests_have_one_topology():
    assert Draft.point([1, 2], [-1, 0]).topology is Draft.point([7, 8]).topology
    assert Draft.point([1, 2]).topology is not Draft.point([1, 2], [-1, -1]).topology
    assert Draft.empty() is Draft.empty() and len(Draft.empty()) == 0 and Draft.empty().topology.is_chain


@pytest.mark.parametrize(
    ("parents", "scratch", "match"),
    [
        ((0,), (), "node 0 has parent 0"),
        ((-1, 1), (), "node 1 has parent 1"),
        ((-1, 2, -1), (), "node 1 has parent 2"),
        ((-2,), (), "node 0 has parent -2"),
        ((-1, 0), (0,), "node 1 is judged but hangs under scratch node 0"),
        ((-1, 0), (2,), r"scratch names nodes \[2\].*0 to 1"),
        ((-1, 0), (-1,), "scratch"),
    ],
)
def test_what_is_no_forest(parents, scratch, match):
    with pytest.raises(ValueError, match=match):
        topology(parents, (Kind.POINT,) * len(parents), frozenset(scratch))


def test_a_kind_for_every_node():
    with pytest.raises(ValueError, match="2 parents but 1 kinds"):
        topology((-1, 0), (Kind.POINT,))


def test_sampled_candidacies_are_judged_first_and_repeats_too():
    kinds = (Kind.POINT, Kind.IID, Kind.POINT, Kind.IID)
    shape = topology((-1, -1, -1, -1), kinds, frozenset(), (Candidate(0, Kind.IID), Candidate(3, Kind.POINT)))
    order = [(candidate.node, candidate.kind) for candidate in shape.candidates[0]]
    assert order == [
        (2, Kind.IID), (4, Kind.IID), (1, Kind.IID), (1, Kind.POINT), (3, Kind.POINT), (4, Kind.POINT)
    ]  # fmt: skip
    assert shape.fanout == 6 and shape.judged == 4


@pytest.mark.parametrize(("node", "scratch"), [(2, ()), (-1, ()), (1, (1,))])
def test_repeats_of_nodes_that_do_not_stand(node, scratch):
    with pytest.raises(ValueError, match="repeated candidacy"):
        topology((-1, -1), (Kind.POINT,) * 2, frozenset(scratch), (Candidate(node, Kind.POINT),))


def test_builders():
    chain = Draft.point(torch.tensor([4, 5, 6]))
    assert chain.parents == (ANCHOR, 0, 1) and set(chain.kinds) == {Kind.POINT} and chain.q is None
    q = torch.rand(2, 5)
    assert Draft.sampled([1, 2], q).kinds == (Kind.IID,) * 2
    assert Draft.sampled([1, 2], q, [-1, -1], replace=False).kinds == (Kind.NO_REPLACE,) * 2
    assert Draft.point(range(3)).tokens == (0, 1, 2)
    assert torch.equal(Draft.point([3, 4]).token_tensor(CPU), torch.tensor([3, 4]))
    assert not Kind.POINT.sampled and Kind.IID.sampled and Kind.NO_REPLACE.sampled
    with pytest.raises(AttributeError):
        chain.tokens = (1,)


# --- forests --------------------------------------------------------------------------------------------


def rows(*eos):
    return [Row(index, [10 + index], Sampling(), 50, eos=frozenset(ends)) for index, ends in enumerate(eos)]


@pytest.mark.parametrize("on_device", [False, True])
def test_rows_are_packed_side_by_side(on_device):
    drafts = [Draft.point([1, 2, 3], [-1, -1, 0]), Draft.empty(), Draft.point([7])]
    if on_device:
        drafts[0] = Draft.point(torch.tensor([1, 2, 3]), [-1, -1, 0])
    forest = Forest.pack(rows((), (), ()), drafts, CPU)
    assert (forest.width, forest.depth) == (4, 2)
    assert forest.tokens[0].tolist() == [10, 1, 2, 3]
    assert forest.tokens[1, 0] == 11 and forest.tokens[2, :2].tolist() == [12, 7]


@given(st.lists(forests(6), min_size=1, max_size=4))
def test_tables_say_what_the_topologies_say(shapes):
    drafts = [Draft.point([0] * len(parents), parents, scratch=scratch) for parents, scratch in shapes]
    forest = Forest.pack(rows(*[()] * len(drafts)), drafts, CPU)
    tables, candidates = forest.tables, forest.candidates
    for row, shape in enumerate(forest.shapes):
        for node in range(forest.width):
            real = node <= len(shape.parents)
            assert tables.judged[row, node] == (node > 0 and real and node - 1 not in shape.scratch)
            if not real:
                continue
            path = tables.path[row, node].tolist()
            assert path[: shape.depths[node]] == list(shape.paths[node])
            assert set(path[shape.depths[node] :]) <= {node}
            assert tables.depth[row, node] == shape.depths[node]
            assert tables.parent[row, node] == (shape.parents[node - 1] + 1 if node else 0)
            standing = [
                int(n) for n, kind in zip(candidates.node[row, node], candidates.kind[row, node], strict=True)
                if kind != NONE
            ]  # fmt: skip
            assert standing == [candidate.node for candidate in shape.candidates[node]]


def test_kinds_in_the_tables():
    draft = Draft((1, 2, 3), (-1, -1, 0), (Kind.POINT, Kind.IID, Kind.NO_REPLACE), torch.rand(3, 5))
    candidates = Forest.pack(rows(()), [draft], CPU).candidates
    assert candidates.kind[0, 0].tolist() == [IID, POINT] and candidates.node[0, 0].tolist() == [2, 1]
    assert candidates.kind[0, 1].tolist() == [NO_REPLACE, NONE]


def test_ends():
    drafts = [Draft.point([1, 2, 3]), Draft.point([3, 1])]
    assert Forest.pack(rows((), ()), drafts, CPU).ends() is None
    same = Forest.pack(rows((3,), (3,)), drafts, CPU).ends()
    assert same[:, 1:3].tolist() == [[False, False], [True, False]] and same[0, 3]
    own = Forest.pack(rows((3,), (1, 9)), drafts, CPU).ends()
    assert own[0].tolist() == [False, False, False, True] and own[1, 1:3].tolist() == [False, True]


def test_q_stands_on_the_parent():
    q = torch.tensor([[0.1, 0.9], [0.3, 0.7], [0.5, 0.5]])
    drafts = [Draft.sampled([0, 1], q), Draft.point([1, 1])]
    forest = Forest.pack(rows((), ()), drafts, CPU)
    for node in range(3):
        laws = forest.q(torch.tensor([node, node]), 2)
        assert laws.dtype == torch.float64 and torch.equal(laws[0], q[node].double()) and not laws[1].any()
