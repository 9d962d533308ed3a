"""A cache of an earlier turn: used rightly or refused, never changed; the one returned can be continued from."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, StaticCache

from specdec.core.errors import UnsupportedOptionError
from specdec.drafters import DraftModel, PromptLookup
from specdec.schedulers import Fixed
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, decoder, llama, noisy, plain, target

MORE = torch.tensor([[21, 22, 23]])
DICT = {"return_dict_in_generate": True, "do_sample": False}


def cache_in(out):
    cache = getattr(out, "cache", None)
    return out.past_key_values if cache is None else cache


def keyword():
    from transformers.generation import GenerateDecoderOnlyOutput

    return "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"


def tensors(cache):
    return [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]


def sliding():
    config = MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, initializer_range=0.2, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MistralForCausalLM(config).eval()


@pytest.mark.core
@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "noisy", "self"])
@pytest.mark.parametrize("first", ["plain", "ours"])
def test_a_second_turn_on_the_cache_of_the_first_equals_a_fresh_run(drafter, first):
    speculating = decoder(drafter)
    run = target().generate if first == "plain" else speculating.generate
    turn = run(PROMPT, max_new_tokens=9, **DICT)
    ids = torch.cat([turn.sequences, MORE], 1)
    expected = plain(ids, max_new_tokens=15)
    cache = cache_in(turn)
    held = tensors(cache)
    for _ in range(2):  # the cache is not used up
        out = speculating.generate(ids, max_new_tokens=15, **{keyword(): cache}, **DICT)
        assert torch.equal(out.sequences, expected)
        assert cache_in(out).get_seq_length() == expected.shape[1] - 1
    assert cache.get_seq_length() == turn.sequences.shape[1] - 1
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(held, tensors(cache), strict=True))


@pytest.mark.core
@pytest.mark.parametrize("model", [target, sliding], ids=["llama", "window"])
def test_plain_generate_continues_from_our_cache(model):
    model = model()
    for drafter in (PromptLookup(), DraftModel(noisy(model))):
        turn = decoder(drafter, Fixed(4), model).generate(PROMPT, max_new_tokens=13, **DICT)
        assert not any(layer.keys.is_inference() for layer in cache_in(turn).layers)
        for tail in (MORE, MORE[:, :0]):
            ids = torch.cat([turn.sequences, tail], 1)
            cache = copy.deepcopy(cache_in(turn))
            out = model.generate(ids, max_new_tokens=12, do_sample=False, **{keyword(): cache})
            assert torch.equal(out, plain(ids, model, max_new_tokens=12))
        with torch.enable_grad():
            # A usual tensor, on which a user may also train.
            logits = model(ids[:, -1:], **{keyword(): copy.deepcopy(cache_in(turn))}).logits
            logits.sum().backward()
            model.zero_grad(set_to_none=True)


def test_a_window_model_takes_a_full_cache_and_refuses_one_that_has_dropped_keys():
    model = sliding()
    speculating = decoder("prompt-lookup", model=model)
    full = DynamicCache()  # without a config it keeps every key
    turn = model.generate(PROMPT, max_new_tokens=9, **DICT, **{keyword(): full})
    ids = torch.cat([turn.sequences, MORE], 1)
    expected = plain(ids, model, max_new_tokens=15)
    assert torch.equal(speculating.generate(ids, max_new_tokens=15, do_sample=False, **{keyword(): full}), expected)
    short = cache_in(model.generate(PROMPT, max_new_tokens=9, **DICT))
    with pytest.raises(UnsupportedOptionError, match="cache"):
        speculating.generate(ids, max_new_tokens=15, do_sample=False, **{keyword(): short})
    assert torch.equal(speculating.generate(ids, max_new_tokens=15, do_sample=False), expected)


def test_a_cache_with_several_samples():
    turn = target().generate(PROMPT, max_new_tokens=5, **DICT)
    ids = torch.cat([turn.sequences, MORE], 1)
    call = {"max_new_tokens": 10, "do_sample": True, "seed": 3, "num_return_sequences": 3}
    fresh = decoder("noisy").generate(ids, **call)
    out = decoder("noisy").generate(ids, **call, **{keyword(): cache_in(turn)})
    assert torch.equal(out, fresh)


def test_a_batch_with_a_cache_is_refused():
    turn = target().generate(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=4, **DICT)
    ids = torch.cat([turn.sequences, MORE.expand(5, -1)], 1)
    mask = torch.cat([RAGGED_MASK, torch.ones(5, ids.shape[1] - 6, dtype=torch.int64)], 1)
    with pytest.raises(UnsupportedOptionError, match="one at a time"):
        decoder().generate(ids, attention_mask=mask, max_new_tokens=4, **{keyword(): cache_in(turn)})


def test_a_cache_longer_than_the_prompt_is_refused():
    turn = target().generate(PROMPT, max_new_tokens=9, **DICT)
    with pytest.raises((UnsupportedOptionError, ValueError)):
        decoder().generate(turn.sequences[:, :5], max_new_tokens=4, do_sample=False, **{keyword(): cache_in(turn)})


def test_a_left_padded_cache():
    ids, mask = torch.tensor([[0, 0, 5, 6, 7]]), torch.tensor([[0, 0, 1, 1, 1]])
    turn = target().generate(ids, attention_mask=mask, max_new_tokens=6, **DICT)
    longer = torch.cat([turn.sequences, MORE], 1)
    mask = torch.cat([mask, torch.ones(1, longer.shape[1] - 5, dtype=torch.int64)], 1)
    expected = plain(longer, attention_mask=mask, max_new_tokens=12)
    for drafter in ("prompt-lookup", "noisy"):
        out = decoder(drafter).generate(
            longer, attention_mask=mask, max_new_tokens=12, do_sample=False, **{keyword(): cache_in(turn)}
        )
        assert torch.equal(out, expected)


def test_static_caches():
    model = llama(0)
    before = set(vars(model))
    expected = plain(max_new_tokens=12)
    out = decoder(model=model).generate(PROMPT, max_new_tokens=12, do_sample=False, cache_implementation="static")
    assert torch.equal(out, expected)
    assert set(vars(model)) == before
    static = StaticCache(config=model.config, max_cache_len=40)
    out = decoder(model=model).generate(PROMPT, max_new_tokens=12, do_sample=False, **{keyword(): static})
    assert torch.equal(out, expected)
    turn = model.generate(PROMPT, max_new_tokens=5, **DICT, **{keyword(): StaticCache(model.config, 40)})
    ids = torch.cat([turn.sequences, MORE], 1)
    with pytest.raises(UnsupportedOptionError, match="StaticCache"):
        decoder(model=model).generate(ids, max_new_tokens=5, do_sample=False, **{keyword(): cache_in(turn)})


def test_an_empty_cache_of_the_users_stays_empty():
    cache = DynamicCache(config=target().config)
    out = decoder().generate(PROMPT, max_new_tokens=8, do_sample=False, **{keyword(): cache})
    assert torch.equal(out, plain(max_new_tokens=8))
    assert cache.get_seq_length() == 0


def test_a_batch_returns_no_cache():
    out = decoder().generate(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=4, **DICT)
    assert cache_in(out) is None


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_prompts_in_chunks(chunk):
    ids = torch.arange(1, 30)[None]
    out = decoder().generate(ids, max_new_tokens=12, do_sample=False, prefill_chunk_size=chunk)
    assert torch.equal(out, plain(ids, max_new_tokens=12))


def test_the_cache_of_a_padded_prompt_goes_on_as_plain_generates():
    ids = torch.tensor([[0, 0, 0, 1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    call = {"do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
    turns = [
        generate(ids, attention_mask=mask, max_new_tokens=5, **call)
        for generate in (target().generate, decoder("prompt-lookup").generate)
    ]
    assert torch.equal(turns[0].sequences, turns[1].sequences)
    more = torch.cat([turns[0].sequences, torch.tensor([[11, 12]])], 1)
    whole = torch.cat([mask, torch.ones(1, more.shape[1] - 7, dtype=torch.int64)], 1)
    expected = target().generate(more, attention_mask=whole, max_new_tokens=8, **call).sequences
    for turn in turns:
        for generate in (target().generate, decoder("prompt-lookup").generate):
            cache = copy.deepcopy(cache_in(turn))
            again = generate(more, attention_mask=whole, **{keyword(): cache}, max_new_tokens=8, **call)
            assert torch.equal(again.sequences, expected)
