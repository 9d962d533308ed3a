"""Successors: weights of looks fade, the heaviest are kept, and chances follow from how far looks agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.drafters.successors import Successors

pytestmark = pytest.mark.core

looks = st.lists(st.tuples(st.lists(st.integers(0, 9), unique=True, max_size=5), st.sampled_from([1.0, 2.0])))


def after(*seen, most=4):
    successors = Successors()
    for tokens in seen:
        successors.look(tokens, most)
    return successors


@given(looks, st.integers(1, 5))
def test_chances_are_chances_in_the_order_of_the_weights(seen, most):
    successors = Successors()
    for tokens, weight in seen:
        successors.look(tokens, most, weight)
    found = successors.likely()
    assert [token for token, _ in found] == list(successors.tokens) and len(found) <= most
    assert len(set(successors.tokens)) == len(found)
    chances = [chance for _, chance in found]
    assert all(0 < chance <= 1 for chance in chances) and chances == sorted(chances, reverse=True)
    assert {*successors.tokens} <= {token for tokens, _ in seen for token in tokens}


def test_nothing_is_likely_before_the_first_look():
    assert Successors().likely() == [] and Successors().tokens == ()


def test_one_look_keeps_its_order_and_the_next_counts_more():
    assert after((5, 2, 7)).tokens == (5, 2, 7)
    assert after((5, 2), (9, 2)).tokens == (9, 5, 2)
    assert after((5, 2), (9, 2), most=2).tokens == (9, 5)  # what weighs least is forgotten


def test_what_looks_agree_about_is_likelier_than_what_one_says():
    once, often = after((5, 2, 7)), after((5, 2, 7), (5, 7, 1), (5, 1, 2), (5, 2, 7))
    torn = after((5, 2, 7), (7, 5, 1), (2, 1, 5), (5, 2, 7))
    first = [successors.likely()[0][1] for successors in (torn, once, often)]
    assert first == sorted(first) and first[2] > 1.3 * first[1]


def test_text_weighs_more_than_what_was_rejected():
    successors = Successors()
    successors.look((5,), 4, 2.0)
    successors.look((9,), 4, 1.0)
    assert successors.tokens == (5, 9)


def test_what_is_no_longer_kept_still_says_that_looks_disagree():
    narrow, alone = after(*[(token,) for token in (1, 2, 3, 4)], most=1), after((4,), most=1)
    assert narrow.tokens == alone.tokens == (4,) and narrow.likely()[0][1] < alone.likely()[0][1]
