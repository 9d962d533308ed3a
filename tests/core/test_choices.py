"""Choices: what drafters learn of every node of a pass, and looks ahead at noise that is drawn later."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import Decoder
from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.errors import IncompatibleError
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import TorchRng
from specdec.core.sampling import top
from specdec.schedulers import Fixed
from specdec.testing.enumeration import EnumeratingRng, enumerate_law
from specdec.verifiers import Token
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, llama, plain, target

pytestmark = pytest.mark.core


@settings(max_examples=60)
@given(
    vocab=st.sampled_from([2, 7, 64, 600, 2048, 2049, 4100]),
    count=st.integers(1, 9),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_top_finds_the_largest_scores(vocab, count, seed, dtype):
    scores = torch.randn(2, 3, vocab, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    found = top(scores, count)
    assert found.shape == (2, 3, min(count, vocab))
    assert torch.equal(scores.gather(-1, found), scores.topk(min(count, vocab), dim=-1).values)


def test_top_of_equal_and_of_impossible_scores_gives_ids():
    scores = torch.full((1, 4096 + 5), -torch.inf)
    scores[0, 4097:4100] = 1.0
    found = top(scores, 8)
    assert set(found[0, :3].tolist()) == {4097, 4098, 4099}
    assert int(found.min()) >= 0 and int(found.max()) < scores.shape[1]


class Curious(Drafter):
    """Drafts a tree with a scratch node, and keeps what it is told."""

    name = "curious"
    branching = True
    needs = Needs(choices=("top:3", "decided"))

    def __init__(self):
        self.told = []

    def begin(self, context):
        return CuriousSession(self)


class CuriousSession(DraftSession):
    def __init__(self, drafter):
        self.drafter = drafter

    def propose(self, rows, budgets, rng):
        return [self.draft(row, budget) for row, budget in zip(rows, budgets, strict=True)]

    def draft(self, row, budget):
        if budget.depth < 2 or budget.reach < 3 or budget.nodes < 4:
            return Draft.empty()
        return Draft.point([row.anchor, 5, 7, 9], [-1, 0, -1, 1], scratch=[3])

    def observe(self, outcomes):
        self.drafter.told.extend((outcome, tuple(outcome.row.tokens)) for outcome in outcomes)


def paths(outcome, text):
    """The text up to each node of the pass, the anchor's first."""
    before = list(text[: len(text) - len(outcome.tokens)])
    return [[*before, *(outcome.drafted[node - 1] for node in path)] for path in outcome.draft.topology.paths]


@pytest.mark.parametrize("exactness", ["algorithmic", "fixed-width:8"])
def test_top_choices_are_those_of_a_plain_pass(exactness):
    model, drafter = target(), Curious()
    Decoder(model, drafter, scheduler=Fixed(3), exactness=exactness).generate(
        RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=12, do_sample=False
    )
    assert len(drafter.told) > 20
    for outcome, text in drafter.told:
        assert {name: len(each) for name, each in outcome.choices.items()} == dict.fromkeys(
            ("top:3", "decided"), len(outcome.draft) + 1
        )
        for node, path in enumerate(paths(outcome, text)):
            with torch.no_grad():
                want = model(torch.tensor([path])).logits[0, -1].topk(3).indices.tolist()
            assert list(outcome.choices["top:3"][node]) == want
            assert outcome.choices["decided"][node] == want[0]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 9}, {"repetition_penalty": 1.3}], ids=str)
def test_walk_decides_at_a_node_what_it_emits_there(options):
    drafter = Curious()
    out = Decoder(target(), drafter, scheduler=Fixed(3)).generate(
        PROMPT, max_new_tokens=60, do_sample=True, seed=3, return_dict_in_generate=True, **options
    )
    text = out.sequences[0].tolist()
    wrong = ahead = 0
    for outcome, so_far in drafter.told:
        for node, path in enumerate(paths(outcome, so_far)):
            if path == text[: len(path)] and node not in {at + 1 for at in outcome.draft.scratch}:
                assert outcome.choices["decided"][node] == text[len(path)]
                ahead += node > 0
            else:
                wrong += outcome.choices["decided"][node] != outcome.choices["top:3"][node][0]
        scratch = [node + 1 for node in outcome.draft.scratch]
        assert all(outcome.choices["decided"][node] == outcome.choices["top:3"][node][0] for node in scratch)
    assert ahead and wrong  # nodes of the text were drafted, and draws are not the most probable tokens


def test_a_verifier_that_does_not_draw_by_position_gives_the_most_probable_token():
    drafter = Curious()
    Decoder(target(), drafter, Token(), scheduler=Fixed(3)).generate(PROMPT, max_new_tokens=20, do_sample=True, seed=3)
    for outcome, _ in drafter.told:
        assert [each[0] for each in outcome.choices["top:3"]] == list(outcome.choices["decided"])


def test_processors_are_asked_at_nodes_of_the_draft_only():
    seen = []

    def watch(ids, scores):
        seen.append(tuple(ids[0].tolist()))
        return scores

    drafter = Curious()
    Decoder(target(), drafter, scheduler=Fixed(3)).generate(
        PROMPT, max_new_tokens=15, do_sample=True, seed=1, logits_processor=[watch]
    )
    allowed = {tuple(path) for outcome, text in drafter.told for path in paths(outcome, text)}
    text = seen[-1]
    assert {prefix for prefix in seen if prefix != text[: len(prefix)]} <= allowed


def test_unknown_choices_are_refused_at_composition():
    class Wrong(Curious):
        needs = Needs(choices=("top:0", "best", "top:4"))

    with pytest.raises(IncompatibleError, match="'curious' needs the choices top:0, best; expected 'decided' or"):
        Decoder(target(), Wrong())


def test_scratch_may_lie_deeper_than_what_may_be_accepted():
    class Deep(Curious):
        def begin(self, context):
            return DeepSession(self)

    class DeepSession(CuriousSession):
        def propose(self, rows, budgets, rng):
            reach = budgets[0].reach
            return [Draft.point([1] * reach, scratch=range(1, reach)) if reach else Draft.empty() for _ in rows]

    drafter = Deep()
    out = Decoder(target(), drafter, scheduler=Fixed(1)).generate(PROMPT, max_new_tokens=12, do_sample=False)
    assert torch.equal(out, plain(max_new_tokens=12))
    # As deep as tokens may still be emitted, the last being the target's own.
    assert [outcome.draft.topology.depth for outcome, _ in drafter.told][:3] == [0, 10, 9]
    assert all(outcome.draft.topology.judged_depth <= 1 for outcome, _ in drafter.told)


def joint(first, second):
    """The law of a look ahead with one law and the draw with another, by enumeration."""

    def run(rng):
        stream = rng.fold(4)
        ahead = int(stream.categorical(torch.tensor([first]), at=[(7, 1)], ahead=True))
        again = int(stream.categorical(torch.tensor([first]), at=[(7, 1)], ahead=True))
        assert ahead == again
        return ahead, int(stream.categorical(torch.tensor([second]), at=[(7, 1)]))

    return enumerate_law(run)


def test_a_look_ahead_and_the_draw_share_one_uniform():
    law = joint([0.5, 0.5], [0.2, 0.8])
    assert law == pytest.approx({(0, 0): 0.2, (0, 1): 0.3, (1, 1): 0.5})
    same = joint([0.3, 0.0, 0.7], [0.3, 0.0, 0.7])
    assert same == pytest.approx({(0, 0): 0.3, (2, 2): 0.7})
    rng, counts = TorchRng(3), {}
    for position in range(4000):
        pair = tuple(
            int(rng.categorical(torch.tensor([law]), at=[(0, position)], ahead=ahead))
            for law, ahead in (([0.5, 0.5], True), ([0.2, 0.8], False))
        )
        counts[pair] = counts.get(pair, 0) + 1
    assert {pair: count / 4000 for pair, count in counts.items()} == pytest.approx(law, abs=0.03)


def test_a_draw_is_still_made_once_only():
    def run(rng):
        half = torch.tensor([[0.5, 0.5]])
        rng.categorical(half, at=[(1,)], ahead=True)
        rng.categorical(half, at=[(1,)])
        rng.categorical(half, at=[(1,)], ahead=True)
        rng.categorical(half, at=[(1,)])

    with pytest.raises(AssertionError, match=r"key \(1,\) was used twice"):
        enumerate_law(run)


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3).filter(any), min_size=1, max_size=4))
def test_every_look_ahead_alone_has_its_law(laws):
    p = [[weight / sum(law) for weight in law] for law in laws]

    def run(rng: EnumeratingRng):
        return tuple(int(rng.categorical(torch.tensor([law]), at=[(0,)], ahead=True)) for law in p)

    whole = enumerate_law(run)
    assert sum(whole.values()) == pytest.approx(1.0)
    for at, law in enumerate(p):
        got = [sum(weight for key, weight in whole.items() if key[at] == token) for token in range(3)]
        assert got == pytest.approx(law, abs=1e-6)


def test_the_model_has_a_context_length():
    from specdec.targets.hf import HFTarget

    assert HFTarget(llama(0, max_position_embeddings=33)).context_length == 33
