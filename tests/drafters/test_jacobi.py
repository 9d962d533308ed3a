"""Jacobi: golden pass counts, the block that is carried on, and fixed points that `walk` accepts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import Decoder
from specdec.core.errors import IncompatibleError
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.verdict import Verdict
from specdec.drafters import Jacobi, NoDraft
from specdec.drafters.carry import up_to_end
from specdec.schedulers import Fixed
from specdec.testing.drafter_laws import compare
from specdec.testing.harness import finish, generation_of
from specdec.testing.laws import HashTable, LawCase
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Greedy, Token, Walk
from tests.drafters.passes import passes
from tests.frontdoor.models import PROMPT, plain, target

pytestmark = pytest.mark.core

GREEDY = Sampling(greedy=True)
SHORT = HashTable(((3, 2), (1, 4), (2, 3), (1, 1), (5, 2)))


def test_a_constant_stream_settles_block_by_block():
    assert passes(lambda text: 5, [0], 20, NoDraft()) == 20
    assert passes(lambda text: 5, [0], 20, Jacobi(block_size=5)) == 5


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5])
def test_a_cycle_of_three_never_converges_in_a_block(block):
    cycle = {3: 1, 1: 2, 2: 3}
    assert passes(lambda text: cycle.get(text[-1], 3), [3], 30, Jacobi(block_size=block)) == 30


def test_a_period_of_four_never_converges_in_a_block():
    after = {(5, 8): 2, (8, 2): 8, (2, 8): 5, (8, 5): 8}
    assert passes(lambda text: after.get(tuple(text[-2:]), 8 if text[-1] != 8 else 2), [5, 8], 24, NoDraft()) == 24
    assert passes(lambda text: after.get(tuple(text[-2:]), 8 if text[-1] != 8 else 2), [5, 8], 24, Jacobi()) == 24


def steps(say, prompt, new, block, first):
    """Passes of Jacobi iteration, written from its definition: the prompt's pass is the first; `first` fills."""
    text, guess, count = [*prompt, say(prompt)], [], 1
    while len(text) - len(prompt) < new:
        guess = (guess + [text[-1] if first == "last" else first] * block)[: block - 1]
        room = new - (len(text) - len(prompt))
        run = guess[: room - 1]
        refined = [say([*text, *run[:at]]) for at in range(len(run) + 1)]
        right = next((at for at, token in enumerate(run) if token != refined[at]), len(run))
        text += [*run[:right], refined[right]]
        guess = refined[right + 1 :] + guess[len(run) + 1 :]
        count += 1
    return count


@settings(max_examples=60)
@given(
    entries=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    reach=st.integers(0, 2),
    block=st.integers(1, 7),
    first=st.sampled_from(["last", 0, 2]),
    new=st.integers(1, 25),
)
def test_passes_are_those_of_the_iteration(entries, reach, block, first, new):
    def say(text):
        return entries[sum((at + 1) * token for at, token in enumerate(text[len(text) - reach :])) % 7]

    count = passes(say, [1, 3], new, Jacobi(block, first))
    assert count == steps(say, [1, 3], new, block, first) <= new


def test_the_fill_changes_passes_only():
    expected = plain(max_new_tokens=40)
    counts = set()
    for fill in ("last", "prompt", 0, 63):
        out = Decoder(target(), Jacobi(6, fill), scheduler=Fixed(9)).generate(
            PROMPT, max_new_tokens=40, do_sample=False, return_dict_in_generate=True
        )
        assert torch.equal(out.sequences, expected)
        counts.add(out.stats.nodes_scored)
    assert len(counts) > 1


@pytest.mark.parametrize("sample", [False, True])
def test_block_size_one_is_plain_decoding(sample):
    call = {"max_new_tokens": 20, "do_sample": sample, "seed": 1, "return_dict_in_generate": True}
    out = Decoder(target(), Jacobi(1), scheduler=Fixed(9)).generate(PROMPT, **call)
    assert out.stats.judged == 0 and out.stats.target_passes == 20
    assert torch.equal(out.sequences, Decoder(target(), NoDraft()).generate(PROMPT, **call).sequences)


def memoryless(weights):
    """A law that does not look at the text: whatever is guessed, each position decides the same."""
    return HashTable((weights,))


@pytest.mark.parametrize("seed", range(5))
def test_walk_accepts_fixed_points(seed):
    # Eight tokens of equal weight: a guess without the position's noise is right one time in eight.
    counts = {}
    for rule in (Walk, Token):
        generation = generation_of(
            TabularTarget(memoryless((1,) * 8), 8), Jacobi(5), rule(), Fixed(9), [(0, 1)], 41, TorchRng(seed),
            sampling=Sampling(greedy=False),
        )  # fmt: skip
        finish(generation)
        counts[rule] = generation.recorder.stats.target_passes
    # The prompt's pass; then every second one settles a block of 5, and the one before it gave its first guesses.
    assert counts[Walk] <= 1 + 2 * 7
    assert counts[Token] > 25


@pytest.mark.parametrize("options", [{}, {"penalty": True}], ids=str)
def test_the_law_where_guesses_are_looks_ahead_with_every_branch_counted(options):
    # In the second round noise is drawn that the first one looked at, behind guesses that may have been wrong.
    case = LawCase(SHORT.opening((1, 0), 1), prompt=(1, 0), depth=2, nodes=2, rounds=2, **options)
    compare(case, TabularTarget(case.p, 2), Jacobi(3), Walk(), 4000)


def test_enumeration_finds_a_look_ahead_that_is_taken_for_the_draw():
    class Hasty(Walk):
        """Emits what it saw when it looked ahead, though the text before the position has changed since."""

        def __init__(self):
            self.seen = {}

        def decided(self, forest, laws, rng):
            found = super().decided(forest, laws, rng)
            position = forest.rows[0].position
            self.seen = {position + 1 + depth: int(found[0, at]) for at, depth in enumerate(forest.shapes[0].depths)}
            return found

        def verify(self, forest, laws, rng):
            row = forest.rows[0]
            known = self.seen.get(row.position + 1) if row.rounds else None
            if known is None:
                return super().verify(forest, laws, rng)
            return Verdict(torch.tensor([0]), torch.tensor([known]))

    case = LawCase(SHORT.opening((1, 0), 1), prompt=(1, 0), depth=2, nodes=2, rounds=2)
    with pytest.raises(AssertionError, match="law is not the target's"):
        compare(case, TabularTarget(case.p, 2), Jacobi(3), Hasty(), 4000)


def test_guesses_end_with_the_row():
    assert up_to_end([1, 2, 3, 2], {2, 9}) == [1, 2]
    assert up_to_end([1, 3], {2}) == [1, 3]
    generation = generation_of(
        TabularTarget(lambda prefix: [0, 0, 1, 0], 4), Jacobi(6), Greedy(), Fixed(9), [(0, 1)], 30, sampling=GREEDY,
        eos=(2,),
    )  # fmt: skip
    assert finish(generation) == ((2,),)


def test_a_fill_outside_the_vocabulary_is_refused_and_options_name_their_range():
    with pytest.raises(IncompatibleError, match="fill=64, which is outside the target's vocabulary of 64"):
        Decoder(target(), Jacobi(fill=64))
    with pytest.raises(ValueError, match=r"block_size[\s\S]*greater than or equal to 1"):
        Jacobi(0)
    with pytest.raises(ValueError, match="fill"):
        Jacobi(fill="first")
