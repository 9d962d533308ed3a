"""The automaton against a search through the text, and its cost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_suffix.automaton import Cursor, SuffixAutomaton

texts = st.lists(st.integers(0, 2), max_size=40)


def built(text, reach=64):
    automaton = SuffixAutomaton(reach)
    automaton.extend(text)
    return automaton


def places(text, part):
    """Where `part` ends in `text`."""
    return [end for end in range(len(part), len(text) + 1) if text[end - len(part) : end] == part]


def followers(text, part):
    return Counter(text[end] for end in places(text, part) if end < len(text))


def longest_repeat(text):
    return next(size for size in range(len(text) - 1, -1, -1) if len(places(text, text[len(text) - size :])) > 1)


def walk(automaton, part):
    cursor = Cursor()
    for token in part:
        cursor = automaton.advance(cursor, token)
    return cursor


@given(texts)
def test_every_substring_and_what_followed_it(text):
    automaton = built(text)
    for start in range(len(text)):
        for end in range(start, len(text) + 1):
            cursor = walk(automaton, text[start:end])
            assert cursor.length == end - start
            assert automaton.counts(cursor) == followers(text, text[start:end])


@given(texts.filter(bool))
def test_the_longest_repeat_while_the_text_grows(text):
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, 1):
        automaton.append(token)
        cursor, size = automaton.longest_repeat(), longest_repeat(text[:end])
        assert cursor.length == size
        assert set(automaton.counts(cursor)) == set(followers(text[:end], text[end - size : end]))


@given(texts, texts)
def test_a_cursor_holds_the_longest_suffix_of_another_text_that_stands_here(text, other):
    automaton, cursor = built(text), Cursor()
    for end, token in enumerate(other, 1):
        cursor = automaton.advance(cursor, token)
        longest = next(size for size in range(end, -1, -1) if places(text, other[end - size : end]))
        assert cursor.length == longest
        assert automaton.counts(cursor) == followers(text, other[end - longest : end])


@given(texts, st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=60))
def test_a_cursor_stays_right_while_the_automaton_grows(text, steps):
    automaton, cursor = built(text), Cursor()
    text, other = list(text), []
    for grows, token in steps:
        if grows:
            automaton.append(token)
            text.append(token)
        else:
            # What the text has gained since does not make an earlier match longer, so the oracle steps along.
            match = [*other, token]
            other = next(match[start:] for start in range(len(match) + 1) if places(text, match[start:]))
            cursor = automaton.advance(cursor, token)
        assert cursor.length == len(other)
        assert automaton.counts(cursor) == followers(text, other)


@given(texts.filter(bool), st.integers(0, 6), st.sampled_from([0.0, 0.3, 0.6, 1.0]))
def test_what_is_followed_is_the_most_frequent_token_at_each_step(text, most, least):
    automaton = built(text)
    cursor = automaton.longest_repeat()
    path, chance = text[len(text) - cursor.length :], 1.0
    found = automaton.follow(cursor, most, least)
    assert len(found) <= most
    for token in found:
        counts = followers(text, path)
        top = [other for other in counts if counts[other] == max(counts.values())]
        latest = max(top, key=lambda other: places(text, [*path, other])[-1])
        assert token == latest
        chance *= counts[token] / counts.total()
        assert chance >= least
        path = [*path, token]
    if len(found) < most and (counts := followers(text, path)):
        assert chance * max(counts.values()) / counts.total() < least


def test_following_ends_before_the_stop_token():
    automaton = built([1, 2, 3, 9, 1, 2])
    assert automaton.follow(automaton.longest_repeat(), 5) == [3, 9, 1, 2]
    assert automaton.follow(automaton.longest_repeat(), 5, stop=9) == [3]


def test_the_majority_is_followed_and_not_the_latest():
    automaton = built([1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2])
    cursor = walk(automaton, [1, 2])
    assert automaton.counts(cursor) == {3: 2, 4: 1}
    assert automaton.follow(cursor, 1) == [3]


class Counting(list):
    """A list that counts its reads."""

    reads = 0

    def __getitem__(self, index):
        Counting.reads += 1
        return super().__getitem__(index)


def fibonacci(size):
    one, two = [0], [0, 1]
    while len(two) < size:
        one, two = two, two + one
    return two[:size]


SHAPES = {
    "one token": lambda n: [0] * n,
    "one token, then others": lambda n: [0] * (n // 2) + [i % 2 for i in range(n - n // 2)],
    "blocks": lambda n: [int(i % (n // 4) == 0) for i in range(n)],
    "fibonacci": fibonacci,
    "period of 7": lambda n: [i % 7 for i in range(n)],
    "mixed": lambda n: [(i * i * 7 + i // 3) % 11 for i in range(n)],
    "all different": lambda n: list(range(n)),
    "the worst for states": lambda n: [0] + [1] * (n - 2) + [2],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_costs_amortised_constant_time(shape):
    cost = {}
    for size in (400, 4000):
        text = SHAPES[shape](size)
        automaton = SuffixAutomaton(reach=4)
        automaton._next = Counting(automaton._next)
        automaton._link = Counting(automaton._link)
        Counting.reads = 0
        automaton.extend(text)
        assert automaton.states <= 2 * size
        assert sum(map(len, automaton._next)) <= 3 * size
        cost[size] = Counting.reads / size
    assert max(cost.values()) < 40, cost
    assert cost[4000] < 1.2 * cost[400] + 1, cost


def test_reading_another_text_costs_amortised_constant_time():
    automaton = built(fibonacci(3000), reach=4)
    automaton._next, automaton._link = Counting(automaton._next), Counting(automaton._link)
    Counting.reads = 0
    walk(automaton, [*fibonacci(2000), 1, 1, *fibonacci(2000)])
    assert Counting.reads < 12 * 4002


def test_counts_beyond_the_reach_lag_and_are_never_lost():
    automaton = built([0] * 50, reach=2)
    cursor = walk(automaton, [0])
    assert 1 <= automaton.counts(cursor)[0] < 49
    assert automaton.follow(automaton.longest_repeat(), 3) == [0]
