"""Fixed width: text and logits with drafts are those without, bit for bit."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.core.draft import Kind
from specdec.core.errors import IncompatibleError, UnsupportedOptionError
from specdec.drafters import DraftModel, NoDraft, PromptLookup
from specdec.schedulers import Adaptive, Fixed
from specdec.verifiers import Token
from tests.exactness.models import smollm2, tiny
from tests.exactness.parts import Mixed, noise_where, off_the_chain
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, draft, llama

KEEP = {"output_logits": True, "return_dict_in_generate": True}


def without(model, width, *args, **kwargs):
    """What the engine says at this width without drafts."""
    return Decoder(model, NoDraft(), exactness=f"fixed-width:{width}").generate(*args, **{**KEEP, **kwargs})


def texts_of(out, mask=None):
    """Each row's text without padding."""
    pads = [0] * len(out.sequences) if mask is None else (mask == 0).sum(1).tolist()
    return [row[pad:].tolist() for row, pad in zip(out.sequences, pads, strict=True)]


def assert_same_bits(got, want):
    assert torch.equal(got.sequences, want.sequences)
    assert len(got.logits) == len(want.logits)
    for step, (a, b) in enumerate(zip(got.logits, want.logits, strict=True)):
        assert torch.equal(a, b), f"step {step}: logits differ by {(a - b).abs().max():.3g}"


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("branching", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("width", [2, 5, 8, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bits_of_one_row(dtype, width, branching, sample):
    model = tiny(dtype)
    call = {"max_new_tokens": 70, "do_sample": sample, **({"seed": 3, "temperature": 0.9} if sample else {})}
    want = without(model, width, PROMPT, **call)
    for seed in range(2):
        drafter = Mixed(texts_of(want), branching, seed)
        speculating = Decoder(model, drafter, scheduler=Fixed(6), exactness=f"fixed-width:{width}")
        got = speculating.generate(PROMPT, **KEEP, **call)
        assert_same_bits(got, want)
        assert got.stats.tokens_per_pass > 1.2


@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 33, 64])
def test_prompts_and_answers_of_many_lengths(length):
    model = tiny()
    prompt = torch.tensor([[1 + (5 + 11 * i) % 63 for i in range(length)]])
    for new in (1, 2, 3, 17, 40):
        want = without(model, 8, prompt, max_new_tokens=new, do_sample=False)
        for branching in (False, True):
            drafter = Mixed(texts_of(want), branching, new)
            speculating = Decoder(model, drafter, scheduler=Fixed(7), exactness="fixed-width:8")
            assert_same_bits(speculating.generate(prompt, max_new_tokens=new, do_sample=False, **KEEP), want)


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("branching", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("width", [4, 16])
def test_a_ragged_batch_whose_rows_end_at_different_rounds(width, branching, sample):
    model = tiny()
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 40, "do_sample": sample, "pad_token_id": 0}
    call |= {"seed": 5} if sample else {}
    free = without(model, width, RAGGED, **call)
    eos = [int(free.sequences[row, 6 + 5 + 7 * row]) for row in range(3)]
    want = without(model, width, RAGGED, eos_token_id=eos, **call)
    ends = {len(row) - row[::-1].index(next((t for t in row[::-1] if t in eos), row[-1])) for row in texts_of(want)}
    assert len(ends) > 1
    for seed in range(2):
        drafter = Mixed(texts_of(free, RAGGED_MASK), branching, seed)
        speculating = Decoder(model, drafter, scheduler=Fixed(5), exactness=f"fixed-width:{width}")
        assert_same_bits(speculating.generate(RAGGED, eos_token_id=eos, **KEEP, **call), want)


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_where_other_slots_round_otherwise_the_canonical_logits_stand(sample):
    model = llama(0)
    call = {"max_new_tokens": 80, "do_sample": sample, **({"seed": 1} if sample else {})}
    want = without(model, 16, PROMPT, **call)
    drafter = Mixed(texts_of(want), branching=True)
    speculating = Decoder(model, drafter, scheduler=Fixed(6), exactness="fixed-width")
    handle = noise_where(model, off_the_chain, 1.0)
    try:
        assert_same_bits(speculating.generate(PROMPT, **KEEP, **call), want)
    finally:
        handle.remove()
    text = texts_of(want)[0]
    dropped = [seen for seen in drafter.asked if list(seen) != text[: len(seen)]]
    assert dropped, "no provisional token was ever dropped"


def test_several_samples_of_a_prompt():
    model = tiny()
    call = {"max_new_tokens": 30, "do_sample": True, "num_return_sequences": 3, "seed": 2}
    want = without(model, 8, PROMPT, **call)
    assert len({tuple(text) for text in texts_of(want)}) == 3
    for branching in (False, True):
        speculating = Decoder(model, Mixed(texts_of(want), branching), scheduler=Fixed(5), exactness="fixed-width:8")
        assert_same_bits(speculating.generate(PROMPT, **KEEP, **call), want)


@pytest.mark.parametrize("branching", [False, True], ids=["chains", "trees"])
def test_processors_that_look_at_the_text(branching):
    model = tiny()
    call = {"max_new_tokens": 50, "do_sample": True, "repetition_penalty": 1.3, "top_p": 0.9, "seed": 4}
    want = without(model, 8, PROMPT, output_scores=True, **call)
    speculating = Decoder(model, Mixed(texts_of(want), branching), scheduler=Fixed(5), exactness="fixed-width:8")
    got = speculating.generate(PROMPT, output_scores=True, **KEEP, **call)
    assert_same_bits(got, want)
    assert all(torch.equal(a, b) for a, b in zip(got.scores, want.scores, strict=True))


def test_sliding_windows():
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=9, initializer_range=0.2, eos_token_id=None,
    )  # fmt: skip
    model = MistralForCausalLM(config).eval().to(torch.bfloat16)
    want = without(model, 8, PROMPT, max_new_tokens=50, do_sample=False)
    for branching in (False, True):
        speculating = Decoder(model, Mixed(texts_of(want), branching), scheduler=Fixed(5), exactness="fixed-width:8")
        assert_same_bits(speculating.generate(PROMPT, max_new_tokens=50, do_sample=False, **KEEP), want)


@pytest.mark.parametrize("scheduler", [None, Adaptive(), Fixed(20)], ids=["default", "adaptive", "deep"])
def test_drafters_that_ship(scheduler):
    model = tiny()
    call = {"max_new_tokens": 60, "do_sample": False}
    want = without(model, 8, PROMPT, **call)
    for drafter in (PromptLookup(), DraftModel(draft("foreign")), DraftModel(tiny())):
        speculating = Decoder(model, drafter, scheduler=scheduler, exactness="fixed-width:8")
        assert_same_bits(speculating.generate(PROMPT, **KEEP, **call), want)


@pytest.mark.core
def test_provisional_tokens_are_shown_to_nobody():
    model, seen = tiny(), []
    want = without(model, 8, PROMPT, max_new_tokens=50, do_sample=False)
    text = texts_of(want)[0]

    def watch(ids, scores, **kwargs):
        seen.append(ids[0].tolist())
        return torch.zeros(len(ids), dtype=torch.bool)

    speculating = Decoder(model, Mixed([text], True), scheduler=Fixed(5), exactness="fixed-width:8")
    events = list(speculating.stream(PROMPT, max_new_tokens=50, do_sample=False, stopping_criteria=[watch]))
    assert seen == [text[:length] for length in range(PROMPT.shape[1] + 1, len(text) + 1)]
    assert sum((event.rows[0].tokens for event in events), ()) == tuple(text[PROMPT.shape[1] :])
    assert all(event.rows[0].tokens and event.width <= 8 for event in events)


@pytest.mark.core
def test_the_returned_cache_continues_the_text():
    model = tiny("float32")
    speculating = Decoder(model, Mixed([[0] * 200], True), exactness="fixed-width:8")
    got = speculating.generate(PROMPT, max_new_tokens=20, do_sample=False, return_dict_in_generate=True)
    cache = getattr(got, "past_key_values", None) or got.cache
    assert cache.get_seq_length() == got.sequences.shape[1] - 1
    longer = model.generate(got.sequences, past_key_values=cache, max_new_tokens=10, do_sample=False)
    assert torch.equal(longer, model.generate(PROMPT, max_new_tokens=30, do_sample=False))


@pytest.mark.core
def test_what_does_not_fit_is_refused():
    class Sampled(PromptLookup):
        emits = frozenset({Kind.IID})

    model = tiny()
    with pytest.raises(IncompatibleError, match="needs POINT candidates"):
        Decoder(model, Sampled(), exactness="fixed-width")
    by_model = Decoder(model, DraftModel(draft("foreign")), exactness="fixed-width")
    with pytest.raises(IncompatibleError, match="'draft-model' emits IID"):
        by_model.generate(PROMPT, max_new_tokens=5, do_sample=True)
    by_rounds = Decoder(model, PromptLookup(), Token(), exactness="fixed-width")
    with pytest.raises(IncompatibleError, match="verifier 'token' does not"):
        by_rounds.generate(PROMPT, max_new_tokens=5, do_sample=True)
    for wrong in ("fixed-width:0", "fixed-width:x", "fixed-width:", "fixed", None):
        with pytest.raises(UnsupportedOptionError, match="fixed-width:8"):
            Decoder(model, PromptLookup(), exactness=wrong)


def test_the_guarantee_names_the_mode():
    out = Decoder(tiny(), PromptLookup(), exactness="fixed-width:4").generate(
        PROMPT, max_new_tokens=5, do_sample=False, return_dict_in_generate=True
    )
    assert str(out.guarantee) == "exact-greedy (fixed-width:4)"


@pytest.mark.parametrize("branching", [False, True], ids=["chains", "trees"])
def test_smollm2(branching):
    model, tokenizer = smollm2()
    ids = tokenizer("The history of the printing press began", return_tensors="pt").input_ids
    call = {"do_sample": False, "max_new_tokens": 32, "pad_token_id": tokenizer.eos_token_id}
    want = without(model, 16, ids, **call)
    speculating = Decoder(model, Mixed(texts_of(want), branching), scheduler=Fixed(6), exactness="fixed-width")
    assert_same_bits(speculating.generate(ids, **KEEP, **call), want)


def test_statistics_count_each_drafted_candidate_once():
    """Tokens that wait to be confirmed stand before the next draft, and are no part of it."""
    model, judged = tiny(), []

    class Counted(Mixed):
        def propose(self, row, budget, rng, context):
            made = super().propose(row, budget, rng, context)
            judged.append(made.topology.judged)
            return made

    call = {"max_new_tokens": 60, "do_sample": False}
    drafter = Counted(texts_of(without(model, 8, PROMPT, **call)), True)
    stats = (
        Decoder(model, drafter, scheduler=Fixed(6), exactness="fixed-width:8").generate(PROMPT, **KEEP, **call).stats
    )
    assert stats.judged == sum(judged) == sum(stats.judged_by_depth)
    assert 0 < stats.accepted == sum(stats.accepted_by_depth) < stats.judged
