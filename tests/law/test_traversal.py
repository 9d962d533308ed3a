"""Traversal keeps the target's law on trees of every kind, equals block on chains, and keeps more than recursion."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core import host
from specdec.core.draft import ANCHOR, Draft
from specdec.core.engine import Generation, Parts
from specdec.core.errors import InvalidLogitsError
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Row
from specdec.schedulers.fixed import Fixed
from specdec.testing.enumeration import enumerate_law, total_variation
from specdec.testing.honest import TableDrafter
from specdec.testing.running import generate_tokens
from specdec.testing.tabular import TabularTarget, sequence_law
from specdec.verifiers.block import Block
from specdec.verifiers.token import Token
from specdec.verifiers.traversal import Traversal
from tests.law.tables import RandomTable, pairs, tables
from tests.law.test_exact import PROMPT, law_of, penalty

pytestmark = pytest.mark.core

SHAPES = [
    ("iid", (1, 1)),
    ("iid", (2,)),
    ("iid", (2, 1)),
    ("no-replace", (3,)),
    ("no-replace", (2, 1)),
    ("no-replace", (1, 2)),
    ("point", (2, 2)),
    ("mixed", (3,)),
    ("mixed", (2, 1)),
]


@pytest.mark.parametrize(("style", "fanouts"), SHAPES, ids=str)
@settings(max_examples=10)
@given(data=st.data())
def test_output_law_is_the_targets(style, fanouts, data):
    vocab = 2 if fanouts == (2, 1) and style == "iid" else data.draw(st.sampled_from([2, 3]))
    p, q = data.draw(pairs(vocab))
    length = len(fanouts) + 2
    law = law_of(p, q, Traversal(), style, fanouts, length)
    assert total_variation(law, sequence_law(p, PROMPT, length)) < 1e-9


def first_round(p, q, rule, style, fanouts, what):
    """The law of what one drafted round did, over the drafter's draws and the verifier's."""

    def run(rng):
        row = Row(0, list(PROMPT), Sampling(greedy=False), len(PROMPT) + len(fanouts) + 2)
        target, drafter = TabularTarget(p, len(p.entries[0])), TableDrafter(q, style, fanouts)
        parts = Parts(target, drafter, rule(), Fixed(len(fanouts), 64))
        events = Generation(parts, (row,), rng.fold(1), rng.fold(2)).rounds()
        next(events)
        return what(next(events).rows[0])

    return enumerate_law(run, limit=60_000)


def opened(table, token):
    """The table with a certain first token, which spares branches."""
    certain = tuple(int(other == token) for other in range(len(table.entries[0])))

    def law(prefix):
        return certain if prefix == PROMPT else table(prefix)

    law.entries = table.entries
    return law


@settings(max_examples=30)
@given(data=st.data(), style=st.sampled_from(["iid", "no-replace", "point"]))
def test_on_a_chain_it_is_block(data, style):
    """Not only as much is kept: draft, end of the path and next token have one joint law."""
    p, q = data.draw(pairs(3))
    p = opened(p, data.draw(st.integers(0, 2)))

    def what(outcome):
        return outcome.drafted, outcome.path, outcome.tokens

    one, other = (first_round(p, q, rule, style, (1, 1, 1), what) for rule in (Traversal, Block))
    assert total_variation(one, other) < 1e-9


@pytest.mark.parametrize(
    ("style", "fanouts", "vocab"),
    [
        ("iid", (2,), 3),
        ("iid", (2, 1), 2),
        ("iid", (1, 2), 2),
        ("no-replace", (3,), 3),
        ("no-replace", (1, 2), 3),
        ("no-replace", (2, 2), 2),
        ("no-replace", (2, 1, 1), 2),
    ],
    ids=str,
)
@settings(max_examples=15)
@given(data=st.data())
def test_it_keeps_no_less_than_recursive_rejection(style, fanouts, vocab, data):
    """Top-down recursion, which is what `token` does on trees, is the reference.

    At every depth the chance to get there is no smaller, so neither is the expected number of tokens.
    """
    p, q = data.draw(pairs(vocab))
    p = opened(p, data.draw(st.integers(0, vocab - 1)))
    traversal, token = (
        first_round(p, q, rule, style, fanouts, lambda outcome: len(outcome.path)) for rule in (Traversal, Token)
    )
    for least in range(1, len(fanouts) + 1):
        more, less = (sum(w for n, w in law.items() if n >= least) for law in (traversal, token))
        assert more >= less - 1e-9


def test_it_keeps_more_than_recursive_rejection_where_a_prefix_is_in_doubt():
    p = opened(RandomTable(((4, 6, 0), (5, 3, 2))), 0)
    q = RandomTable(((5, 5, 0), (1, 3, 6), (2, 1, 5)))
    kept = [
        sum(n * w for n, w in first_round(p, q, rule, "no-replace", (2, 1), lambda outcome: len(outcome.path)).items())
        for rule in (Traversal, Token)
    ]
    assert kept[0] > kept[1] + 0.01


class Predictable(TableDrafter):
    """Whether a child is drawn depends on everything that was drawn before it, in this branch and in others."""

    def __init__(self, table):
        super().__init__(table, "no-replace", (2, 2, 1))

    def propose(self, row, budget, rng, context):
        if budget.depth < 3:
            return Draft.empty()
        tokens, parents = [], []
        laws = {ANCHOR: self._law(tuple(row.tokens))}
        prefixes = {ANCHOR: tuple(row.tokens)}
        # A list of parents in level order; each is asked while all that was drawn so far speaks for it.
        for parent in [ANCHOR, ANCHOR, 1, 0, 0, 2]:
            if parent >= len(tokens) or sum((place + 1) * token for place, token in enumerate(tokens)) % 4 == 3:
                continue
            left = laws[parent].clone()
            left[[tokens[node] for node, above in enumerate(parents) if above == parent]] = 0.0
            if left.sum() <= 0:
                continue
            tokens.append(int(rng.categorical(left[None])))
            parents.append(parent)
            prefixes[len(tokens) - 1] = (*prefixes[parent], tokens[-1])
            laws[len(tokens) - 1] = self._law(prefixes[len(tokens) - 1])
        q = torch.stack([laws[node] for node in range(-1, len(tokens))])
        return Draft.sampled(tokens, q, parents, replace=False)


@pytest.mark.parametrize("rule", [Traversal, Token])
@settings(max_examples=10)
@given(p=tables(2), q=tables(2), first=st.integers(0, 1))
def test_the_shape_may_depend_on_all_that_was_drawn_before(rule, p, q, first):
    law = first_text(opened(p, first), Predictable(q), rule())
    assert total_variation(law, sequence_law(opened(p, first), PROMPT, 5)) < 1e-9


def first_text(p, drafter, verifier):
    """The law of five tokens, with one drafted round."""
    target = TabularTarget(p, len(p.entries[0]))
    return enumerate_law(
        lambda rng: generate_tokens(target, drafter, verifier, Fixed(3, 64), [PROMPT], 5, rng)[0], limit=60_000
    )


@settings(max_examples=20)
@given(data=st.data())
def test_law_with_an_end_token_inside_the_tree(data):
    p, q = data.draw(pairs(3))
    law = law_of(p, q, Traversal(), "no-replace", (2, 1), length=3, eos=(2,))
    assert total_variation(law, sequence_law(p, PROMPT, 3, eos=(2,))) < 1e-9


@settings(max_examples=12)
@given(data=st.data(), temperature=st.sampled_from([0.5, 2.0]))
def test_law_with_a_processor_that_sees_each_nodes_own_prefix(data, temperature):
    p, q = data.draw(pairs(3))
    target = TabularTarget(p, 3)
    sampling = Sampling((penalty, lambda _, scores: scores / temperature), elementwise=False, greedy=False)

    def step(prefix):
        scores = sampling.apply(torch.tensor([prefix]), target.logits(prefix)[None])
        return scores[0].softmax(-1).tolist()

    law = law_of(p, q, Traversal(), "no-replace", (2, 1), 3, sampling=sampling)
    assert total_variation(law, sequence_law(step, PROMPT, 3)) < 1e-9


@pytest.mark.parametrize("elementwise", [True, False])
@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**40), eos=st.sampled_from([(), (2,)]))
def test_ragged_batches_are_their_rows_and_need_no_reads(elementwise, data, seed, eos):
    """What a GPU computes, where asking for a value would cost a read, is what is computed here."""
    style = data.draw(st.sampled_from(["iid", "no-replace", "point", "mixed"]))
    fanouts = data.draw(st.sampled_from([(2, 2), (3, 1), (1, 1, 1)])) if style != "mixed" else (3, 1)
    p, q = data.draw(pairs(4))
    target, drafter = TabularTarget(p, 4), TableDrafter(q, style, fanouts)
    sampling = Sampling((lambda _, scores: scores / 0.7,), elementwise, greedy=False)
    prompts = [(1, 0), (2,), (3, 3, 1)]

    def run(prompts):
        return generate_tokens(
            target, drafter, Traversal(), Fixed(3, 64), prompts, 9, TorchRng(seed), eos=eos, sampling=sampling
        )

    together = run(prompts)
    for prompt, text in zip(prompts, together, strict=True):
        assert run([prompt]) == (text,)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "known_rows", lambda mask, always=False: mask.tolist() if always else None)
        patch.setattr(host, "known_true", lambda condition, device: False)
        assert run(prompts) == together


def test_nan_in_the_logits_is_said():
    target = TabularTarget(lambda prefix: (1.0, float("nan"), 1.0) if len(prefix) > 3 else (0, 1, 0), 3)
    with pytest.raises(InvalidLogitsError, match="NaN"):
        generate_tokens(
            target, TableDrafter(RandomTable(((1, 2, 3),)), "iid", (2, 1)), Traversal(), Fixed(2, 64), [PROMPT], 8,
            TorchRng(0),
        )  # fmt: skip
