"""Trees of draws: their shapes, that they are honest, and the law of what is emitted with them."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.draft import ANCHOR, Draft, Kind
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Outcome, Row
from specdec.drafters import DraftModel
from specdec.drafters.draft_model import example
from specdec.drafters.sampled_tree import grow
from specdec.drafters.shares import Shares
from specdec.drafters.tree_shape import best_shape, tree_shape
from specdec.testing import check
from specdec.testing.drafter_laws import compare
from specdec.testing.harness import FULL
from specdec.testing.laws import HashTable, LawCase
from specdec.testing.tabular import TabularTarget
from specdec.verifiers.token import Token
from specdec.verifiers.traversal import Traversal
from tests.drafters.test_draft_model import NO_SCORES, propose, start
from tests.frontdoor.models import PROMPT, VOCAB, decoder, llama, noisy, plain, target
from tests.kit.mutants import table
from tests.law.tables import pairs

pytestmark = pytest.mark.core

# --- shapes ---------------------------------------------------------------------------------------------


def test_a_shape_knows_levels_paths_and_whom_to_ask():
    shape = tree_shape((-1, -1, 0, 0, 1, 2))
    assert [level.nodes for level in shape.levels] == [(ANCHOR,), (0, 1), (2,)]
    assert [level.children for level in shape.levels] == [((0, 1),), ((2, 3), (4,)), ((5,),)]
    assert [level.above for level in shape.levels] == [(), (0, 0), (1,)]
    assert shape.opened == (0, 1, 2) and shape.paths[5] == (0, 2, 5) and shape.paths[ANCHOR] == ()
    assert tree_shape(()).depth == 0


@pytest.mark.parametrize("parents", [(0,), (-1, 0, -1), (-1, -1, 1, 0), (-1, -1, 0, 1, 0), (-2,)], ids=str)
def test_other_orders_are_refused(parents):
    with pytest.raises(ValueError, match="parent"):
        tree_shape(parents)


@settings(max_examples=60)
@given(
    fanouts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3),
    nodes=st.integers(0, 6),
    depth=st.integers(0, 3),
)
def test_the_best_shape_is_the_best_of_all(fanouts, shares, nodes, depth):
    shares = sorted(shares, reverse=True)
    everything = [
        path
        for length in range(1, min(depth, len(fanouts)) + 1)
        for path in itertools.product(*(range(fan) for fan in fanouts[:length]))
    ]

    def worth(path):
        found = 1.0
        for order in path:
            found *= shares[min(order, len(shares) - 1)]
        return found

    def closed(chosen):
        return all(
            (len(path) == 1 or path[:-1] in chosen) and (path[-1] == 0 or (*path[:-1], path[-1] - 1) in chosen)
            for path in chosen
        )

    shape = best_shape(fanouts, shares, Budget(depth, nodes))
    count = min(nodes, len(everything))
    assert len(shape) == count
    places: list[tuple[int, ...]] = []
    for node, parent in enumerate(shape.parents):
        above = places[parent] if parent != ANCHOR else ()
        places.append((*above, sum(1 for earlier in shape.parents[:node] if earlier == parent)))
    if len(everything) <= 12:
        trees = (set(chosen) for chosen in itertools.combinations(everything, count))
        best = max((sum(map(worth, tree)) for tree in trees if closed(tree)), default=0.0)
        assert sum(map(worth, places)) == pytest.approx(best)


def test_the_best_shape_is_paid_for():
    def cost(nodes):
        return 1.0 + 0.05 * nodes

    shares, fanouts = (0.6, 0.2), (3, 3, 3, 3)
    free = best_shape(fanouts, shares, Budget(4, 40))
    sizes = [len(best_shape(fanouts, shares, Budget(4, 40, cost, rate))) for rate in (0.0, 0.5, 2.0, 99.0)]
    assert sizes[0] == len(free) == 40 and sizes == sorted(sizes, reverse=True) and sizes[-1] == 1
    depths = [best_shape(fanouts, shares, Budget(4, 40, cost, 0.5, step=step)).depth for step in (0.0, 0.3, 0.6, 9.0)]
    assert depths[0] == 4 and depths == sorted(depths, reverse=True) and depths[-1] == 1
    # A level for 0.6 * 0.6 and what stands beside it has to bring more than it takes.
    assert best_shape((1, 1), (0.6,), Budget(2, 2, lambda nodes: 1.0, 1.0, step=0.37)).depth == 1
    assert best_shape((1, 1), (0.6,), Budget(2, 2, lambda nodes: 1.0, 1.0, step=0.35)).depth == 2


# --- draws ----------------------------------------------------------------------------------------------


class TableTree(Drafter):
    """Grows trees of draws from a table, the shapes being given by the budget."""

    name = "table-tree"

    def __init__(self, table, fanouts=(2, 2), shares=(0.6, 0.3), kind=Kind.NO_REPLACE):
        self.table, self.fanouts, self.shares, self.kind = table, fanouts, shares, kind
        self.emits, self.branching = frozenset({kind}), max(fanouts) > 1
        self.steps = []

    def check(self, step):
        """Both ways to say who is whose parent agree, and nodes see their ancestors."""
        if not step.depth:
            self.steps = []
            return
        self.steps.append(step)
        assert step.before == sum(earlier.width for earlier in self.steps[:-1])
        for index, above in enumerate(step.above):
            ends = [(0, ())]  # column and path of the row's nodes asked about so far, the anchor first
            for earlier in self.steps:
                ends += [
                    (1 + earlier.before + place, tuple(earlier.below[index, place].tolist()))
                    for place in range(len(earlier.above[index]))
                ]
            for place, parent in enumerate(above):
                path = tuple(step.below[index, place].tolist())
                assert ends[parent][1] == path[:-1] and ends[parent][0] == step.parents[index, place]
                seen = {column for column, _ in ends[1:] if step.seen[index, place, column - 1]}
                mine, number = {1 + step.before + place}, parent
                while number:
                    mine.add(ends[number][0])
                    number = [0, *(p for earlier in self.steps for p in earlier.above[index])][number]
                assert seen == mine
        assert step.seen[:, range(step.width), range(step.before, step.before + step.width)].all()

    def begin(self, context):
        return TableTreeSession(self)


class TableTreeSession(DraftSession):
    def __init__(self, drafter):
        self.drafter = drafter

    def propose(self, rows, budgets, rng):
        made = self.drafter
        vocab = len(made.table(tuple(rows[0].tokens)))
        shapes = [best_shape([min(fan, vocab) for fan in made.fanouts], made.shares, budget) for budget in budgets]

        def oracle(step):
            laws = torch.full((len(rows), step.width, vocab), float("nan"), dtype=torch.float64)
            made.check(step)
            for index, row in enumerate(rows):
                for place in range(len(step.above[index]) if step.depth else 1):
                    below = step.below[index, place].tolist() if step.depth else []
                    weights = torch.tensor(made.table((*row.tokens, *below)), dtype=torch.float64)
                    laws[index, place] = weights / weights.sum()
            return laws

        return grow(shapes, oracle, made.kind, rng, [(row.copy, row.rounds) for row in rows])


@pytest.mark.parametrize("rule", [Traversal, Token])
@pytest.mark.parametrize(("fanouts", "nodes", "vocab"), [((3,), 3, 3), ((2, 1), 3, 3), ((2, 2), 5, 2)], ids=str)
@settings(max_examples=5)
@given(data=st.data())
def test_output_law_is_the_targets(rule, fanouts, nodes, vocab, data):
    p, q = (HashTable(table.entries) for table in data.draw(pairs(vocab)))
    case = LawCase(p.opening((1, 0), 1), q, (1, 0), fanouts, depth=len(fanouts), nodes=nodes)
    compare(case, TabularTarget(case.p, vocab), TableTree(q, fanouts), rule(), 20_000)


def certain(vocab):
    return lambda prefix: [int(token == 1) for token in range(vocab)]


@pytest.mark.parametrize(
    ("law", "names"),
    [(table, ["reported-law"]), (certain, ["output-law", "output-law-with-end"])],
    ids=["table", "certain"],  # a function's own name changes from process to process
)
def test_every_draw_has_the_law_that_its_q_says(law, names):
    """Given all that was drawn before; also where q is a certainty, and a second child is drawn all the same."""
    report = check(lambda vocab: TableTree(law(vocab)), only=names, max_examples=3, shrink_seconds=0)
    assert report.ok and report.count("passed") == len(names), str(report)


def grown(prompts, budgets, fanouts=(3, 2), kind=Kind.NO_REPLACE, seed=0, table=FULL):
    rows = [Row(i, list(prompt), Sampling(greedy=False), 40) for i, prompt in enumerate(prompts)]
    session = TableTree(table, fanouts, kind=kind).begin(None)
    return session.propose(rows, budgets, TorchRng(seed))


def test_siblings_differ_and_stand_in_draw_order():
    for seed in range(30):
        (draft,) = grown([(1, 0)], [Budget(2, 9)], seed=seed)
        assert set(draft.kinds) == {Kind.NO_REPLACE} and len(draft) == 9
        for family in draft.topology.candidates:
            tokens = [int(draft.tokens[candidate.node - 1]) for candidate in family]
            assert len(set(tokens)) == len(tokens)
            assert [candidate.node for candidate in family] == sorted(candidate.node for candidate in family)


def test_a_certain_law_has_a_second_child_all_the_same():
    (draft,) = grown([(1, 0)], [Budget(1, 3)], table=HashTable(((0, 1, 0),)))
    assert sorted(int(token) for token in draft.tokens) == [0, 1, 2] and int(draft.tokens[0]) == 1
    assert float(draft.q[0, 1]) == pytest.approx(1.0, abs=1e-5) and float(draft.q[0].min()) > 0


def test_one_child_a_node_leaves_laws_as_they_are():
    (draft,) = grown([(1, 0)], [Budget(2, 9)], fanouts=(1, 1), table=HashTable(((0, 1, 0),)))
    assert draft.q.tolist() == [[0.0, 1.0, 0.0]] * 2


def test_rows_of_different_size_are_grown_as_each_alone():
    prompts, sizes = [(1, 0), (2,), (0, 2, 1), (1,)], [Budget(2, 7), Budget(1, 2), Budget(0, 0), Budget(2, 3)]
    for kind in (Kind.NO_REPLACE, Kind.POINT, Kind.IID):
        together = grown(prompts, sizes, kind=kind, seed=4)
        for prompt, size, draft in zip(prompts, sizes, together, strict=True):
            (alone,) = grown([prompt], [size], kind=kind, seed=4)
            assert draft.parents == alone.parents and draft.kinds == alone.kinds
            assert [int(token) for token in draft.tokens] == [int(token) for token in alone.tokens]
            assert (draft.q is None) == (alone.q is None)
            assert draft.q is None or torch.equal(draft.q, alone.q)


def test_point_trees_hold_the_likeliest_tokens():
    (draft,) = grown([(1, 0)], [Budget(2, 9)], kind=Kind.POINT)
    for node, family in enumerate(draft.topology.candidates):
        if family:
            below = [int(draft.tokens[at - 1]) for at in draft.topology.paths[node]]
            law = FULL((1, 0, *below))
            best = sorted(range(3), key=lambda token: (-law[token], token))[: len(family)]
            assert sorted(int(draft.tokens[c.node - 1]) for c in family) == sorted(best) or len(set(law)) < 3


# --- what siblings have been worth ----------------------------------------------------------------------


def outcome(parents, path, done=False):
    row = Row(0, [1], Sampling(), 99)
    draft = Draft.point([0] * len(parents), parents)
    return Outcome(row, draft, (0,) * len(parents), path, (0,) * (len(path) + 1), NO_SCORES, 0, done)


def test_shares_are_learnt_by_place_among_siblings():
    shares = Shares(3)
    before = list(shares.values())
    assert before == sorted(before, reverse=True) and sum(before) < 1
    for _ in range(200):
        shares.observe(outcome((-1, -1, -1, 1), (2, 4)))  # the second sibling, and the only child below it
    second = list(shares.values())
    assert second[0] == pytest.approx(0.5, abs=0.05)  # one of two first children was kept
    assert second[1] == pytest.approx(0.5, abs=0.05) and second[2] < 0.05
    for _ in range(200):
        shares.observe(outcome((-1, -1, -1), ()))
    assert max(shares.values()) < 0.05


def test_what_a_stop_cut_away_teaches_nothing():
    shares = Shares(2)
    before = list(shares.values())
    shares.observe(outcome((-1, -1), (), done=True))
    assert list(shares.values()) == before


# --- the draft model ------------------------------------------------------------------------------------


def tree_of(model, **options):
    return DraftModel(model, tree=(3, 2, 1), **options)


def test_each_law_is_the_models_along_its_path():
    model = llama(1, layers=1)
    session, rows = start(tree_of(model, temperature=0.7), [(1, 2, 3), (4, 5)], Sampling(greedy=False))
    drafts = propose(session, rows, [3, 2], seed=8)
    for row, draft, depth in zip(rows, drafts, (3, 2), strict=True):
        shape = draft.topology
        assert shape.depth == depth and shape.fanout == 3 and set(draft.kinds) == {Kind.NO_REPLACE}
        for node, family in enumerate(shape.candidates):
            if not family:
                continue
            tokens = [*row.tokens, *(int(draft.tokens[at - 1]) for at in shape.paths[node])]
            with torch.no_grad():
                law = (model(torch.tensor([tokens])).logits[0, -1].double() / 0.7).softmax(-1)
            assert torch.allclose(draft.q[node], law, atol=1e-5)
            assert draft.q[node].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("greedy", [True, False])
def test_its_cache_follows_whatever_branch_was_kept(greedy):
    model = llama(1, layers=1)
    sampling = Sampling(greedy=greedy)
    session, rows = start(tree_of(model), [(1, 2, 3), (9,)], sampling)
    for number in range(6):
        drafts = propose(session, rows, [3, 2], seed=number)
        outcomes = []
        for row, draft in zip(rows, drafts, strict=True):
            fresh, (other,) = start(tree_of(model), [tuple(row.tokens[:-1])], sampling)
            other.tokens = row.tokens
            other.rounds, other.copy = row.rounds, row.copy
            fresh._shares.update(session._shares)
            (again,) = propose(fresh, (other,), [(3, 2)[row.index]], seed=number)
            assert [int(token) for token in draft.tokens] == [int(token) for token in again.tokens]
            assert draft.parents == again.parents
            paths = sorted(draft.topology.paths, key=lambda path: (len(path), path))
            path = paths[(5 * number + 7 * row.index) % len(paths)]
            ids = [int(token) for token in draft.tokens]
            emitted = [*(ids[node - 1] for node in path), (11 * number + 3) % VOCAB]
            for token in emitted:
                row.tokens.commit(token)
            row.rounds += 1
            outcomes.append(Outcome(row, draft, tuple(ids), path, tuple(emitted), NO_SCORES, row.index))
        session.observe(outcomes)


def test_only_guesses_with_guesses_below_are_run():
    model = llama(1, layers=1)
    widths = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    session, rows = start(DraftModel(model, tree=(2, 2)), [(1, 2, 3)], Sampling(greedy=False))
    widths.clear()
    (draft,) = propose(session, rows, [2])
    assert len(draft) == 6 and widths == [1, 2]


@pytest.mark.parametrize("rule", [Traversal, Token])
@pytest.mark.parametrize(("tree", "nodes", "temperature"), [((2,), 2, 1.0), ((2, 1), 3, 1.0), ((3,), 3, 0.5)], ids=str)
def test_output_law_with_a_model_that_drafts(rule, tree, nodes, temperature):
    drafter = DraftModel(example(3).lm.model.double(), tree=tree)
    case = LawCase(FULL.opening((1, 0), 1), None, (1, 0), tree, len(tree), nodes, temperature=temperature)
    compare(case, TabularTarget(case.p, 3), drafter, rule(), 4000)


def test_the_kit_finds_nothing_in_the_draft_models_trees():
    names = ["interface", "budget", "output-law"]
    report = check(lambda vocab: DraftModel(example(vocab).lm.model, tree=(2, 2, 1)), only=names)
    assert report.ok and report.count("passed") == len(names), str(report)


def test_greedy_text_with_trees_is_plain_text():
    out = decoder(DraftModel(noisy(target()), tree=(3, 2, 1))).generate(PROMPT, max_new_tokens=30, do_sample=False)
    assert torch.equal(out, plain(max_new_tokens=30))


def test_config():
    made = tree_of(llama(1, layers=1))
    assert made.config.tree == (3, 2, 1) and made.branching and made.emits == {Kind.NO_REPLACE, Kind.POINT}
    assert not DraftModel(llama(1, layers=1), tree=(1, 1)).branching
    for wrong in ((), (0,), (2, -1)):
        with pytest.raises(ValueError, match="tree"):
            DraftModel(llama(1, layers=1), tree=wrong)
