"""Merge: one tree of several drafters' guesses, what each is told of it, and how the nodes are divided."""

from __future__ import annotations

import random

import pytest
import torch

from specdec import Decoder
from specdec.core.config import load_config
from specdec.core.contracts import Needs
from specdec.core.draft import Candidate, Draft, Kind
from specdec.core.errors import ConfigError, IncompatibleError, InvalidDraftError
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Outcome, Row, Scores
from specdec.drafters import DraftModel, First, Merge, NoDraft, PromptLookup
from specdec.drafters.joint import join
from specdec.schedulers import Adaptive, Fixed
from specdec.verifiers import Token
from tests.drafters.parts import Scripted, ahead, full_tree, texts_of
from tests.drafters.test_draft_model import greedy_continuation
from tests.exactness.models import tiny
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, VOCAB, draft, plain, target

CPU = torch.device("cpu")
POINT, IID = Kind.POINT, Kind.IID


def joined(*drafts):
    return join(drafts, [tuple(map(int, draft.tokens)) for draft in drafts], CPU)


# --- one tree ---------------------------------------------------------------------------------------------


@pytest.mark.core
def test_shared_prefixes_are_one_path():
    one, two = Draft.point([1, 2, 3]), Draft.point([1, 2, 4, 5, 2], [-1, 0, 1, 0, -1])
    joint, (first, second) = joined(one, two)
    assert (joint.tokens, joint.parents) == ((1, 2, 3, 4, 5, 2), (-1, 0, 1, 1, 0, -1))
    assert first == (1, 2, 3) and second == (1, 2, 4, 5, 6)
    assert joint.kinds == (POINT,) * 6 and joint.repeats == () and joint.q is None


@pytest.mark.core
def test_a_token_proposed_by_both_kinds_is_one_node_with_two_candidacies():
    q = torch.full((3, 8), 1 / 8)
    sampled = Draft.sampled([1, 1, 6], q, [-1, -1, 0])
    joint, (point, drawn) = joined(Draft.point([1, 6, 7]), sampled)
    assert joint.tokens == (1, 1, 6, 7) and joint.parents == (-1, -1, 0, 2)
    assert joint.kinds == (IID, IID, IID, POINT) and joint.repeats == (Candidate(0, POINT), Candidate(2, POINT))
    assert joint.q is q and drawn == (1, 2, 3) and point == (1, 3, 4)
    # Sampled before POINT, in draw order.
    assert [(c.node, c.kind) for c in joint.topology.candidates[0]] == [(1, IID), (2, IID), (1, POINT)]


@pytest.mark.core
def test_where_one_law_rules_what_another_drew_is_point_and_elsewhere_it_keeps_its_law():
    one = Draft.sampled([1, 2], torch.eye(8)[[1, 2]])
    two = Draft.sampled([3, 4, 5], torch.eye(8)[[3, 4, 5]])
    joint, _ = joined(one, two)
    assert joint.kinds == (IID, IID, POINT, IID, IID)
    laws = [int(joint.q[parent + 1].argmax()) for parent in joint.parents]
    assert laws == [1, 2, 1, 4, 5]
    same, _ = joined(one, Draft.sampled([1, 2, 6], torch.eye(8)[[1, 2, 6]]))
    assert same.tokens == (1, 2, 6) and same.kinds == (IID, IID, IID)
    assert same.repeats == (Candidate(0, POINT), Candidate(1, POINT)) and int(same.q[2].argmax()) == 6


def test_scratch_is_not_shared():
    window = Draft.point([1, 2, 9], scratch=[1, 2])
    joint, (first, second) = joined(window, Draft.point([1, 2]))
    assert joint.tokens == (1, 2, 9, 2) and joint.scratch == {1, 2} and joint.parents == (-1, 0, 1, 0)
    assert first == (1, 2, 3) and second == (1, 4)


@pytest.mark.parametrize("seed", range(30))
def test_every_path_of_every_draft_is_there_and_laws_and_order_are_kept(seed):
    chance = TorchRng(seed)

    def drawn(most):
        return int(chance.categorical(torch.ones(1, most)))

    drafts = []
    for _ in range(2 + drawn(3)):
        count = drawn(8)
        parents = [drawn(node + 1) - 1 for node in range(count)]
        tokens = [drawn(3) for _ in range(count)]
        if drawn(2) and count:
            kinds = tuple((POINT, IID)[drawn(2)] for _ in range(count))
            q = torch.rand(count + 1, 3, generator=torch.Generator().manual_seed(seed)) + 0.1
            drafts.append(Draft(tuple(tokens), tuple(parents), kinds, q if IID in kinds else None))
        else:
            drafts.append(Draft.point(tokens, parents))
    joint, places = joined(*drafts)
    shape = joint.topology
    assert len(joint) <= sum(map(len, drafts))
    kinds_at = [{c.kind for c in candidates if c.node == node} for node, candidates in
                ((n, shape.candidates[p + 1]) for n, p in enumerate(joint.parents, 1))]  # fmt: skip
    for draft_, nodes in zip(drafts, places, strict=True):
        for node, path in enumerate(draft_.topology.paths[1:]):
            here = shape.paths[nodes[node]]
            assert [joint.tokens[at - 1] for at in here] == [draft_.tokens[at - 1] for at in path]
            assert draft_.kinds[node] in kinds_at[nodes[node] - 1] or draft_.kinds[node] is IID
        for parent in range(-1, len(draft_)):
            mine = [n for n, p in enumerate(draft_.parents) if p == parent and draft_.kinds[n] is IID]
            kept = [nodes[n] for n in mine if joint.kinds[nodes[n] - 1] is IID]
            if len(kept) == len(mine) == len(set(kept)) and mine:
                rows = joint.q[joint.parents[kept[0] - 1] + 1], draft_.q[parent + 1]
                if torch.equal(*rows):
                    assert kept == sorted(kept)
    points = [(p, t) for p, t, k in zip(joint.parents, joint.tokens, joint.kinds, strict=True) if k is POINT]
    assert len(points) == len(set(points))


# --- the same text ----------------------------------------------------------------------------------------


def merges():
    return {
        "lookup and model": Merge(PromptLookup(), DraftModel(draft("noisy"))),
        "model and lookup": Merge(DraftModel(draft("foreign")), PromptLookup()),
        "two models": Merge(DraftModel(draft("foreign")), DraftModel(draft("noisy"))),
        "nested": Merge(Merge(PromptLookup(), NoDraft()), First(PromptLookup(match="first"), DraftModel(target()))),
    }


@pytest.mark.core
@pytest.mark.parametrize("name", merges())
@pytest.mark.parametrize("scheduler", [Fixed(5), Fixed(4, 6), Adaptive()], ids=["fixed", "few nodes", "adaptive"])
def test_greedy_text_is_that_of_generate(name, scheduler):
    decoder = Decoder(target(), merges()[name], scheduler=scheduler)
    got = decoder.generate(PROMPT, max_new_tokens=60, do_sample=False, return_dict_in_generate=True)
    assert torch.equal(got.sequences, plain(max_new_tokens=60))
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 40, "do_sample": False}
    assert torch.equal(decoder.generate(RAGGED, **call), plain(RAGGED, **call))


def test_more_is_accepted_than_each_drafter_gets_alone():
    texts = texts_of(plain(max_new_tokens=60))

    def spoilt(seed):
        def say(row, budget):
            chain = enumerate(ahead(texts)(row, budget).tokens, start=len(row.tokens))
            return Draft.point([63 if random.Random(f"{seed} {at}").random() < 0.4 else t for at, t in chain])

        return Scripted(say)

    def rate(drafter):
        decoder = Decoder(target(), drafter, scheduler=Fixed(8))
        return decoder.generate(PROMPT, max_new_tokens=60, return_dict_in_generate=True).stats.tokens_per_pass

    alone = rate(spoilt(0)), rate(spoilt(1))
    assert rate(Merge(spoilt(0), spoilt(1))) > max(alone) + 0.25


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_bits_at_a_fixed_width(sample):
    model = tiny()
    call = {"max_new_tokens": 60, "do_sample": sample, "output_logits": True, "return_dict_in_generate": True}
    call |= {"seed": 3} if sample else {}
    want = Decoder(model, NoDraft(), exactness="fixed-width:8").generate(PROMPT, **call)
    texts = texts_of(want.sequences)
    wrong_after = Scripted(lambda row, budget: ahead(texts, right=len(row.tokens) % 4)(row, budget))
    for drafter in (Merge(PromptLookup(), Scripted(ahead(texts))), Merge(wrong_after, Scripted(full_tree(2), True))):
        speculating = Decoder(model, drafter, scheduler=Fixed(6), exactness="fixed-width:8")
        got = speculating.generate(PROMPT, **call)
        assert torch.equal(got.sequences, want.sequences)
        assert all(torch.equal(a, b) for a, b in zip(got.logits, want.logits, strict=True))
        assert got.stats.tokens_per_pass > 1.2


# --- what each drafter is told ----------------------------------------------------------------------------


class Watched(DraftModel):
    """A draft model whose every greedy guess is compared with what it says of the text afresh."""

    seen = 0

    def begin(self, context):
        session, propose = super().begin(context), None
        propose = session.propose

        def checked(rows, budgets, rng):
            drafts = propose(rows, budgets, rng)
            for row, draft_ in zip(rows, drafts, strict=True):
                if len(draft_):
                    fresh = greedy_continuation(self.lm.model, list(row.tokens), len(draft_))
                    assert list(map(int, draft_.tokens)) == fresh
                    self.seen += 1
            return drafts

        session.propose = checked
        return session


@pytest.mark.core
@pytest.mark.parametrize("order", [1, -1], ids=["behind", "before"])
def test_a_draft_models_cache_follows_the_text_that_another_drafter_guessed(order):
    texts = texts_of(plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=40), RAGGED_MASK)
    other = Scripted(lambda row, budget: ahead(texts, right=len(row.tokens) % 5)(row, budget))
    model = Watched(draft("foreign"))
    drafter = Merge(*[other, model][::order])
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 40, "do_sample": False}
    decoder = Decoder(target(), drafter, scheduler=Fixed(4, 12))
    assert torch.equal(decoder.generate(RAGGED, **call), plain(RAGGED, **call))
    assert model.seen > 25


@pytest.mark.core
@pytest.mark.parametrize("nested", [False, True], ids=["merge", "nested"])
def test_features_scores_and_choices_are_those_of_the_text_whoever_drafted_it(nested):
    texts = texts_of(plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=30), RAGGED_MASK)
    needs = Needs(features=("final", "layer:0"), choices=("top:2",))
    oracle = Scripted(lambda row, budget: ahead(texts, right=len(row.tokens) % 4)(row, budget))
    watching = Scripted(lambda row, budget: ahead(texts, right=row.index % 3, step=2)(row, budget), needs=needs)
    inner = Merge(First(watching), Scripted(full_tree(2), True)) if nested else watching
    decoder = Decoder(target(), Merge(oracle, inner), scheduler=Fixed(4, 20))
    decoder.generate(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=30, do_sample=False)
    fresh = []
    with torch.no_grad():
        for text in texts:
            out = target()(torch.tensor([text]), output_hidden_states=True)
            fresh.append((out.hidden_states[-1][0], out.hidden_states[1][0], out.logits[0]))
    length, lengths = {}, set()
    for outcome in watching.outcomes:
        row = outcome.row.index
        start = length.get(row, 0)
        states = outcome.features("final")
        end = length[row] = start + len(states)  # inputs of passes follow one another without a gap
        assert torch.allclose(states, fresh[row][0][start:end], atol=1e-4)
        assert torch.allclose(outcome.features("layer:0"), fresh[row][1][start:end], atol=1e-4)
        assert texts[row][end - len(outcome.tokens) + 1 : end + 1] == list(outcome.tokens)
        if not start:
            continue
        logits = outcome.scores.logits[outcome.index]
        assert torch.allclose(logits[list(outcome.nodes)], fresh[row][2][start:end], atol=1e-3)
        assert torch.allclose(outcome.scores.features["final"][outcome.index, outcome.leaf], states[-1])
        assert [outcome.choices["top:2"][node][0] for node in outcome.nodes] == list(outcome.tokens)
        assert outcome.accepted < len(outcome.tokens) and outcome.draft.topology.is_chain
        kept = [outcome.drafted[node - 1] for node in outcome.path]
        assert kept == list(outcome.tokens[: outcome.accepted])
        lengths.add((outcome.accepted, len(outcome.tokens) - 1))
    assert {(0, 0), (0, 3), (1, 1), (2, 3)} <= lengths


# --- the budget -------------------------------------------------------------------------------------------


def run(drafter, scheduler, tokens=60):
    Decoder(target(), drafter, scheduler=scheduler).generate(PROMPT, max_new_tokens=tokens, do_sample=False)


@pytest.mark.core
@pytest.mark.parametrize("order", [1, -1], ids=["wrong last", "wrong first"])
@pytest.mark.parametrize("nodes", [4, 12, 64])
def test_a_drafter_that_is_always_wrong_shrinks_to_a_probe_now_and_then(order, nodes):
    texts = texts_of(plain(max_new_tokens=200))
    perfect, wrong = Scripted(ahead(texts)), Scripted(ahead(texts, right=0))
    run(Merge(*[perfect, wrong][::order]), Fixed(4, nodes), tokens=190)
    given = [budgets[0].nodes for budgets in wrong.budgets]
    rounds = len(given)
    assert given[0] >= min(2, nodes // 2) and rounds > 30
    assert sum(1 for count in given[20:] if count) <= (rounds - 20) / 8 + 1 and max(given[20:]) <= 2
    assert any(given[20:])
    full = [budgets[0].nodes for budgets in perfect.budgets if budgets[0].depth >= 4]
    assert sum(count >= 4 for count in full[20:]) >= 0.8 * len(full[20:])


def test_a_drafter_that_learns_to_be_right_comes_back():
    texts = texts_of(plain(max_new_tokens=200))
    steady = Scripted(ahead(texts, right=1))
    late = Scripted(lambda row, budget: ahead(texts, right=0 if row.rounds < 25 else 99)(row, budget))
    run(Merge(steady, late), Fixed(5, 8), tokens=190)
    given = [budgets[0].nodes for budgets in late.budgets if budgets[0].depth in (0, 2, 5)]
    assert max(given[20:25]) <= 2 and min(given[-4:]) >= 4


@pytest.mark.core
def test_what_a_drafter_without_a_guess_leaves_goes_to_the_next():
    tree = Scripted(full_tree(2), True)
    run(Merge(Scripted(lambda row, budget: Draft.empty()), tree), Fixed(6, 32), tokens=8)
    assert all(budgets[0].nodes == 32 for budgets in tree.budgets if budgets[0].depth == 6)


def test_a_lookup_that_hits_leaves_the_tree_its_share():
    texts = texts_of(plain(max_new_tokens=60))
    chain, tree = Scripted(ahead(texts)), Scripted(full_tree(2), True)
    run(Merge(chain, tree), Fixed(6, 32), tokens=12)
    assert tree.budgets[0][0].nodes == 32 - chain.budgets[0][0].nodes >= 24


def test_a_chain_is_no_longer_than_pays():
    texts = texts_of(plain(max_new_tokens=200))

    class Priced(Fixed):
        def begin(self, context, drafts):
            session, plan = super().begin(context, drafts), None
            plan = session.plan
            session.plan = lambda rows: Budget(
                plan(rows).depth, plan(rows).nodes, cost=lambda nodes: 1 + 0.1 * nodes, rate=2.0
            )
            return session

    # The text goes 3 tokens along the chain, and a node is worth its time where its chance is above 0.2.
    chain, tree = Scripted(ahead(texts, right=3)), Scripted(full_tree(2), True)
    run(Merge(chain, tree), Priced(8, 64), tokens=190)
    given = [budgets[0].nodes for budgets in chain.budgets if budgets[0].depth == 8]
    assert set(given[-8:]) == {3}
    behind = tree.budgets[1][0]
    assert behind.cost is not None and behind.cost(1) == pytest.approx(1 + 0.1 * (chain.budgets[1][0].nodes + 1))


def test_an_empty_budget_is_empty_for_all():
    one, two = Scripted(ahead([[1] * 99])), Scripted(full_tree(2), True)
    run(Merge(one, two), Fixed(0), tokens=5)
    assert all(budgets[0].nodes == budgets[0].depth == 0 for budgets in one.budgets + two.budgets)


def test_a_row_that_goes_on_from_another_rows_text_takes_over_what_was_learnt_there():
    texts = [[1, 2, 3, *range(10, 60)]] * 2
    right, late = Scripted(ahead(texts)), Scripted(lambda row, budget: ahead(texts, right=0)(row, budget))
    rows = tuple(Row(index, [1, 2, 3], Sampling(), 60) for index in range(2))
    session = Merge(right, late).begin(Context(rows, VOCAB, CPU, Scores(torch.zeros(2, 1, VOCAB))))
    scores = Scores(torch.zeros(2, 8, VOCAB))
    for _ in range(30):  # only row 0 is seen to do well by one of them
        made = session.propose(rows, [Budget(3, 6), Budget(3, 6)], TorchRng(0))
        session.observe([Outcome(rows[0], made[0], made[0].tokens, (1, 2, 3), (10, 11, 12, 13), scores, 0)])
    assert late.budgets[-1][0].nodes == 0 and late.budgets[-1][1].nodes == 3
    session.follow({1: 0})
    assert right.followed == late.followed == [{1: 0}]
    session.propose(rows, [Budget(3, 6), Budget(3, 6)], TorchRng(0))
    assert late.budgets[-1][0].nodes == late.budgets[-1][1].nodes == 0


# --- declarations, configs, faults ------------------------------------------------------------------------


@pytest.mark.core
def test_declarations_are_unions():
    tree = Scripted(full_tree(2), True, Needs(("final", "layer:1"), ("lm_head",), ("decided",)))
    other = Scripted(full_tree(2), False, Needs(("final",), ("embed_tokens",), ("top:2",)))
    both = Merge(tree, other, DraftModel(draft("foreign")))
    assert both.emits == {POINT, IID} and both.branching and both.drafts
    assert both.needs == Needs(("final", "layer:1"), ("lm_head", "embed_tokens"), ("decided", "top:2"))
    assert not Merge(NoDraft()).drafts and not Merge(PromptLookup(), NoDraft()).branching
    assert Merge(PromptLookup(), PromptLookup()).branching
    assert isinstance(Decoder(target(), Merge(PromptLookup(), DraftModel(draft("foreign"))), Token()), Decoder)


def test_what_cannot_be_merged_is_refused():
    with pytest.raises(IncompatibleError, match="at least one"):
        Merge()
    with pytest.raises(IncompatibleError, match="takes drafters, one after another; found list"):
        Merge([PromptLookup()])


@pytest.mark.core
def test_config_round_trip():
    made = Merge(PromptLookup(max_ngram=4), First(NoDraft(), PromptLookup()))
    whole = Decoder(target(), made).config
    again = load_config(whole.model_dump(mode="json"))
    assert again.drafter == made.config and again.drafter.drafters[0].max_ngram == 4
    rebuilt = Decoder.from_config(again, target=target()).drafter
    assert rebuilt.config == made.config and [type(part) for part in rebuilt.drafters] == [PromptLookup, First]
    assert Merge(Scripted(full_tree(1))).config is None
    with pytest.raises(ConfigError, match=r"drafter\.drafters\[1\]\.max_ngramm: extra option"):
        load_config({"drafter": {"type": "merge", "drafters": ["none", {"type": "prompt-lookup", "max_ngramm": 2}]}})
    with pytest.raises(ConfigError, match=r"drafter\.drafters"):
        load_config({"drafter": {"type": "merge", "drafters": []}})


@pytest.mark.core
@pytest.mark.parametrize("kind", [Merge, First])
def test_a_drafter_that_fails_names_itself(kind):
    def fails(row, budget):
        if row.rounds == 3:
            raise KeyError("gone")
        return Draft.empty()

    broken = Scripted(fails)
    broken.name = "broken"
    with pytest.raises(KeyError, match="gone") as caught:
        run(kind(PromptLookup(min_ngram=40, max_ngram=40), broken), Fixed(3))
    assert "propose() of drafter 'broken', round 3" in " ".join(caught.value.__notes__)
    greedy = Scripted(lambda row, budget: Draft.point([1] * (budget.nodes + 1), [-1] * (budget.nodes + 1)), True)
    greedy.name = "greedy"
    with pytest.raises(InvalidDraftError, match="the budget allows") as caught:
        run(kind(PromptLookup(min_ngram=40, max_ngram=40), greedy), Fixed(3))
    assert "drafter 'greedy'" in " ".join(caught.value.__notes__)
    outside = Scripted(lambda row, budget: Draft.point(torch.tensor([VOCAB + 1])))
    with pytest.raises(InvalidDraftError, match=f"token id {VOCAB + 1}"):
        run(kind(outside, PromptLookup()), Fixed(3))
