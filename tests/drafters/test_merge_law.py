"""Merged drafts keep the target's law: every random branch of the real engine, over random tables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.draft import Kind
from specdec.core.rng import TorchRng
from specdec.drafters import First, Merge, NoDraft
from specdec.drafters.joint import _Joint
from specdec.schedulers import Fixed
from specdec.testing.enumeration import enumerate_law, total_variation
from specdec.testing.honest import TableDrafter
from specdec.testing.running import generate_tokens
from specdec.testing.tabular import TabularTarget, sequence_law
from specdec.verifiers import Block, Token, Traversal, Walk
from tests.law.tables import RandomTable, tables

PROMPT = (1, 0)


def made(way, q):
    """The drafter that `way` describes: ("merge", part, part, ...), or a style and its fan-outs, over tables `q`."""
    if way[0] in ("merge", "first"):
        return {"merge": Merge, "first": First}[way[0]](*(made(part, q) for part in way[1:]))
    style, *fanouts = way
    return TableDrafter(q.pop(), style, fanouts)


CHAIN, TREE = ("point", 1, 1), ("point", 2, 1)
WAYS = {
    "point and point": (("merge", CHAIN, TREE), (Walk, Token)),
    "iid and point": (("merge", ("iid", 1, 1), CHAIN), (Token, Traversal)),
    "point and iid": (("merge", ("point", 2), ("iid", 1, 1)), (Token, Traversal)),
    "iid tree and point": (("merge", ("iid", 2), CHAIN), (Token, Traversal)),
    "no-replace and point": (("merge", ("no-replace", 2), CHAIN), (Token, Traversal)),
    "point and no-replace": (("merge", CHAIN, ("no-replace", 2)), (Token, Traversal)),
    "mixed and point": (("merge", ("mixed", 2), CHAIN), (Token, Traversal)),
    "iid and iid": (("merge", ("iid", 1, 1), ("iid", 1, 1)), (Token, Traversal)),
    "iid and no-replace": (("merge", ("iid", 1), ("no-replace", 2)), (Token, Traversal)),
    "nested": (("merge", ("merge", CHAIN, ("iid", 1)), ("point", 2)), (Token, Traversal)),
    "first of two": (("first", ("point", 1), ("iid", 1, 1)), (Token, Block)),
    "merge of first": (("merge", ("first", ("iid", 1), CHAIN), ("point", 2)), (Token, Traversal)),
}


def law_of(p, drafter, verifier, length, eos=(), depth=2):
    vocab = len(p.entries[0])
    return enumerate_law(
        lambda rng: generate_tokens(
            TabularTarget(p, vocab), drafter, verifier, Fixed(depth, 64), [PROMPT], length, rng, eos=eos
        )[0],
        limit=60_000,
    )


@pytest.mark.core
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=12)
@given(data=st.data())
def test_output_law_is_the_targets(way, data):
    vocab = data.draw(st.sampled_from([2, 3]))
    p = data.draw(tables(vocab))
    # Equal tables too: then the drafters propose the same tokens, and nodes are joined.
    q = [data.draw(st.sampled_from([p, data.draw(tables(vocab))])) for _ in range(4)]
    parts, rules = WAYS[way]
    verifier = data.draw(st.sampled_from(rules))
    eos = data.draw(st.sampled_from([(), (), (vocab - 1,)]))
    length = 3 if vocab == 3 else 4
    law = law_of(p, made(parts, list(q)), verifier(), length, eos)
    assert total_variation(law, sequence_law(p, PROMPT, length, eos)) < 1e-9


P = RandomTable(((5, 2, 1), (1, 6, 3), (2, 2, 5), (7, 1, 1), (0, 3, 4)))
Q = RandomTable(((1, 3, 4), (4, 2, 2), (3, 5, 0), (1, 1, 6), (2, 1, 1)))
R = RandomTable(((6, 1, 1), (1, 1, 6), (2, 5, 1)))


def distance(drafter, length=3):
    return total_variation(law_of(P, drafter, Token(), length), sequence_law(P, PROMPT, length))


def test_a_second_law_under_one_node_that_is_not_declared_point_shows(monkeypatch):
    two = Merge(TableDrafter(Q, "iid", (1,)), TableDrafter(R, "iid", (1,)))
    assert distance(two) < 1e-9
    monkeypatch.setattr(_Joint, "_join", lambda self, parent, token: self._append(parent, token, Kind.IID))
    assert distance(two) > 1e-3


def test_sampled_siblings_that_are_joined_as_if_they_were_point_show(monkeypatch):
    drafter = Merge(TableDrafter(Q, "iid", (2,)), TableDrafter(R, "point", (1,)))
    assert distance(drafter) < 1e-9
    append = _Joint._append

    def joined(self, parent, token, kind):  # a second draw of the same token is no second draw
        return self._children.get((parent, token), None) if (parent, token) in self._children else append(
            self, parent, token, kind
        )  # fmt: skip

    monkeypatch.setattr(_Joint, "_append", joined)
    assert distance(drafter) > 1e-3


@settings(max_examples=40)
@given(p=tables(4), q=tables(4), r=tables(4), seed=st.integers(0, 2**40))
def test_point_drafts_merged_give_the_text_of_plain_decoding(p, q, r, seed):
    target, prompts = TabularTarget(p, 4), [(1, 0), (2,), (1, 0), (3, 3, 1)]
    plain = generate_tokens(target, NoDraft(), Walk(), Fixed(), prompts, 12, TorchRng(seed))
    one, other = TableDrafter(q, "point", (1, 1, 1)), TableDrafter(r, "point", (2, 2))
    for drafter in (Merge(one, other), First(other, one), Merge(Merge(one, NoDraft()), First(other)), Merge(one, one)):
        for nodes in (1, 5, 64):
            got = generate_tokens(target, drafter, Walk(), Fixed(3, nodes), prompts, 12, TorchRng(seed))
            assert got == plain
