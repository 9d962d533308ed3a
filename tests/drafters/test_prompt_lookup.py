"""Prompt lookup: the index equals a search of the whole text, and costs time in the new tokens only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.draft import Kind
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Outcome, Row, Scores
from specdec.drafters import PromptLookup
from specdec.drafters.prompt_lookup import Evidence, NGramIndex
from specdec.drafters.prompt_lookup_config import PromptLookupConfig

pytestmark = pytest.mark.core


def by_search(text, config, length):
    """The continuation found by looking at every place: the longest n first, then the last (or first) place."""
    if length <= 0:
        return [], 0
    for size in range(config.max_ngram, config.min_ngram - 1, -1):
        if size >= len(text):
            continue
        places = [end for end in range(size, len(text)) if text[end - size : end] == text[-size:]]
        if places:
            place = places[-1] if config.match == "recent" else places[0]
            whole = list(text)
            while len(whole) < place + length:
                whole.append(whole[place + len(whole) - len(text)])
            return whole[place : place + length], size
    return [], 0


@settings(max_examples=300)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=50),
    cuts=st.lists(st.integers(1, 9), max_size=12),
    low=st.integers(1, 3),
    more=st.integers(0, 3),
    match=st.sampled_from(["recent", "first"]),
    length=st.integers(0, 8),
)
def test_the_index_finds_what_a_search_finds_while_the_text_grows(text, cuts, low, more, match, length):
    config = PromptLookupConfig(max_ngram=low + more, min_ngram=low, match=match)
    index, end = NGramIndex(config), 0
    for step in [*cuts, len(text)]:
        end = min(end + step, len(text))
        index.update(text[:end])
        assert index.continuation(text[:end], length) == by_search(text[:end], config, length)


class Counting(list):
    """A text that counts how often it is read."""

    reads = 0

    def __getitem__(self, at):
        self.reads += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("match", ["recent", "first"])
def test_work_is_in_the_new_tokens(match):
    config = PromptLookupConfig(max_ngram=3, min_ngram=1, match=match)
    index = NGramIndex(config)
    text = Counting([i * i % 97 for i in range(5000)])
    index.update(text)
    for new in (1, 4, 0, 9):
        text.extend(range(new))
        text.reads = 0
        index.update(text)
        assert text.reads <= 3 * new
        text.reads = 0
        index.continuation(text, 8)
        assert text.reads <= 4


def session(prompts, **options):
    drafter = PromptLookup(**options)
    rows = tuple(Row(i, list(prompt), Sampling(), len(prompt) + 99) for i, prompt in enumerate(prompts))
    context = Context(rows, 100, torch.device("cpu"), Scores(torch.zeros(1, 1, 100)))
    return drafter.begin(context), rows


def outcome(row, draft, accepted):
    scores = Scores(torch.zeros(1, len(draft) + 1, 100))
    path = tuple(range(1, accepted + 1))
    return Outcome(row, draft, tuple(draft.tokens), path, (*draft.tokens[:accepted], 99), scores, 0)


def proposals(prompts, depth=5, nodes=64, **options):
    made, rows = session(prompts, **options)
    drafts = made.propose(rows, [Budget(depth, nodes)] * len(rows), TorchRng(0))
    return [draft.tokens for draft in drafts]


@pytest.mark.parametrize(
    ("prompt", "options", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], {}, (3, 4, 1, 2, 3)),
        ([1, 2, 3, 1, 2, 4, 1, 2], {}, (4, 1, 2, 4, 1)),
        ([1, 2, 3, 1, 2, 4, 1, 2], {"match": "first"}, (3, 1, 2, 4, 1)),
        ([1, 2, 3, 1, 2, 4, 1, 2], {"max_tokens": 1}, (4,)),
        ([9, 2, 3, 8, 2], {"min_ngram": 2}, ()),
        ([9, 2, 3, 8, 2], {}, (3, 8, 2, 3, 8)),
        ([5, 5, 5], {}, (5, 5, 5, 5, 5)),
        ([1], {}, ()),
        ([1, 2, 3], {}, ()),
    ],
)
def test_what_is_drafted(prompt, options, expected):
    assert proposals([prompt], **options) == [expected]


def test_budgets_are_kept():
    prompt = [1, 2, 3, 4, 5, 6, 1]
    assert [proposals([prompt], depth=d)[0] for d in (0, 1, 3)] == [(), (2,), (2, 3, 4)]
    assert proposals([prompt], depth=5, nodes=2) == [(2, 3)]
    assert proposals([prompt], depth=0, nodes=0) == [()]


def test_rows_look_into_their_own_text_only():
    assert proposals([[1, 2, 3, 1], [3, 1, 9, 9, 3, 1], [4, 5]]) == [(2, 3, 1, 2, 3), (9, 9, 3, 1, 9), ()]


def test_copies_end_with_an_end_token():
    made, rows = session([[1, 2, 7, 3, 1]])
    rows[0].eos = frozenset({7})
    (draft,) = made.propose(rows, [Budget(5, 64)], TorchRng(0))
    assert draft.tokens == (2, 7)


def test_copies_are_cut_where_tokens_are_not_worth_their_cost():
    """At one second a pass and a tenth of one a node: a half's chance each, then what was seen."""
    made, rows = session([[1, 2, 3, 4, 5, 6, 7, 8, 9, 1]])
    row, budget = rows[0], Budget(8, 64, lambda nodes: 1.0 + 0.1 * nodes, 1.0)
    (draft,) = made.propose(rows, [budget], TorchRng(0))
    assert draft.tokens == (2, 3, 4)  # 1/2 + 1/4 + 1/8 are each worth more than a tenth
    assert made.confidences(row).tolist() == pytest.approx([0.5, 0.25, 0.125])
    for _ in range(20):  # always wrong: a match of one token is worth nothing any more
        made.observe([outcome(row, draft, 0)])
        (draft,) = made.propose(rows, [budget], TorchRng(0))
    assert draft.tokens == ()
    (draft,) = made.propose(rows, [Budget(8, 64)], TorchRng(0))
    assert len(draft) == 8  # where nothing is known of costs, all that is asked for


def test_evidence_is_of_the_length_of_the_match():
    made, rows = session([[1, 2, 3, 4, 5, 6, 7, 8, 9, 1]])
    budget = Budget(8, 64, lambda nodes: 1.0 + 0.1 * nodes, 1.0)
    (draft,) = made.propose(rows, [budget], TorchRng(0))
    for _ in range(50):
        made.observe([outcome(rows[0], draft, len(draft))])
        (draft,) = made.propose(rows, [budget], TorchRng(0))
    assert len(draft) == 8
    evidence = Evidence(size=1)
    evidence.observe(3, 1)
    assert evidence.right == [2.0, 1.0, 1.0, 1.0] and evidence.tried == [3.0, 3.0, 2.0, 2.0]


def test_sessions_share_nothing():
    drafter = PromptLookup()
    one, rows = session([[1, 2, 3, 1]])
    one.propose(rows, [Budget(5, 64)], TorchRng(0))
    other, fresh = session([[1]])
    assert other.propose(fresh, [Budget(5, 64)], TorchRng(0))[0].tokens == ()
    assert drafter.emits == frozenset({Kind.POINT}) and not drafter.branching


def test_config():
    made = PromptLookup(4, 2, "first", 7)
    assert PromptLookup.from_config(made.config).config == made.config
    with pytest.raises(ValueError, match="min_ngram is 5 and max_ngram is 3"):
        PromptLookup(min_ngram=5)
    with pytest.raises(ValueError, match="match"):
        PromptLookup(match="middle")
    with pytest.raises(ValueError, match="max_tokens"):
        PromptLookup(max_tokens=0)
