"""Logits processors see each position with its own prefix, and work as in plain `generate`."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)
from transformers.generation import EncoderRepetitionPenaltyLogitsProcessor

from specdec.core.errors import UnsupportedOptionError
from specdec.drafters import DraftModel, PromptLookup
from specdec.schedulers import Fixed
from tests.frontdoor.models import (
    DRAFTERS,
    PROMPT,
    RAGGED,
    RAGGED_MASK,
    decoder,
    draft,
    oracle,
    plain,
    target,
)

BATCH = {"attention_mask": RAGGED_MASK, "pad_token_id": 0}

OPTIONS = {
    "repetition penalty": {"repetition_penalty": 1.5},
    "no repeated n-gram": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[10], [36, 14], [5, 6, 7]]},
    "sequence bias": {"sequence_bias": {(10,): -20.0, (38,): 8.0, (4, 9): 5.0}},
    "forced eos": {"forced_eos_token_id": 9, "eos_token_id": 9},
    "exponential decay": {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 9},
    "encoder repetition": {"encoder_repetition_penalty": 1.6},
    "encoder n-gram": {"encoder_no_repeat_ngram_size": 1},
    "suppress": {"suppress_tokens": [10, 14], "begin_suppress_tokens": [36]},
    "forced bos": {"forced_bos_token_id": 7},
    "minimum": {"min_new_tokens": 6, "eos_token_id": list(range(0, 40))},
    "several": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 4, "eos_token_id": 10},
    "invalid values": {"remove_invalid_values": True},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=3.0)},
}


@pytest.mark.core
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_plain_generates(option):
    options = OPTIONS[option]
    free = plain(RAGGED, max_new_tokens=16, **BATCH)
    one = plain(max_new_tokens=16, **options)
    batch = plain(RAGGED, max_new_tokens=16, **BATCH, **options)
    neutral = option in ("invalid values", "forced bos")  # they have nothing to do here
    assert neutral or free.shape != batch.shape or not torch.equal(free, batch)
    for drafter in DRAFTERS:
        speculating = decoder(drafter)
        assert torch.equal(speculating.generate(PROMPT, max_new_tokens=16, do_sample=False, **options), one), drafter
        out = speculating.generate(RAGGED, max_new_tokens=16, do_sample=False, **BATCH, **options)
        assert torch.equal(out, batch), drafter


@pytest.mark.parametrize(
    "warper",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 5},
        {"typical_p": 0.6},
        {"epsilon_cutoff": 0.02},
        {"eta_cutoff": 0.02},
        {"top_k": 1},
        {"temperature": 0.05},
        {"top_p": 1e-4},
    ],
    ids=str,
)
def test_processed_scores_of_sampling_are_plain_generates(warper):
    # Both texts follow the same tokens where every step allows one only, so compare step by step on our own text.
    call = {"do_sample": True, "max_new_tokens": 10, "return_dict_in_generate": True, "output_scores": True, **warper}
    for drafter in (PromptLookup(), DraftModel(draft("noisy"))):
        out = decoder(drafter).generate(PROMPT, seed=3, output_logits=True, **call)
        for step in range(10):
            prefix = out.sequences[:, : 7 + step]
            theirs = target().generate(prefix, **{**call, "max_new_tokens": 1}).scores[0]
            assert torch.allclose(out.scores[step], theirs, atol=1e-4), step
            assert torch.isfinite(out.scores[step][0, out.sequences[0, 7 + step]])


@pytest.mark.parametrize("drafter", ["prompt-lookup", "self", "noisy"])
@pytest.mark.parametrize("warper", [{"top_k": 1}, {"temperature": 1e-5}, {"top_p": 1e-4}], ids=str)
def test_sampling_with_one_possible_token_is_greedy(drafter, warper):
    for seed in range(5):
        out = decoder(drafter).generate(PROMPT, max_new_tokens=12, do_sample=True, seed=seed, **warper)
        assert torch.equal(out, plain(max_new_tokens=12))


@pytest.mark.core
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4}], ids=str)
def test_returned_scores_and_logits_of_every_step(options):
    call = {"max_new_tokens": 14, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected, batch = plain(**call, **options), plain(RAGGED, **BATCH, **call, **options)
    for drafter in DRAFTERS:
        for ids, theirs, more in ((PROMPT, expected, {}), (RAGGED, batch, BATCH)):
            out = decoder(drafter).generate(ids, do_sample=False, **call, **more, **options)
            for ours, other in ((out.scores, theirs.scores), (out.logits, theirs.logits)):
                assert len(ours) == len(other) == 14
                assert all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(ours, other, strict=True))
                assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, other, strict=True))
                assert not any(tensor.is_inference() for tensor in ours)


def test_scores_of_a_row_that_has_ended_are_zero():
    eos = int(plain(RAGGED, max_new_tokens=12, **BATCH)[0, 8])
    call = {"max_new_tokens": 12, "return_dict_in_generate": True, "output_scores": True, "eos_token_id": eos, **BATCH}
    expected, out = plain(RAGGED, **call), decoder().generate(RAGGED, do_sample=False, **call)
    assert torch.equal(out.sequences, expected.sequences)
    ended = 0
    for row in range(5):
        new = out.sequences[row, 6:].tolist()
        length = new.index(eos) + 1 if eos in new else len(new)
        for step, (ours, theirs) in enumerate(zip(out.scores, expected.scores, strict=True)):
            if step < length:
                assert torch.allclose(ours[row], theirs[row], atol=1e-4)
            else:
                ended += 1
                assert not ours[row].any()
    assert ended


# --- what a processor sees ------------------------------------------------------------------------------


class Recording(LogitsProcessor):
    """Bans a token that depends on the whole prefix, and keeps every prefix it was shown."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.extend(tuple(row) for row in input_ids.tolist())
        out = scores.clone()
        for row, ids in enumerate(input_ids.tolist()):
            out[row, sum(ids) % scores.shape[-1]] += 6.0
        return out


@pytest.mark.core
@pytest.mark.parametrize("drafter", [*DRAFTERS, "oracle"])
def test_a_users_processor_sees_prefixes_of_the_text_and_the_draft_only(drafter):
    theirs = Recording()
    expected = plain(max_new_tokens=14, logits_processor=LogitsProcessorList([theirs]))
    assert not torch.equal(expected, plain(max_new_tokens=14))
    ours = Recording()
    made = oracle(expected, wrong_every=3) if drafter == "oracle" else drafter
    stream = decoder(made).stream(
        PROMPT, max_new_tokens=14, do_sample=False, logits_processor=LogitsProcessorList([ours])
    )
    allowed, committed = {tuple(PROMPT[0].tolist())}, PROMPT[0].tolist()
    for event in stream:
        (outcome,) = event.rows
        for node in range(len(outcome.draft) + 1):
            path = [outcome.drafted[at - 1] for at in outcome.draft.topology.paths[node]]
            allowed.add((*committed, *path))
        committed += outcome.tokens
    assert torch.equal(stream.sequences, expected)
    assert set(theirs.seen) <= set(ours.seen) <= allowed
    assert len(ours.seen) <= len(allowed) + 1  # one is called twice, to see that it keeps no state


def test_a_users_processor_in_a_batch():
    expected = plain(RAGGED, max_new_tokens=12, logits_processor=[Recording()], **BATCH)
    for drafter in DRAFTERS:
        out = decoder(drafter).generate(
            RAGGED, max_new_tokens=12, do_sample=False, logits_processor=LogitsProcessorList([Recording()]), **BATCH
        )
        assert torch.equal(out, expected), drafter


def test_a_users_processor_takes_the_place_of_generates_in_a_batch_too():
    mine = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(3.0)])
    call = {"max_new_tokens": 14, "repetition_penalty": 1.05, "encoder_repetition_penalty": 1.2, **BATCH}
    expected = plain(RAGGED, logits_processor=mine, **call)
    assert not torch.equal(expected, plain(RAGGED, **call))
    out = decoder().generate(RAGGED, do_sample=False, logits_processor=mine, **call)
    assert torch.equal(out, expected)


def test_a_users_processor_that_was_built_for_the_batch():
    mine = LogitsProcessorList([EncoderRepetitionPenaltyLogitsProcessor(2.0, RAGGED)])
    expected = plain(RAGGED, max_new_tokens=14, logits_processor=mine, **BATCH)
    assert not torch.equal(expected, plain(RAGGED, max_new_tokens=14, **BATCH))
    for drafter in ("prompt-lookup", "noisy"):
        out = decoder(drafter).generate(RAGGED, max_new_tokens=14, do_sample=False, logits_processor=mine, **BATCH)
        assert torch.equal(out, expected)


@pytest.mark.core
@pytest.mark.parametrize("drafter", [*DRAFTERS, "oracle"])
@pytest.mark.parametrize("sample", [False, True])
def test_no_processor_is_asked_what_follows_the_end(drafter, sample):
    free = plain(max_new_tokens=20)
    eos = int(free[0, 15])

    class Grammar(LogitsProcessor):
        def __call__(self, input_ids, scores):
            if eos in input_ids[0, 7:].tolist():
                raise AssertionError("asked for a token after the end")
            return scores

    made = oracle(free) if drafter == "oracle" else drafter
    out = decoder(made, Fixed(9)).generate(
        PROMPT, max_new_tokens=20, do_sample=sample, seed=1, temperature=0.3, eos_token_id=eos,
        logits_processor=LogitsProcessorList([Grammar()]),
    )  # fmt: skip
    assert out.shape[1] <= 27
    if not sample:
        assert torch.equal(out, plain(max_new_tokens=20, eos_token_id=eos))


def test_a_banned_token_never_occurs_in_sampled_text():
    likely = int(plain(max_new_tokens=1)[0, -1])
    for drafter in DRAFTERS:
        out = decoder(drafter).generate(
            PROMPT, max_new_tokens=40, do_sample=True, seed=0, num_return_sequences=5, min_p=0.02,
            bad_words_ids=[[likely]], suppress_tokens=[10],
        )  # fmt: skip
        assert not torch.isin(out[:, 7:], torch.tensor([likely, 10])).any()


# --- prefix_allowed_tokens_fn ---------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_prefix_functions_get_the_true_batch_id(drafter):
    def allowed(batch_id, sentence):
        return [8 + 10 * batch_id + (len(sentence) + step) % 7 for step in range(3)]

    call = {"max_new_tokens": 10, **BATCH}
    expected = plain(RAGGED, prefix_allowed_tokens_fn=allowed, **call)
    out = decoder(drafter).generate(RAGGED, do_sample=False, prefix_allowed_tokens_fn=allowed, **call)
    assert torch.equal(out, expected)


def test_prefix_functions_with_several_samples_a_prompt():
    def ids_asked(run):
        asked = set()

        def allowed(batch_id, sentence):
            asked.add((batch_id, tuple(sentence[:6].tolist())))
            return [20 + batch_id, 30 + batch_id]

        return run(allowed), asked

    call = {"max_new_tokens": 6, "num_return_sequences": 2, "do_sample": True, **BATCH}
    _, theirs = ids_asked(lambda fn: target().generate(RAGGED, prefix_allowed_tokens_fn=fn, **call))
    out, ours = ids_asked(lambda fn: decoder().generate(RAGGED, prefix_allowed_tokens_fn=fn, seed=2, **call))
    # Plain `generate` numbers hypotheses of one beam: prompts are numbered, and so are the copies of one prompt.
    assert ours == theirs
    assert out.shape[0] == 10


def test_an_empty_prefix_function_says_so():
    with pytest.raises(ValueError, match="empty list"):
        decoder().generate(PROMPT, max_new_tokens=6, do_sample=False, prefix_allowed_tokens_fn=lambda b, s: [])


# --- processors that remember ---------------------------------------------------------------------------


@pytest.mark.core
def test_known_stateful_processors_are_refused_by_name():
    with pytest.raises(UnsupportedOptionError, match="ClassifierFreeGuidance"):
        decoder().generate(PROMPT, max_new_tokens=6, guidance_scale=1.5)
    watermark = SynthIDTextWatermarkingConfig(keys=[1, 2, 3], ngram_len=3)
    with pytest.raises(UnsupportedOptionError, match="SynthID"):
        decoder().generate(PROMPT, max_new_tokens=6, do_sample=True, watermarking_config=watermark)


def test_unknown_processors_are_refused_only_if_they_remember():
    class Counting(LogitsProcessor):
        def __init__(self):
            self.calls = 0

        def __call__(self, input_ids, scores):
            self.calls += 1
            return scores + torch.nn.functional.one_hot(torch.tensor([self.calls]), scores.shape[-1])

    for drafter in ("none", "noisy"):
        with pytest.raises(UnsupportedOptionError, match="Counting"):
            decoder(drafter).generate(PROMPT, max_new_tokens=6, logits_processor=LogitsProcessorList([Counting()]))

    class InPlace(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores[:, int(input_ids.sum()) % 64] = -torch.inf
            return scores

    call = {"max_new_tokens": 12, "logits_processor": LogitsProcessorList([InPlace()])}
    assert torch.equal(decoder().generate(PROMPT, do_sample=False, **call), plain(**call))


def test_mirrored_processors_raise_acceptance_and_leave_the_text_alone():
    call = {"max_new_tokens": 40, "do_sample": False, "repetition_penalty": 1.5, "return_dict_in_generate": True}
    mirrored = decoder("noisy").generate(PROMPT, **call)

    # A plain function is not known to depend on scores and prefix alone, so no draft model applies it.
    options = {**call, "repetition_penalty": None}
    wrapped = lambda ids, scores, penalty=RepetitionPenaltyLogitsProcessor(1.5): penalty(ids, scores)  # noqa: E731, B008
    unmirrored = decoder("noisy").generate(PROMPT, logits_processor=LogitsProcessorList([wrapped]), **options)
    assert torch.equal(mirrored.sequences, unmirrored.sequences)
    assert mirrored.stats.acceptance_rate >= unmirrored.stats.acceptance_rate


@pytest.mark.parametrize("drafter", ["noisy", "foreign", "prompt-lookup"])
@pytest.mark.parametrize(
    "call", [{"do_sample": True, "seed": 4}, {"do_sample": False, "return_dict_in_generate": True}]
)
def test_a_constraint_sees_only_texts_that_it_allows(drafter, call):
    """A grammar has no answer for a prefix that it forbids, such as one that a draft model proposes."""

    def allowed(text):
        return [(text[-1] * 7 + step) % 64 for step in range(1, 20)]

    def constraint(row, ids):
        text = ids.tolist()
        for at in range(PROMPT.shape[1], len(text)):
            assert text[at] in allowed(text[:at]), "asked about a text that it does not allow"
        return allowed(text)

    for seed in range(3):
        options = {**call, "seed": seed} if "seed" in call else call
        out = decoder(drafter, Fixed(4)).generate(
            PROMPT, max_new_tokens=24, prefix_allowed_tokens_fn=constraint, **options
        )
        text = (out if isinstance(out, torch.Tensor) else out.sequences)[0].tolist()
        assert all(text[at] in allowed(text[:at]) for at in range(PROMPT.shape[1], len(text)))


def test_margins_are_those_of_each_tokens_own_prefix():
    call = {
        "max_new_tokens": 14,
        "return_dict_in_generate": True,
        "logits_processor": LogitsProcessorList([Recording()]),
    }
    scores = plain(output_scores=True, **call).scores
    tops = [step.topk(2, dim=-1).values[0] for step in scores]
    smallest = min(float(top[0] - top[1]) for top in tops)
    for drafter in DRAFTERS:
        out = decoder(drafter).generate(PROMPT, do_sample=False, **call)
        assert out.stats.smallest_margin == pytest.approx(smallest, abs=1e-4), drafter
