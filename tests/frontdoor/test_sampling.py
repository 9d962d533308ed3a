"""Sampling: seeds, the same text with speculation on or off, rows that do not know their batch, and the law itself."""

from __future__ import annotations

import itertools

import pytest
import torch

from specdec import Decoder
from specdec.core.draft import Draft, Kind
from specdec.core.interfaces import StatelessDrafter
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.drafters import DraftModel, NoDraft, PromptLookup
from specdec.schedulers import Adaptive, Fixed
from specdec.targets.hf import HFTarget
from specdec.targets.warpers import warpers
from specdec.testing.enumeration import enumerate_law, total_variation
from specdec.testing.running import generate_tokens
from specdec.testing.tabular import sequence_law
from specdec.verifiers import Block, Token, Walk
from tests.frontdoor.models import (
    DRAFTERS,
    PROMPT,
    RAGGED,
    RAGGED_MASK,
    RandomDraft,
    decoder,
    llama,
    oracle,
    plain,
    target,
)

SAMPLE = {"do_sample": True, "max_new_tokens": 20, "temperature": 0.8, "top_k": 12}
BATCH = {"attention_mask": RAGGED_MASK, "pad_token_id": 0}


# --- seeds ----------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_seeds(drafter):
    speculating = decoder(drafter, "default")
    torch.manual_seed(11)
    state = torch.random.get_rng_state()
    texts = [speculating.generate(PROMPT, seed=seed, **SAMPLE).tolist() for seed in (1, 1, 2, 3, 4)]
    assert torch.equal(torch.random.get_rng_state(), state)  # a given seed leaves torch's generator alone
    assert texts[0] == texts[1]
    assert len({str(text) for text in texts}) == 4
    assert target().generate(PROMPT, custom_generate=speculating, seed=1, **SAMPLE).tolist() == texts[0]


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "noisy"])
def test_without_a_seed_torchs_generator_governs(drafter):
    speculating = decoder(drafter, "fixed-5")
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append([speculating.generate(PROMPT, **SAMPLE).tolist() for _ in range(2)])
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]  # the generator moves on


def test_the_text_of_a_seed_that_measured_time_decides_is_said_to():
    notes = {}
    for name, scheduler in (("default", None), ("adaptive", Adaptive())):
        out = decoder("noisy", scheduler).generate(PROMPT, seed=1, return_dict_in_generate=True, **SAMPLE)
        notes[name] = out.guarantee.notes
    assert notes["default"] == () and "measured time" in notes["adaptive"][0]
    point = decoder("prompt-lookup", Adaptive()).generate(PROMPT, seed=1, return_dict_in_generate=True, **SAMPLE)
    assert point.guarantee.notes == () and point.guarantee.exactness.label == "exact-sampling"


# --- one text whatever drafts ---------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("scheduler", ["default", "fixed-1", "fixed-5"])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.2, "top_p": 0.9}], ids=str)
def test_walk_gives_the_text_of_plain_decoding_with_any_point_drafter(scheduler, options):
    call = {**SAMPLE, "seed": 7, **options}
    alone = decoder("none").generate(PROMPT, **call)
    batch = decoder("none").generate(RAGGED, **call, **BATCH)
    for name, one, many in (
        ("prompt-lookup", PromptLookup(), PromptLookup(min_ngram=1, match="first")),
        ("oracle", oracle(alone), oracle(batch)),
        ("nearly", oracle(alone, 3), oracle(batch, 3)),
        ("random", RandomDraft(), RandomDraft()),
    ):
        assert torch.equal(decoder(one, scheduler).generate(PROMPT, **call), alone), name
        assert torch.equal(decoder(many, scheduler).generate(RAGGED, **call, **BATCH), batch), name
    kept = decoder(oracle(alone), "fixed-5").generate(PROMPT, return_dict_in_generate=True, **call)
    assert kept.stats.acceptance_rate == 1.0


@pytest.mark.core
def test_walk_gives_each_row_its_text_alone_or_in_a_batch():
    call = {**SAMPLE, "seed": 7}
    batch = decoder("prompt-lookup").generate(RAGGED, **call, **BATCH)
    for row in range(5):
        alone = decoder("prompt-lookup").generate(
            RAGGED[row : row + 1], attention_mask=RAGGED_MASK[row : row + 1], pad_token_id=0, **call
        )
        assert torch.equal(alone[0], batch[row])


@pytest.mark.parametrize("drafter", ["foreign", "noisy", "self"])
def test_draft_model_rows_are_the_same_alone_or_in_a_batch(drafter):
    call = {**SAMPLE, "seed": 7}
    batch = decoder(drafter, Fixed(4)).generate(RAGGED, **call, **BATCH)
    for row in range(5):
        alone = decoder(drafter, Fixed(4)).generate(
            RAGGED[row : row + 1], attention_mask=RAGGED_MASK[row : row + 1], pad_token_id=0, **call
        )
        assert torch.equal(alone[0], batch[row])


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "noisy"])
def test_several_samples_of_a_prompt_are_distinct_and_those_of_its_copies(drafter):
    call = {**SAMPLE, "seed": 3}
    several = decoder(drafter, Fixed(4)).generate(PROMPT, num_return_sequences=4, **call)
    assert len({str(row) for row in several.tolist()}) == 4
    copies = decoder(drafter, Fixed(4)).generate(PROMPT.repeat(4, 1), **call)
    assert torch.equal(several, copies)
    one = decoder(drafter, Fixed(4)).generate(PROMPT, **call)
    assert torch.equal(one[0], several[0])


def test_several_samples_in_a_ragged_batch():
    call = {**SAMPLE, "seed": 3, "num_return_sequences": 3, **BATCH}
    base = decoder("none").generate(RAGGED, **call)
    assert base.shape[0] == 15 and len({str(row) for row in base.tolist()}) == 15
    assert torch.equal(decoder("prompt-lookup").generate(RAGGED, **call), base)
    assert torch.equal(base[:, :6], RAGGED.repeat_interleave(3, 0))


def test_a_draft_model_that_is_the_target_is_never_rejected():
    for call in (SAMPLE, {"do_sample": True, "max_new_tokens": 30}, {**SAMPLE, "repetition_penalty": 1.3}):
        out = decoder("self", Fixed(4)).generate(PROMPT, seed=5, return_dict_in_generate=True, **call)
        assert out.stats.judged > 0 and out.stats.acceptance_rate == 1.0


# --- the law --------------------------------------------------------------------------------------------


def small(seed, layers=1):
    return llama(seed, layers, vocab=3, spread=0.15, bos_token_id=None, pad_token_id=None)


def law_of(model, prompt, length, temperature=1.0, top_k=3):
    """The law of plain sampling, from single passes over whole prefixes."""

    def step(prefix):
        with torch.no_grad():
            logits = model(torch.tensor([prefix])).logits[0, -1]
        logits = torch.where(logits < logits.topk(top_k).values[-1], -torch.inf, logits)
        return (logits.double() / temperature).softmax(-1).tolist()

    return sequence_law(step, prompt, length)


@pytest.mark.parametrize("verifier", [Block, Token])
@pytest.mark.parametrize(
    ("own", "length"), [({}, 3), ({"temperature": 0.4}, 3), ({"top_k": 2}, 4), ({"temperature": 0}, 4)], ids=str
)
def test_every_random_branch_of_a_draft_model_on_a_real_model(verifier, own, length):
    # The last token is the target's own, so of three tokens one is drafted, of four two.
    model, other, prompt = small(0), small(3), (1, 0)
    row = Sampling(warpers(temperature=0.7, top_k=2 if length == 4 else None), greedy=False)
    parts = HFTarget(model), DraftModel(other, **own), verifier(), Fixed(2)
    runs = 0

    def run(rng):
        nonlocal runs
        runs += 1
        return generate_tokens(*parts, [prompt], length, rng, sampling=row)[0]

    law = enumerate_law(run, limit=500)
    expected = law_of(model, prompt, length, temperature=0.7, top_k=2 if length == 4 else 3)
    assert runs >= len(expected)
    assert max(expected.values()) < 0.4  # a law with something to get wrong
    assert total_variation(law, expected) < 1e-5


def fits(counts, law, samples):
    """Whether counts are what the law gives: chi-square, with a chance of error of about one in 30,000."""
    rare = {key for key, p in law.items() if samples * p < 6}
    cells = [(counts.get(key, 0), samples * p) for key, p in law.items() if key not in rare]
    if rare:
        cells.append((sum(counts.get(key, 0) for key in rare), samples * sum(law[key] for key in rare)))
    free = len(cells) - 1
    return sum((seen - mean) ** 2 / mean for seen, mean in cells) < free + 4 * (2 * free) ** 0.5 + 6


@pytest.mark.parametrize(
    ("verifier", "own"), [(Block(), {}), (Token(), {"temperature": 1.6, "top_k": 2}), (None, {"temperature": 0.5})]
)
def test_the_joint_law_of_three_tokens_in_a_batch_of_four(verifier, own):
    model, other = small(0), small(3)
    prompts = torch.tensor([[1, 0, 2], [2, 2, 1], [0, 1, 1], [2, 0, 0]])
    speculating = Decoder(model, DraftModel(other, **own), verifier, Fixed(2))
    tally, kept = [{} for _ in prompts], set()
    for seed in range(30):
        out = speculating.generate(
            prompts, max_new_tokens=3, do_sample=True, temperature=0.8, seed=seed, num_return_sequences=25,
            return_dict_in_generate=True,
        )  # fmt: skip
        kept.add(out.stats.accepted)
        for index, tokens in enumerate(map(tuple, out.sequences[:, 3:].tolist())):
            tally[index // 25][tokens] = tally[index // 25].get(tokens, 0) + 1
    assert min(kept) > 10 and max(kept) < 100  # of 100 drafted tokens: some kept, some not, in every call
    for prompt, counts in zip(prompts.tolist(), tally, strict=True):
        assert fits(counts, law_of(model, tuple(prompt), 3, temperature=0.8), 750)
        assert not fits(counts, law_of(model, tuple(prompt), 3, temperature=0.5), 750)


def test_the_law_test_sees_a_drafter_that_misreports_its_law():
    class Liar(StatelessDrafter):
        name, emits = "liar", frozenset({Kind.IID})

        def propose(self, row, budget, rng, context):
            if not budget.depth:
                return Draft.empty()
            drawn = rng.categorical(torch.tensor([[0.8, 0.1, 0.1]], dtype=torch.float64))
            return Draft.sampled(drawn, torch.tensor([[1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64))

    model, prompt = small(0), (1, 0)
    law = enumerate_law(
        lambda rng: generate_tokens(
            HFTarget(model), Liar(), Token(), Fixed(1), [prompt], 3, rng, sampling=Sampling(greedy=False)
        )[0]
    )
    assert total_variation(law, law_of(model, prompt, 3)) > 0.02


def test_walk_on_a_real_model_draws_from_its_law():
    model, prompt = small(0), torch.tensor([[1, 0, 2]])
    counts = {}
    for seed, drafter in itertools.product(range(20), (NoDraft(), PromptLookup())):
        out = Decoder(model, drafter, Walk(), Fixed(2)).generate(
            prompt, max_new_tokens=3, do_sample=True, seed=seed, num_return_sequences=40
        )
        for tokens in map(tuple, out[:, 3:].tolist()):
            counts[tokens] = counts.get(tokens, 0) + 1
    assert all(count % 2 == 0 for count in counts.values())  # both drafters gave the same texts
    halves = {tokens: count // 2 for tokens, count in counts.items()}
    assert fits(halves, law_of(model, (1, 0, 2), 3), 800)


def test_drafter_and_verifier_draw_from_separate_streams():
    # A drafter that draws much more must not change a walk's text; one that knew the verifier's noise could.
    class Thirsty(RandomDraft):
        def propose(self, row, budget, rng, context):
            for _ in range(5):
                rng.bernoulli(torch.tensor([0.5]))
            return super().propose(row, budget, rng, context)

    call = {**SAMPLE, "seed": 7}
    assert torch.equal(decoder(Thirsty()).generate(PROMPT, **call), decoder("none").generate(PROMPT, **call))
    assert not torch.equal(
        TorchRng(7).fold(1).categorical(torch.ones(64, 50)), TorchRng(7).fold(2).categorical(torch.ones(64, 50))
    )


def test_sampled_text_differs_from_greedy_text():
    out = decoder("noisy").generate(PROMPT, seed=0, do_sample=True, max_new_tokens=20)
    assert not torch.equal(out, plain(max_new_tokens=20))
