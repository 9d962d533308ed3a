"""Greedy text is plain `generate`'s, token for token, with every drafter, scheduler, batch and way of calling."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from specdec import Decoder
from specdec.core.errors import InvalidPromptError
from specdec.drafters import DraftModel, PromptLookup
from specdec.schedulers import Fixed
from tests.frontdoor.models import (
    DRAFTERS,
    PROMPT,
    RAGGED,
    RAGGED_MASK,
    SCHEDULERS,
    cyclic,
    decoder,
    draft,
    llama,
    noisy,
    plain,
    target,
)


def test_the_text_to_compare_with_is_varied():
    assert len(set(plain(max_new_tokens=40)[0, 7:].tolist())) >= 8


@pytest.mark.core
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_one_row_and_a_ragged_batch(drafter, scheduler):
    speculating = decoder(drafter, scheduler)
    expected = plain(max_new_tokens=24)
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=24, do_sample=False), expected)
    assert torch.equal(plain(max_new_tokens=24, custom_generate=speculating), expected)
    batch = {"attention_mask": RAGGED_MASK, "max_new_tokens": 16}
    expected = plain(RAGGED, **batch)
    assert torch.equal(speculating.generate(RAGGED, do_sample=False, **batch), expected)
    assert torch.equal(plain(RAGGED, custom_generate=speculating, **batch), expected)


def test_three_calls_of_one_decoder_are_alike_whatever_ran_between():
    for drafter in DRAFTERS:
        speculating = decoder(drafter)
        first, second = (plain(ids, max_new_tokens=20) for ids in (PROMPT, RAGGED[2:3]))
        runs = [
            speculating.generate(ids, max_new_tokens=20, do_sample=False, return_dict_in_generate=True)
            for ids in (PROMPT, RAGGED[2:3], PROMPT, PROMPT)
        ]
        assert [torch.equal(run.sequences, e) for run, e in zip(runs, (first, second, first, first), strict=True)]
        assert torch.equal(runs[1].sequences, second)
        counts = [(run.stats.target_passes, run.stats.accepted_lengths) for run in runs]
        assert counts[0] == counts[2] == counts[3]


def test_rows_that_end_at_different_tokens_are_padded_as_plain_generate_does():
    free = plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=20)
    eos = [int(free[0, 9]), int(free[2, 13])]
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 20, "eos_token_id": eos, "pad_token_id": 0}
    expected = plain(RAGGED, **call)
    assert len({int((row[6:] != 0).sum()) for row in expected}) >= 2
    for drafter in DRAFTERS:
        assert torch.equal(decoder(drafter).generate(RAGGED, do_sample=False, **call), expected), drafter


@pytest.mark.parametrize("drafter", ["prompt-lookup", "noisy"])
def test_a_left_padded_row_alone(drafter):
    for row in range(len(RAGGED)):
        call = {"attention_mask": RAGGED_MASK[row : row + 1], "max_new_tokens": 12}
        ids = RAGGED[row : row + 1]
        assert torch.equal(decoder(drafter).generate(ids, do_sample=False, **call), plain(ids, **call))


@pytest.mark.core
@pytest.mark.parametrize("count", range(1, 12))
def test_the_number_of_new_tokens_is_exact(count):
    for drafter in ("prompt-lookup", "self", "noisy"):
        for scheduler in (Fixed(8), None):
            for model, ids in ((target(), PROMPT), (cyclic(), torch.arange(12)[None].repeat(1, 2))):
                made = DraftModel(model) if drafter == "self" and model is not target() else drafter
                if drafter == "noisy" and model is not target():
                    continue
                out = decoder(made, scheduler, model).generate(ids, max_new_tokens=count, do_sample=False)
                assert out.shape[1] == ids.shape[1] + count
                assert torch.equal(out, plain(ids, model, max_new_tokens=count))


def test_drafts_never_reach_past_the_last_token():
    for count in range(1, 9):
        out = decoder("self", Fixed(8)).generate(
            PROMPT, max_new_tokens=count, do_sample=False, return_dict_in_generate=True
        )
        assert out.stats.judged <= count - 1


@pytest.mark.parametrize(
    "limits",
    [
        {"max_length": 15},
        {"min_length": 14, "max_new_tokens": 12},
        {"min_new_tokens": 9, "max_new_tokens": 12},
        {"max_length": 300, "max_new_tokens": 5},
    ],
)
@pytest.mark.parametrize("drafter", ["prompt-lookup", "noisy", "self"])
def test_length_limits(drafter, limits):
    eos = plain(max_new_tokens=12)[0, 10].item()
    expected = plain(eos_token_id=eos, **limits)
    assert torch.equal(decoder(drafter).generate(PROMPT, do_sample=False, eos_token_id=eos, **limits), expected)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_prompt_of_one_token(drafter):
    for token in (3, 40):
        ids = torch.tensor([[token]])
        out = decoder(drafter).generate(ids, max_new_tokens=30, do_sample=False)
        assert torch.equal(out, plain(ids, max_new_tokens=30))


def test_ways_to_pass_the_same_options():
    expected = plain(max_new_tokens=14, repetition_penalty=1.3)
    options = GenerationConfig(max_new_tokens=14, repetition_penalty=1.3, do_sample=False)
    before = options.to_dict()
    speculating = decoder()
    assert torch.equal(speculating.generate(PROMPT, options), expected)
    assert torch.equal(speculating.generate(PROMPT, generation_config=options), expected)
    assert torch.equal(speculating.generate(inputs=PROMPT, generation_config=options), expected)
    assert torch.equal(speculating.generate(input_ids=PROMPT, generation_config=options), expected)
    assert torch.equal(speculating.generate(PROMPT, generation_config=options, max_new_tokens=5), expected[:, :12])
    assert options.to_dict() == before


def test_defaults_of_the_models_generation_config_hold():
    model = llama(0)
    model.generation_config.update(
        max_new_tokens=13, repetition_penalty=1.4, eos_token_id=int(plain(max_new_tokens=4)[0, -1]), do_sample=False
    )
    for drafter in (PromptLookup(), DraftModel(draft("noisy"))):
        assert torch.equal(decoder(drafter, model=model).generate(PROMPT), model.generate(PROMPT))


def test_sampling_defaults_of_the_model_hold_and_temperature_zero_needs_no_option():
    model = llama(0)
    model.generation_config.update(do_sample=True, temperature=0.5, top_k=4)
    one = Decoder(model, PromptLookup()).generate(PROMPT, max_new_tokens=12, seed=1)
    assert not torch.equal(one, model.generate(PROMPT, max_new_tokens=12, do_sample=False))
    two = Decoder(target(), PromptLookup()).generate(
        PROMPT, max_new_tokens=12, seed=1, do_sample=True, temperature=0.5, top_k=4
    )
    assert torch.equal(one, two)


@pytest.mark.parametrize("drafter", ["prompt-lookup", "draft-model"])
def test_near_the_last_position(drafter):
    model = llama(3, max_position_embeddings=16)
    made = PromptLookup() if drafter == "prompt-lookup" else DraftModel(noisy(model))
    speculating = decoder(made, Fixed(6), model)
    for length in (13, 14, 15):
        ids = (torch.arange(length)[None] % 5) + 1
        out = speculating.generate(ids, max_length=16, do_sample=False)
        assert torch.equal(out, plain(ids, model, max_length=16))
    with pytest.raises(ValueError, match="max_length"):
        speculating.generate(torch.ones(1, 16, dtype=torch.int64), max_length=16, do_sample=False)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(speculating.generate(ids, max_length=16, do_sample=False), plain(ids, model, max_length=16))


def test_no_room_is_refused_before_anything_runs():
    with pytest.raises((InvalidPromptError, ValueError), match="max_length"):
        decoder().generate(PROMPT, max_length=7, do_sample=False)


@pytest.mark.parametrize("family", ["gpt2", "sliding"])
def test_absolute_positions_and_windows(family):
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3,
                bos_token_id=1, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
            model = transformers.GPT2LMHeadModel(config).eval()
        else:
            config = transformers.MistralConfig(
                vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, sliding_window=8, initializer_range=0.2, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
            model = transformers.MistralForCausalLM(config).eval()
    batch = {"attention_mask": RAGGED_MASK, "max_new_tokens": 24}
    for made in (PromptLookup(), DraftModel(noisy(model))):
        speculating = decoder(made, model=model)
        assert torch.equal(speculating.generate(RAGGED, do_sample=False, **batch), plain(RAGGED, model, **batch))
        assert torch.equal(
            speculating.generate(PROMPT, do_sample=False, max_new_tokens=40), plain(PROMPT, model, max_new_tokens=40)
        )
