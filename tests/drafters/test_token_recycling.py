"""Token recycling: the table is what the last passes said, and the tree the worthiest that it can fill."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Row
from specdec.drafters import NoDraft, TokenRecycling
from specdec.drafters.successors import Successors
from specdec.drafters.token_recycling import _Memory
from specdec.drafters.token_recycling_config import TokenRecyclingConfig
from specdec.schedulers import Fixed
from specdec.testing.harness import Spy, finish, generation_of
from specdec.testing.laws import HashTable
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Walk
from tests.drafters.passes import passes
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, plain, target

pytestmark = pytest.mark.core


def successors(*looks, most=8):
    made = Successors()
    for tokens in looks:
        made.look(tokens, most)
    return made


@settings(max_examples=80)
@given(
    known=st.dictionaries(
        st.integers(0, 3), st.lists(st.lists(st.integers(0, 3), unique=True, max_size=3), max_size=3), max_size=4
    ),
    anchor=st.integers(0, 3),
    nodes=st.integers(1, 30),
    depth=st.integers(1, 4),
    ends=st.sampled_from([(), (2,)]),
)
def test_the_tree_is_the_worthiest_that_the_table_can_fill(known, anchor, nodes, depth, ends):
    tables = {token: successors(*looks) for token, looks in known.items()}
    table = _Memory(Row(0, [anchor], Sampling(), 9), TokenRecyclingConfig(), tables)
    grown = list(table.grow(nodes, depth, frozenset(ends)))
    every, level = {}, {(): 1.0}  # chances of all paths for which there are tokens
    for _ in range(depth):
        level = {
            (*path, token): above * chance
            for path, above in level.items()
            if not (path and path[-1] in ends) and (path[-1] if path else anchor) in tables
            for token, chance in tables[path[-1] if path else anchor].likely()
        }
        every |= level
    paths = []
    for node in grown:
        assert node.parent < len(paths)
        paths.append(((*paths[node.parent],) if node.parent >= 0 else ()) + (node.token,))
        assert len(paths[-1]) == node.depth and node.chance == pytest.approx(every[paths[-1]])
    assert len(set(paths)) == len(grown) == min(nodes, len(every))
    worthiest = sorted(every.values(), reverse=True)[:nodes]
    assert [node.chance for node in grown] == pytest.approx(worthiest)


def drafts_and_outcomes(drafter, prompts, new=30, **call):
    spy = Spy(drafter, lenient=False)
    events = list(Decoder(target(), spy, scheduler=Fixed(6, 20)).stream(prompts, max_new_tokens=new, **call))
    return spy, events


def test_successors_are_those_of_the_passes_over_a_token_text_counting_twice():
    spy, events = drafts_and_outcomes(TokenRecycling(3, prompt=False), PROMPT, do_sample=False)
    model, table, anchor = target(), {}, int(PROMPT[0, -1])
    text = PROMPT[0].tolist()
    for event, call in zip(events, [*spy.calls, None], strict=True):
        (outcome,) = event.rows
        before = list(text)
        nodes, kept = {node: path for node, path in enumerate(outcome.draft.topology.paths)}, (0, *outcome.path)
        for node in sorted(nodes, key=lambda node: node in kept):
            inputs = [*before, *(outcome.drafted[at - 1] for at in nodes[node])]
            with torch.no_grad():
                likely = model(torch.tensor([inputs])).logits[0, -1].topk(3).indices.tolist()
            table.setdefault(inputs[-1], Successors()).look(likely, 3, 2.0 if node in kept else 1.0)
        text += outcome.tokens
        if call is None:
            break
        (draft,) = call.returned
        anchor, tokens = text[-1], list(draft.tokens)
        for node, parent in enumerate(draft.parents):
            assert tokens[node] in table[anchor if parent < 0 else tokens[parent]].tokens
        if anchor in table and call.budgets[0].nodes >= 3:
            first = [token for token, parent in zip(tokens, draft.parents, strict=True) if parent < 0]
            assert tuple(first) == table[anchor].tokens[: len(first)] and first
        else:
            assert anchor in table or not tokens


def test_nodes_stand_breadth_first_and_within_the_limits():
    drafter = TokenRecycling(4, 13, 3)
    spy, _ = drafts_and_outcomes(drafter, PROMPT, do_sample=False)
    largest = 0
    for call in spy.calls:
        (draft,) = call.returned
        depths = draft.topology.depths[1:]
        assert list(depths) == sorted(depths) and len(draft) <= 13 and max(depths, default=0) <= 3
        for parent in {-1, *range(len(draft))}:
            below = [draft.tokens[node] for node, above in enumerate(draft.parents) if above == parent]
            assert len(set(below)) == len(below) <= 4
        largest = max(largest, len(draft))
    assert largest == 13


def test_it_begins_with_what_follows_in_the_prompt():
    def begun(row, known=None, **options):
        table = _Memory(row, TokenRecyclingConfig(**options), known)
        return {token: found.tokens for token, found in table.known.items()}

    row = Row(0, [1, 2, 1, 3, 1, 4, 5, 1, 3, 1], Sampling(), 99)
    assert begun(row, successors=2) == {1: (3, 4), 2: (1,), 3: (1,), 4: (5,), 5: (1,)}
    assert begun(row, {1: successors((9, 3))})[1] == (9, 3)  # what passes have said stands
    assert begun(row, prompt=False) == begun(Row(0, [1], Sampling(), 99)) == {}


def test_a_cycle_is_drafted_as_soon_as_it_was_seen():
    cycle = {3: 1, 1: 2, 2: 3}
    assert passes(lambda text: cycle.get(text[-1], 3), [3], 30, TokenRecycling()) <= 8
    assert passes(lambda text: cycle.get(text[-1], 3), [3], 30, TokenRecycling(prompt=False)) <= 8


def test_it_draws_on_rejected_nodes_too():
    """With rejected nodes the table knows tokens that the text never held; without, it cannot."""
    spy, events = drafts_and_outcomes(TokenRecycling(prompt=False), PROMPT, do_sample=False)
    text = {*PROMPT[0].tolist()}
    for event in events:
        text.update(event.rows[0].tokens)
    inner = set()
    for call in spy.calls:
        (draft,) = call.returned
        inner |= {draft.tokens[parent] for parent in draft.parents if parent >= 0}
    assert inner - text


def test_memory_is_kept_on_request_only_and_never_changes_the_text():
    expected = plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=20)
    for remember in (False, True):
        drafter = TokenRecycling(remember=remember, prompt=False)
        firsts = []
        for _ in range(2):
            spy = Spy(drafter, lenient=False)
            out = Decoder(target(), spy, scheduler=Fixed(6, 30)).generate(
                RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=20, do_sample=False
            )
            assert torch.equal(out, expected)
            firsts.append(sum(len(draft) for draft in spy.calls[0].returned))
        assert firsts[0] < firsts[1] if remember else firsts[0] == firsts[1]


def test_what_is_remembered_is_not_drafted_for_another_vocabulary():
    """Its ids would be outside of it, or other words."""
    drafter = TokenRecycling(remember=True)
    Decoder(target(), drafter, scheduler=Fixed(6, 30)).generate(PROMPT, max_new_tokens=20, do_sample=False)
    small = TabularTarget(HashTable(((3, 2, 2), (1, 4, 2), (2, 2, 3))), 3)
    spy = Spy(drafter, lenient=False)
    finish(generation_of(small, spy, Walk(), Fixed(4, 9), [(0, 1), (2,)], 20, None, sampling=Sampling(greedy=False)))
    assert max(token for call in spy.calls for draft in call.returned for token in draft.tokens) < 3


def test_costly_nodes_are_left_out():
    table = _Memory(Row(0, [1], Sampling(), 9), TokenRecyclingConfig(), None)
    chances = [0.5, 0.3, 0.2, 0.05, 0.01]
    assert table.paying(chances, Budget(8, 60)) == 5
    # At 10 tokens a second a node must be worth a hundredth of a token for each millisecond that it costs.
    for milliseconds, count in ((0.5, 5), (10, 3), (25, 2), (40, 1), (90, 0)):
        priced = Budget(8, 60, lambda nodes, ms=milliseconds: 0.1 + nodes * ms / 1000, 10.0)
        assert table.paying(chances, priced) == count
    assert table.paying([], Budget(8, 60, lambda nodes: 0.1, 10.0)) == 0
    assert table.paying([0.5, 0.0], Budget(8, 60)) == 1  # a chance too small for a float


def test_chances_follow_what_is_kept():
    row = Row(0, [1, 2], Sampling(), 99)
    priced = Budget(8, 60, lambda nodes: 0.1 + nodes * 0.012, 10.0)
    sizes = {}
    for accepted in (0, 2):
        table = _Memory(row, TokenRecyclingConfig(), None)
        for _ in range(40):
            table.paying([0.5, 0.2, 0.1], Budget(8, 60))
            table.learn(outcome_of(row, accepted), [(0,)] * 4)
        sizes[accepted] = table.paying([0.5, 0.2, 0.1], priced)
    assert sizes[0] < sizes[2] == 3


def outcome_of(row, accepted):
    from specdec.core.state import Outcome, Scores

    draft = Draft.point([5, 6, 7], [-1, 0, 1])
    path = tuple(range(1, accepted + 1))
    return Outcome(row, draft, (5, 6, 7), path, (5, 6, 7)[:accepted] + (0,), Scores(torch.zeros(1, 4, 8)), 0)


def test_it_learns_from_text_that_another_drafter_guessed():
    """Below merge its draft is what was kept of it, and the text may have gone on by nodes of another one."""
    drafter = TokenRecycling(prompt=False)
    memory = _Memory(Row(0, [1, 2], Sampling(), 99), drafter.config, None)
    memory.paying([0.5, 0.25, 0.125], Budget(8, 60))
    seen = replace(
        outcome_of(Row(0, [1, 2], Sampling(), 99), 0), draft=Draft.point([5]), drafted=(5,), tokens=(7, 8, 9)
    )
    memory.learn(replace(seen, kept=(0, 2, 3)), [(7,), (1,), (8,), (9,)])
    assert {token: found.tokens for token, found in memory.known.items()} == {2: (7,), 5: (1,), 7: (8,), 8: (9,)}
    assert memory.scale == pytest.approx(4 / 4.5)  # the one node that was kept of three is what was promised


@pytest.mark.parametrize("seed", range(3))
def test_sampled_text_is_that_of_the_seed(seed):
    texts = set()
    for drafter in (NoDraft(), TokenRecycling(3), TokenRecycling(2, 5, 2, prompt=False)):
        generation = generation_of(
            TabularTarget(HashTable(((3, 2, 2), (1, 4, 2), (2, 2, 3))), 3), drafter, Walk(), Fixed(4, 9),
            [(0, 1), (2,)], (20, 9), None, sampling=Sampling(greedy=False),
        )  # fmt: skip
        texts.add(finish(generation))
    assert len(texts) == 1


def test_options_out_of_range_name_the_field_and_the_range():
    for field, value, limit in (("successors", 0, 1), ("max_nodes", 0, 1), ("max_depth", 0, 1), ("max_depth", 33, 32)):
        with pytest.raises(ValueError, match=rf"{field}[\s\S]*than or equal to {limit}"):
            TokenRecycling(**{field: value})
