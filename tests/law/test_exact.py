"""Every verifier keeps the target's law: the real engine, every random branch, no statistics."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.drafters.none import NoDraft
from specdec.schedulers.fixed import Fixed
from specdec.testing.enumeration import enumerate_law, total_variation
from specdec.testing.honest import TableDrafter
from specdec.testing.running import generate_tokens
from specdec.testing.tabular import TabularTarget, sequence_law
from specdec.verifiers.block import Block
from specdec.verifiers.greedy import Greedy
from specdec.verifiers.token import Token
from specdec.verifiers.walk import Walk
from tests.law.tables import RandomTable, pairs, tables

pytestmark = pytest.mark.core

PROMPT = (1, 0)
FITS = [
    (Token, "iid", (1, 1)),
    (Token, "iid", (2, 1)),
    (Token, "no-replace", (2, 1)),
    (Token, "no-replace", (3,)),
    (Token, "point", (2, 1)),
    (Token, "mixed", (2, 1)),
    (Token, "mixed", (3,)),
    (Block, "iid", (1,)),
    (Block, "iid", (1, 1)),
    (Block, "point", (1, 1)),
    (Walk, "point", (1, 1, 1)),
    (Walk, "point", (2, 2)),
]


def law_of(p, q, verifier, style, fanouts, length, eos=(), sampling=None):
    target = TabularTarget(p, len(p.entries[0]))
    return enumerate_law(
        lambda rng: generate_tokens(
            target,
            TableDrafter(q, style, fanouts),
            verifier,
            Fixed(depth=len(fanouts), nodes=64),
            [PROMPT],
            length,
            rng,
            eos=eos,
            sampling=sampling,
        )[0],
        limit=60_000,
    )


@pytest.mark.parametrize(("verifier", "style", "fanouts"), FITS, ids=lambda x: getattr(x, "__name__", str(x)))
@settings(max_examples=40)
@given(data=st.data())
def test_output_law_is_the_targets(verifier, style, fanouts, data):
    vocab = data.draw(st.sampled_from([2, 3]))
    p, q = data.draw(pairs(vocab))
    length = len(fanouts) + 2  # room for a draft of the whole depth and a second round
    law = law_of(p, q, verifier(), style, fanouts, length)
    assert total_variation(law, sequence_law(p, PROMPT, length)) < 1e-9


@pytest.mark.parametrize(
    ("verifier", "style", "fanouts"),
    [(Token, "iid", (1, 1)), (Block, "iid", (1, 1)), (Walk, "point", (2, 1)), (Token, "mixed", (2, 1))],
)
@settings(max_examples=25)
@given(data=st.data())
def test_law_with_an_end_token_inside_the_block(verifier, style, fanouts, data):
    p, q = data.draw(pairs(3))
    law = law_of(p, q, verifier(), style, fanouts, length=4, eos=(2,))
    assert total_variation(law, sequence_law(p, PROMPT, 4, eos=(2,))) < 1e-9


def penalty(prefix, scores):
    """A processor that looks at the prefix: tokens seen in the last two places are less likely."""
    scores = scores.clone()
    for row in range(len(prefix)):
        for token in set(prefix[row, -2:].tolist()):
            scores[row, token] -= 1.0
    return scores


@pytest.mark.parametrize(
    ("verifier", "style", "fanouts"),
    [(Token, "iid", (2, 1)), (Block, "iid", (1, 1)), (Walk, "point", (2, 1)), (Token, "mixed", (2, 1))],
)
@settings(max_examples=25)
@given(data=st.data(), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_law_with_a_processor_that_sees_each_nodes_own_prefix(verifier, style, fanouts, data, temperature):
    p, q = data.draw(pairs(3))
    target = TabularTarget(p, 3)
    sampling = Sampling((penalty, lambda _, scores: scores / temperature), elementwise=False, greedy=False)

    def step(prefix):
        scores = sampling.apply(torch.tensor([prefix]), target.logits(prefix)[None])
        return scores[0].softmax(-1).tolist()

    length = 4 if max(fanouts) == 1 else 3  # trees have many more branches
    law = law_of(p, q, verifier(), style, fanouts, length, sampling=sampling)
    assert total_variation(law, sequence_law(step, PROMPT, length)) < 1e-9


@settings(max_examples=60)
@given(data=st.data(), style=st.sampled_from(["point", "iid", "no-replace", "mixed"]))
def test_temperature_zero_is_one_law_for_every_rule(data, style):
    vocab = data.draw(st.sampled_from([2, 3, 4]))
    p, q = data.draw(pairs(vocab))
    target, greedy = TabularTarget(p, vocab), Sampling(greedy=True)
    rules = {"point": [Greedy, Walk, Token], "iid": [Greedy, Token], "no-replace": [Greedy, Token]}.get(
        style, [Greedy, Token]
    )
    plain = generate_tokens(target, NoDraft(), Walk(), Fixed(), [PROMPT], 6, TorchRng(0), sampling=greedy)
    for rule in rules:
        for fanouts in [(1, 1), (2, 2), (3, 1, 1)]:
            drafter = TableDrafter(q, style, fanouts)
            got = generate_tokens(target, drafter, rule(), Fixed(3, 64), [PROMPT], 6, TorchRng(1), sampling=greedy)
            assert got == plain
    if style == "iid":
        drafter = TableDrafter(q, style, (1, 1, 1))
        for seed in range(3):
            got = generate_tokens(target, drafter, Block(), Fixed(3), [PROMPT], 6, TorchRng(seed), sampling=greedy)
            assert got == plain


@settings(max_examples=60)
@given(p=tables(4), q=tables(4), seed=st.integers(0, 2**40))
def test_walk_gives_the_text_of_plain_decoding(p, q, seed):
    """Token by token the same with any POINT drafter, alone or in a batch."""
    target = TabularTarget(p, 4)
    prompts = [(1, 0), (2,), (1, 0), (3, 3, 1)]
    plain = generate_tokens(target, NoDraft(), Walk(), Fixed(), prompts, 12, TorchRng(seed))
    for fanouts in [(1, 1, 1), (2, 2), (3,)]:
        drafter = TableDrafter(q, "point", fanouts)
        assert generate_tokens(target, drafter, Walk(), Fixed(3, 64), prompts, 12, TorchRng(seed)) == plain
        assert generate_tokens(target, drafter, Walk(), Fixed(3, 64), prompts[:2], 12, TorchRng(seed)) == plain[:2]


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**40), verifier=st.sampled_from([Token, Block]))
def test_a_sampled_row_does_not_depend_on_its_batch(data, seed, verifier):
    p, q = data.draw(pairs(4))
    target, drafter = TabularTarget(p, 4), TableDrafter(q, "iid", (1, 1, 1))
    prompts = [(1, 0), (2,), (3, 3, 1)]
    together = generate_tokens(target, drafter, verifier(), Fixed(3), prompts, 9, TorchRng(seed))
    for prompt, text in zip(prompts, together, strict=True):
        alone = generate_tokens(target, drafter, verifier(), Fixed(3), [prompt], 9, TorchRng(seed))
        assert alone == (text,)


@settings(max_examples=40)
@given(data=st.data())
def test_block_accepts_at_least_as_much_as_token(data):
    """Pr(first l tokens kept) is w(l) for block and the product of min(1, r) for token: pointwise no smaller."""
    p, q = data.draw(pairs(3))
    kept = {}
    for rule in (Token, Block):
        counts: dict[int, float] = {}

        def run(rng, rule=rule):
            accepted = []
            from specdec.core.engine import Generation, Parts
            from specdec.core.state import Row

            row = Row(0, list(PROMPT), Sampling(greedy=False), len(PROMPT) + 4)
            parts = Parts(TabularTarget(p, 3), TableDrafter(q, "iid", (1, 1, 1)), rule(), Fixed(3))
            events = Generation(parts, (row,), rng.fold(1), rng.fold(2)).rounds()
            next(events)
            accepted.append(len(next(events).rows[0].path))
            return accepted[0]

        counts = enumerate_law(run)
        kept[rule] = counts
    for least in (1, 2, 3):
        token, block = (sum(w for n, w in kept[rule].items() if n >= least) for rule in (Token, Block))
        assert block >= token - 1e-9


@settings(max_examples=40)
@given(p=tables(3), q=tables(3))
def test_walk_is_optimal_for_point_trees(p, q):
    """E[accepted] equals the sum of p(path) over the tree's nodes, which no exact verifier exceeds."""
    from specdec.core.engine import Generation, Parts
    from specdec.core.state import Row

    def run(rng):
        row = Row(0, list(PROMPT), Sampling(greedy=False), len(PROMPT) + 4)
        parts = Parts(TabularTarget(p, 3), TableDrafter(q, "point", (2, 1)), Walk(), Fixed(2, 64))
        events = Generation(parts, (row,), rng.fold(1), rng.fold(2)).rounds()
        first = next(events).rows[0].tokens
        event = next(events).rows[0]
        expected = 0.0
        shape, draft = event.draft.topology, event.drafted
        for path in shape.paths[1:]:
            prefix, weight = (*PROMPT, *first), 1.0
            for node in path:
                law = p(prefix)
                weight *= law[draft[node - 1]] / sum(law)
                prefix = (*prefix, draft[node - 1])
            expected += weight
        return (first, len(event.path), round(expected, 12))

    law = enumerate_law(run)
    accepted = sum(weight * kept for (_, kept, _), weight in law.items())
    expected = sum(weight * value for (_, _, value), weight in law.items())
    assert abs(accepted - expected) < 1e-9


def test_a_token_of_probability_zero_is_never_drawn():
    class Edge(TorchRng):
        def _uniform(self, key):
            return 0.0

    rng = Edge(0)
    p = torch.tensor([[0.0, 0.0, 0.5, 0.5]])
    assert rng.categorical(p).tolist() == [2]
    assert rng.bernoulli(torch.tensor([0.0])).tolist() == [False]

    class Top(TorchRng):
        def _uniform(self, key):
            return 1.0 - 2.0**-52

    assert Top(0).categorical(torch.tensor([[0.3, 0.3, 0.1, 0.0]])).tolist() == [2]
    assert Top(0).bernoulli(torch.tensor([1.0])).tolist() == [True]


def test_random_table_is_a_function_of_the_prefix():
    table = RandomTable(((1, 0), (0, 1)))
    assert table((1, 2)) == table((1, 2))
