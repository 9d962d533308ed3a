"""The worthiest nodes of several drafts: the likeliest are kept, as a tree; each draft knows its own of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.core.errors import InvalidDraftError
from specdec.core.state import Budget
from specdec.drafters import Merge, PromptLookup, TokenRecycling
from specdec.drafters.worthiest import worthiest
from specdec.schedulers import Adaptive, Fixed
from tests.drafters.parts import Scripted
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, plain, target

pytestmark = pytest.mark.core


@st.composite
def drafts(draw):
    count = draw(st.integers(0, 6))
    tokens = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    chances = draw(st.lists(st.floats(0.0, 1.0), min_size=count, max_size=count))
    return (Draft.point(tokens, parents) if count else Draft.empty()), chances


def paths_of(draft):
    found = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@given(st.lists(drafts(), min_size=1, max_size=3), st.integers(0, 8))
def test_the_likeliest_paths_are_kept_once_and_each_draft_knows_its_own(given_drafts, nodes):
    made = [draft for draft, _ in given_drafts]
    joint, kept = worthiest(made, [chances for _, chances in given_drafts], Budget(9, nodes))
    said = {}
    for draft, chances in given_drafts:
        for path, chance in zip(paths_of(draft), chances, strict=True):
            said[path] = max(said.get(path, 0.0), chance)
    worth = {path: min(said[path[:depth]] for depth in range(1, len(path) + 1)) for path in said}
    paths = paths_of(joint)
    assert len(set(paths)) == len(paths) == min(nodes, sum(value > 0 for value in worth.values()))
    best = sorted(worth.values(), reverse=True)[: len(paths)]
    assert sorted((worth[path] for path in paths), reverse=True) == pytest.approx(best)
    assert [len(path) for path in paths] == sorted(len(path) for path in paths)
    for draft, (cut, places) in zip(made, kept, strict=True):
        assert [paths[at - 1] for at in places] == paths_of(cut)
        assert {*paths_of(cut)} == {*paths_of(draft)} & {*paths}


def test_only_nodes_that_pay_are_kept():
    made, chances = [Draft.point([1, 2]), Draft.point([1, 3], [-1, -1])], [[0.6, 0.5], [0.7, 0.1]]
    for milliseconds, tokens in ((5, (1, 3, 2)), (20, (1, 2)), (60, (1,)), (90, ())):
        budget = Budget(4, 9, lambda nodes, ms=milliseconds: 0.1 + nodes * ms / 1000, 10.0)
        joint, kept = worthiest(made, chances, budget)
        assert joint.tokens == tokens
        assert [len(cut) for cut, _ in kept] == [len({1, 2} & {*tokens}), len({1, 3} & {*tokens})]


def test_a_shared_path_has_the_larger_of_its_chances():
    # At half a token a node the shared one pays by what the second says of it.
    budget = Budget(4, 9, lambda nodes: 0.1 + nodes * 0.05, 10.0)
    assert worthiest([Draft.point([1]), Draft.point([1])], [[0.2], [0.6]], budget)[0].tokens == (1,)
    assert worthiest([Draft.point([1])], [[0.2]], budget)[0].tokens == ()
    assert worthiest([Draft.empty()], [[]], budget)[0].tokens == ()


@pytest.mark.parametrize("scheduler", [Fixed(6, 7), Fixed(4, 2), Adaptive()], ids=["7", "2", "adaptive"])
def test_text_is_that_of_generate_when_free_drafters_share_a_tree(scheduler):
    drafter = Merge(PromptLookup(), TokenRecycling(), TokenRecycling(2, prompt=False))
    out = Decoder(target(), drafter, scheduler=scheduler).generate(
        RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=24, do_sample=False
    )
    assert torch.equal(out, plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=24))


def test_free_drafters_fill_the_budget_where_their_guesses_are_the_same():
    """Divided nodes that two drafters spend on one path are one node of the pass, and the budget is not used."""
    model, sizes = target(), []
    for event in Decoder(model, Merge(TokenRecycling(), TokenRecycling()), scheduler=Fixed(6, 7)).stream(
        PROMPT, max_new_tokens=30, do_sample=False
    ):
        sizes.append(len(event.rows[0].draft))
    assert max(sizes) == 7 and sizes[-1] == 7


def test_a_free_drafter_that_is_not_sure_is_named():
    class Unsure(Scripted):
        name = "unsure"
        free = True

    drafter = Merge(Unsure(lambda row, budget: Draft.point([1, 2])), PromptLookup())
    with pytest.raises(InvalidDraftError, match=r"each node of its draft; expected 2, found none") as error:
        Decoder(target(), drafter, scheduler=Fixed(4, 4)).generate(PROMPT, max_new_tokens=8, do_sample=False)
    assert any("unsure" in note for note in error.value.__notes__)
