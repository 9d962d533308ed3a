"""Laws that are none at one node: what the text cannot come to changes nothing, and what it comes to raises."""

from __future__ import annotations

import random

import pytest
import torch

from specdec.core.draft import Draft, Kind
from specdec.core.forest import Forest
from specdec.core.rng import TorchRng
from specdec.core.sampling import Laws, Sampling
from specdec.core.state import Row, Scores
from specdec.verifiers.block import Block
from specdec.verifiers.token import Token
from specdec.verifiers.traversal import Traversal
from specdec.verifiers.walk import Walk

pytestmark = pytest.mark.core

VOCAB, ROWS = 6, 4000
RULES = [Token, Block, Traversal, Walk]


def verdicts(rule, made, broken: int):
    """First tokens, leaves and next tokens of many rows with uniform laws and NaN at one node of the pass.

    made: draws a draft. What ends at the broken node is counted by what was drafted there.
    """
    chance = random.Random(3)
    drafts = [made(chance) for _ in range(ROWS)]
    rows = [Row(index, [1, 2], Sampling(greedy=False), 100, copy=index) for index in range(ROWS)]
    logits = torch.zeros(ROWS, 1 + len(drafts[0]), VOCAB)
    logits[:, broken] = torch.nan
    forest = Forest.pack(rows, drafts, torch.device("cpu"))
    verdict = rule().verify(forest, Laws(Scores(logits), forest), TorchRng(5))
    root = [forest.shapes[0].paths[leaf][0] if leaf else 0 for leaf in verdict.leaf.tolist()]
    drafted = forest.tokens.gather(1, torch.tensor(root)[:, None])[:, 0]
    return torch.where(verdict.leaf > 0, drafted, verdict.next_token), verdict.leaf, verdict.next_token


def assert_uniform(first: torch.Tensor) -> None:
    counts = torch.bincount(first, minlength=VOCAB) / ROWS
    assert torch.allclose(counts, torch.full((VOCAB,), 1 / VOCAB), atol=0.03)


def chain(kinds, rows=None):
    """Makes chains whose sampled candidates are drawn from a law that is uniform over half of the vocabulary."""
    q = torch.zeros(rows or len(kinds), VOCAB)
    q[:, ::2] = 2 / VOCAB

    def made(chance):
        tokens = tuple(0 if kind is Kind.POINT else chance.randrange(0, VOCAB, 2) for kind in kinds)
        return Draft(tokens, tuple(range(-1, len(kinds) - 1)), kinds, q if Kind.IID in kinds else None)

    return made


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [Kind.POINT, Kind.IID])
def test_nothing_behind_a_node_without_a_law_is_kept(rule, kind):
    if kind not in rule.judges:
        pytest.skip("the rule judges no such candidates")
    first, leaf, following = verdicts(rule, chain((kind,) * 4), broken=1)
    assert leaf.max() <= 1  # node 1 may be kept, whatever is wrong behind it
    came = leaf == 1
    assert came.any() and (following[came] >= VOCAB).all()  # which the engine refuses
    assert_uniform(first)


@pytest.mark.parametrize("rule", [Token, Traversal, Walk])
def test_a_drafted_token_can_be_said_though_its_node_has_no_law(rule):
    first, _, _ = verdicts(rule, lambda chance: Draft.point((0, 1), (-1, -1)), broken=1)
    assert_uniform(first)


@pytest.mark.parametrize("rule", [Block, Traversal, Token])
def test_q_may_end_with_the_last_drawn_candidate(rule):
    first, _, _ = verdicts(rule, chain((Kind.IID, Kind.POINT, Kind.POINT), rows=1), broken=3)
    assert_uniform(first)


def test_ids_that_lie_on_the_device_index_nothing_outside_the_vocabulary():
    rows = [Row(0, [1, 2], Sampling(), 100)]
    drafted = torch.tensor([3, VOCAB + 7, -1])
    forest = Forest.pack(rows, [Draft.point(drafted)], torch.device("cpu"), VOCAB)
    assert forest.tokens.tolist() == [[2, 3, VOCAB - 1, 0]]
    assert forest.given.tolist() == [[2, *drafted.tolist()]]
