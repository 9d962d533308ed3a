"""EAGLE, EAGLE-2, EAGLE-3: the text is the target's, and the head's cache is that of the text's true states."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.core.draft import Kind
from specdec.core.errors import IncompatibleError
from specdec.drafters import Eagle, Eagle2, Eagle3, Medusa, NoDraft
from specdec.heads import MedusaHead
from specdec.schedulers import Adaptive, Fixed
from tests.drafters.eagles import BATCH, DRAFTERS, decoder, fresh, kind_of, with_head
from tests.frontdoor.models import PROMPT, RAGGED, VOCAB, llama, plain, target


@pytest.mark.core
@pytest.mark.parametrize("head", ["fresh", "taught"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_text_is_that_of_generate(name, head):
    speculating = decoder(with_head(name, head))
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=30, do_sample=False), plain(max_new_tokens=30))
    want = plain(RAGGED, max_new_tokens=20, **BATCH)
    assert torch.equal(speculating.generate(RAGGED, max_new_tokens=20, do_sample=False, **BATCH), want)


@pytest.mark.parametrize("name", DRAFTERS)
def test_rows_that_end_at_different_rounds(name):
    free = plain(RAGGED, max_new_tokens=40, **BATCH)
    eos = [int(free[row, 6 + 5 + 7 * row]) for row in range(3)]
    want = plain(RAGGED, max_new_tokens=40, eos_token_id=eos, **BATCH)
    got = decoder(with_head(name)).generate(RAGGED, max_new_tokens=40, do_sample=False, eos_token_id=eos, **BATCH)
    assert torch.equal(got, want)


@pytest.mark.parametrize("prompts", ["one", "ragged"])
@pytest.mark.parametrize("name", ["eagle2", "eagle3"])
def test_sampled_text_of_trees_is_that_without_drafts(name, prompts):
    ids, more = (PROMPT, {}) if prompts == "one" else (RAGGED, BATCH)
    call = {"max_new_tokens": 30, "do_sample": True, "temperature": 0.8, "top_k": 20, "seed": 11, **more}
    want = decoder(NoDraft()).generate(ids, **call)
    drafter = with_head(name)
    assert drafter.emits == {Kind.POINT}
    assert torch.equal(decoder(drafter).generate(ids, **call), want)


@pytest.mark.parametrize("name", ["eagle2", "eagle"])
def test_samples_of_one_prompt_share_its_cache(name):
    call = {"max_new_tokens": 20, "do_sample": True, "num_return_sequences": 4, "seed": 2}
    speculating = decoder(with_head(name))
    got = speculating.generate(PROMPT, **call)
    assert len({tuple(row) for row in got.tolist()}) == 4
    if name == "eagle2":
        assert torch.equal(got, decoder(NoDraft()).generate(PROMPT, **call))


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_taught_head_is_believed(name):
    out = decoder(with_head(name)).generate(PROMPT, max_new_tokens=50, do_sample=False, return_dict_in_generate=True)
    assert out.stats.tokens_per_pass > 2.5
    fresh_one = decoder(with_head(name, "fresh")).generate(
        PROMPT, max_new_tokens=50, do_sample=False, return_dict_in_generate=True
    )
    assert fresh_one.stats.tokens_per_pass < 2.0


@pytest.mark.parametrize("broken", ["nan", "inf", "zero", "large"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_broken_heads_cost_speed_only(name, broken):
    head = fresh(kind_of(name))
    value = {"nan": float("nan"), "inf": float("inf"), "zero": 0.0, "large": 1e20}[broken]
    with torch.no_grad():
        head.fc.weight.fill_(value)
    for sampled in (False, True):
        call = {"max_new_tokens": 12, "do_sample": sampled, **BATCH}
        want = plain(RAGGED, max_new_tokens=12, **BATCH)
        got = decoder(DRAFTERS[name](head)).generate(RAGGED, **call, **({"seed": 1} if sampled else {}))
        assert sampled or torch.equal(got, want)
        assert ((got >= 0) & (got < VOCAB)).all()


@pytest.mark.parametrize(
    ("name", "own"),
    [("eagle", {}), ("eagle2", {"own_lm_head": True}), ("eagle3", {"own_embed": True, "own_lm_head": True})],
    ids=str,
)
def test_a_trimmed_vocabulary_guesses_target_ids(name, own):
    kept = sorted({token * 5 % VOCAB for token in range(23)} | {30, 31})
    head = fresh(kind_of(name), draft_ids=kept, **own)
    drafter = DRAFTERS[name](head)
    assert set(drafter.needs.shared) == {"embed_tokens", "lm_head"} - {
        name for name, key in (("embed_tokens", "own_embed"), ("lm_head", "own_lm_head")) if own.get(key)
    }
    for event in decoder(drafter).stream(RAGGED, max_new_tokens=20, do_sample=False, **BATCH):
        assert all(token in kept for outcome in event.rows for token in outcome.drafted)
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 9, "repetition_penalty": 1.2, "seed": 4}
    drafted = 0
    for event in decoder(drafter).stream(PROMPT, max_new_tokens=20, **sampled):
        drafted += sum(len(outcome.drafted) for outcome in event.rows)
        assert all(token in kept for outcome in event.rows for token in outcome.drafted)
    assert drafted
    want = plain(RAGGED, max_new_tokens=20, **BATCH)
    assert torch.equal(decoder(drafter).generate(RAGGED, max_new_tokens=20, do_sample=False, **BATCH), want)


@pytest.mark.parametrize("name", DRAFTERS)
def test_under_the_default_scheduler(name):
    speculating = Decoder(target(), with_head(name), scheduler=Adaptive())
    for _ in range(2):
        got = speculating.generate(PROMPT, max_new_tokens=60, do_sample=False)
        assert torch.equal(got, plain(max_new_tokens=60))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_head_for_another_model_is_named(kind):
    from transformers import LlamaConfig, LlamaForCausalLM

    wide = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=48, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )
    )  # fmt: skip
    name = "eagle2" if kind == "eagle" else "eagle3"
    for model, words in [
        (wide, "a hidden size of 32, but LlamaForCausalLM has 48"),
        (llama(0, layers=5), "a number of layers of 2, but LlamaForCausalLM has 5"),
        (llama(0, vocab=300), f"a vocabulary of {VOCAB}, but LlamaForCausalLM has 300"),
    ]:
        with pytest.raises(IncompatibleError) as caught:
            Decoder(model, DRAFTERS[name](fresh(kind)))
        assert words.replace("LlamaForCausalLM", "target 'hf'") in str(caught.value)


def test_what_is_no_head_is_refused():
    medusa = MedusaHead.for_target(target(), heads=1)
    with pytest.raises(TypeError, match="takes a head of kind 'eagle', found one of 'medusa'"):
        Eagle(medusa)
    with pytest.raises(TypeError, match="takes a head of kind 'medusa', found one of 'eagle'"):
        Medusa(fresh("eagle"))
    with pytest.raises(TypeError, match="takes a head of kind 'eagle', found one of 'eagle3'"):
        Eagle2(fresh("eagle3"))
    with pytest.raises(ValueError, match="neither an existing folder nor a hub id"):
        Eagle("no/such/head")
    with pytest.raises(ValueError, match="depth"):
        Eagle(fresh("eagle"), depth=0)


def test_saved_heads_and_configs(tmp_path):
    fresh("eagle").save(tmp_path / "one")
    fresh("eagle3").save(tmp_path / "three")
    made = Eagle2(tmp_path / "one", top_k=3, nodes=9)
    assert made.config.checkpoint == str(tmp_path / "one") and (made.top_k, made.nodes) == (3, 9)
    again = Eagle2.from_config(made.config)
    assert again.config == made.config
    assert torch.equal(again.head.fc.weight, fresh("eagle").fc.weight)
    chain = Eagle3.from_config(Eagle3(tmp_path / "three", shape="chain", depth=3).config)
    assert not chain.branching and chain.emits == {Kind.IID, Kind.POINT} and chain.nodes == 3
    with pytest.raises(ValueError, match="holds a head of kind 'eagle', expected 'eagle3'"):
        Eagle3(tmp_path / "one")
    text = Decoder(target(), made, scheduler=Fixed(4, 9)).generate(PROMPT, max_new_tokens=20, do_sample=False)
    assert torch.equal(text, plain(max_new_tokens=20))


def test_a_bfloat16_head_serves_a_float32_target_and_stays_as_it_is():
    head = fresh("eagle").to(torch.bfloat16)
    got = decoder(Eagle2(head)).generate(PROMPT, max_new_tokens=20, do_sample=False)
    assert torch.equal(got, plain(max_new_tokens=20)) and head.dtype == torch.bfloat16
