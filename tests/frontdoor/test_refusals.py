"""What would be silently wrong is refused before anything runs, all at once, with what was found and what to do."""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import DynamicCache, GenerationConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from specdec import Decoder
from specdec.core.errors import (
    IncompatibleError,
    InvalidPromptError,
    SpecdecError,
    UnsupportedModelError,
    UnsupportedOptionError,
)
from specdec.drafters import NoDraft, PromptLookup
from tests.frontdoor.models import PROMPT, RAGGED, decoder, draft, llama, plain, target
from tests.frontdoor.test_cache import cache_in, keyword


@pytest.fixture
def counted(monkeypatch):
    """A decoder whose target counts its forward passes."""
    model = llama(0)
    speculating = decoder("prompt-lookup", model=model)
    passes = []
    forward = LlamaForCausalLM.forward

    @functools.wraps(forward)  # or `generate` would not see which arguments the model takes
    def count(self, *args, **kwargs):
        passes.append(self)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", count)
    speculating.passes = passes
    return speculating


OPTIONS = {
    "beams": ({"num_beams": 3}, "num_beams=3"),
    "beam samples": ({"num_beams": 2, "do_sample": True}, "num_beams=2"),
    "no cache": ({"use_cache": False}, "use_cache=False"),
    "quantized cache": ({"cache_implementation": "quantized"}, "quantized"),
    "offloaded cache": ({"cache_implementation": "offloaded"}, "offloaded"),
    "paged cache": ({"cache_implementation": "paged"}, "paged"),
    "lookup of transformers": ({"prompt_lookup_num_tokens": 4}, "drafter"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive"),
    "dola": ({"dola_layers": "high"}, "dola"),
    "hidden states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    "kept in step": ({"synced_gpus": True}, "synced_gpus"),
    "another door": ({"custom_generate": lambda *a, **k: None}, "custom_generate"),
    "negative prompt": ({"negative_prompt_ids": PROMPT, "guidance_scale": 1.5}, "negative_prompt_ids"),
    "token types": ({"token_type_ids": torch.zeros_like(PROMPT)}, "token_type_ids"),
    "guidance": ({"guidance_scale": 1.5}, "Guidance"),
}


@pytest.mark.core
@pytest.mark.parametrize("option", OPTIONS)
def test_options(option, counted):
    options, named = OPTIONS[option]
    with pytest.raises(UnsupportedOptionError, match=f"(?i){named}") as caught:
        counted.generate(PROMPT, max_new_tokens=4, **options)
    assert isinstance(caught.value, ValueError)
    assert counted.passes == []


@pytest.mark.parametrize("option", ["beams", "no cache", "dola", "hidden states", "contrastive"])
def test_options_in_a_config_and_from_the_other_side(option, counted):
    options, named = OPTIONS[option]
    config = GenerationConfig(max_new_tokens=4, **options)
    for call in (
        lambda: counted.generate(PROMPT, config),
        lambda: counted.generate(PROMPT, generation_config=config),
        lambda: counted.target.model.generate(PROMPT, generation_config=config, custom_generate=counted),
    ):
        with pytest.raises(ValueError, match=f"(?i){named}"):
            call()
    assert counted.passes == []


def test_options_in_the_models_own_config(counted):
    model = llama(0)
    model.generation_config.num_beams = 4
    with pytest.raises(UnsupportedOptionError, match="num_beams=4"):
        decoder("prompt-lookup", model=model).generate(PROMPT, max_new_tokens=4)


def test_another_model_as_assistant(counted):
    with pytest.raises(UnsupportedOptionError, match=r"assistant_model.*DraftModel"):
        counted.generate(PROMPT, max_new_tokens=4, assistant_model=draft("foreign"))
    with pytest.raises(UnsupportedOptionError, match="assistant_model"):
        counted.generate(PROMPT, None, None, None, None, None, draft("foreign"), max_new_tokens=4)
    assert counted.passes == []


def test_embeddings_instead_of_tokens(counted):
    with pytest.raises(UnsupportedOptionError, match="input_ids"):
        counted.generate(inputs_embeds=torch.zeros(1, 3, 32), max_new_tokens=4)
    assert counted.passes == []


@pytest.mark.core
def test_several_problems_at_once(counted):
    with pytest.raises(UnsupportedOptionError) as caught:
        counted.generate(
            PROMPT, max_new_tokens=4, num_beams=3, use_cache=False, assistant_model=draft("foreign"), synced_gpus=True,
            output_attentions=True, return_dict_in_generate=True, cache_implementation="quantized",
        )  # fmt: skip
    for name in ("num_beams", "use_cache", "assistant_model", "synced_gpus", "output_attentions", "quantized"):
        assert name in str(caught.value)
    assert counted.passes == []


PROMPTS = {
    "no tokens": (torch.zeros(1, 0, dtype=torch.int64), {}, "at least one token|empty"),
    "no row": (torch.zeros(0, 3, dtype=torch.int64), {}, "at least one|empty"),
    "hidden row": (RAGGED, {"attention_mask": torch.tensor([[1] * 6] * 3 + [[0] * 6] + [[1] * 6])}, "row 3 is empty"),
    "too large an id": (torch.tensor([[1, 2, 64]]), {}, "token id 64.*0 to 63"),
    "a negative id": (torch.tensor([[1, -1, 5]]), {}, "token id -1"),
    "padded on the right": (
        torch.tensor([[1, 2, 3], [1, 2, 0]]), {"attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}, "padding_side"
    ),
    "a hole": (PROMPT, {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1, 1]])}, "holes"),
}  # fmt: skip


@pytest.mark.core
@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompts(prompt, counted):
    ids, options, named = PROMPTS[prompt]
    with pytest.raises(InvalidPromptError, match=named) as caught:
        counted.generate(ids, max_new_tokens=4, do_sample=False, **options)
    assert isinstance(caught.value, ValueError)
    assert counted.passes == []
    assert torch.equal(counted.generate(PROMPT, max_new_tokens=6, do_sample=False), plain(max_new_tokens=6))


def test_a_pad_token_inside_the_text_is_explained(counted):
    with pytest.raises(InvalidPromptError, match=r"attention_mask=torch.ones_like"):
        counted.generate(torch.tensor([[1, 0, 5]]), max_new_tokens=4, do_sample=False)
    ids = torch.tensor([[1, 0, 5]])
    mask = torch.ones_like(ids)
    out = counted.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    assert torch.equal(out, plain(ids, attention_mask=mask, max_new_tokens=4))


def test_unknown_and_foreign_arguments(counted):
    with pytest.raises(ValueError, match="max_new_token"):
        counted.generate(PROMPT, max_new_token=4)
    with pytest.raises(ValueError, match="pixel_values"):
        counted.generate(PROMPT, max_new_tokens=4, pixel_values=torch.zeros(1))
    with pytest.raises(TypeError, match="by position and by name"):
        counted.generate(PROMPT, inputs=PROMPT)
    with pytest.raises(TypeError, match="positional"):
        counted.generate(*[None] * 20)
    with pytest.raises(UnsupportedOptionError, match="streamer"):
        counted.stream(PROMPT, max_new_tokens=4, streamer=object())
    assert counted.passes == []


def test_positions(counted):
    usual = torch.arange(7)[None]
    out = counted.generate(PROMPT, max_new_tokens=4, do_sample=False, position_ids=usual)
    assert torch.equal(out, plain(max_new_tokens=4))
    counted.passes.clear()
    with pytest.raises(UnsupportedOptionError, match="position_ids"):
        counted.generate(PROMPT, max_new_tokens=4, do_sample=False, position_ids=usual + 3)
    assert counted.passes == []


def test_another_model_in_custom_generate(counted):
    with pytest.raises(IncompatibleError, match="another model"):
        target().generate(PROMPT, max_new_tokens=4, custom_generate=counted)


def test_an_encoder_decoder():
    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"(?i)encoder"):
        Decoder(T5ForConditionalGeneration(config), PromptLookup())


def test_what_is_no_model_and_no_drafter():
    with pytest.raises((SpecdecError, TypeError)):
        Decoder("a name", NoDraft())
    with pytest.raises((SpecdecError, TypeError)):
        Decoder(target(), draft("foreign"))
    with pytest.raises((SpecdecError, TypeError)):
        Decoder(target(), NoDraft)


def test_outputs_that_plain_generate_would_not_return_are_not_refused(counted):
    # Without a dict plain `generate` returns the ids alone, whatever else was asked for.
    out = counted.generate(PROMPT, max_new_tokens=4, do_sample=False, output_scores=True, output_attentions=True)
    assert torch.equal(out, plain(max_new_tokens=4))


def test_a_cache_object_that_keeps_no_keys(counted):
    class Odd(DynamicCache):
        def get_seq_length(self, *args, **kwargs):
            return 3

    with pytest.raises(UnsupportedOptionError, match="Odd"):
        counted.generate(PROMPT, max_new_tokens=4, do_sample=False, past_key_values=Odd())
    assert counted.passes == []


def test_new_tokens_alone_beside_a_cache(counted):
    """`generate` takes them with a mask over the whole text; the rows of an engine hold the whole text."""
    turn = plain(max_new_tokens=4, return_dict_in_generate=True)
    new = torch.tensor([[9, 8, 7, 6, 5, 4, 3, 2, 1, 9, 8, 7]])
    mask = torch.ones(1, turn.sequences.shape[1] - 1 + new.shape[1], dtype=torch.int64)
    with pytest.raises(UnsupportedOptionError, match="pass the whole text as input_ids"):
        counted.generate(new, attention_mask=mask, max_new_tokens=4, do_sample=False, **{keyword(): cache_in(turn)})


def test_equal_prompts_of_a_batch_with_a_cache(counted):
    turn = plain(max_new_tokens=4, return_dict_in_generate=True)
    twice = turn.sequences.repeat(2, 1)
    with pytest.raises(UnsupportedOptionError, match="several prompts"):
        counted.generate(twice, max_new_tokens=4, do_sample=False, **{keyword(): cache_in(turn)})


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_texts_that_cross_a_change_of_rotary_frequencies(kind):
    options = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32}
    rope = {"rope_theta": 10000.0, "rope_type": kind, "factor": 2.0, **(options if kind == "longrope" else {})}
    edge = 32 if kind == "longrope" else 64
    model = llama(0, max_position_embeddings=128 if kind == "longrope" else 64, rope_parameters=rope)
    decoder = Decoder(model, PromptLookup())
    for length, new, right in ((6, 20, True), (edge - 4, 10, False), (edge + 4, 10, kind == "longrope")):
        ids = torch.tensor([[1 + i % 60 for i in range(length)]])
        if right:
            expected = model.generate(ids, max_new_tokens=new, do_sample=False)
            assert torch.equal(decoder.generate(ids, max_new_tokens=new, do_sample=False), expected), length
        else:
            with pytest.raises(UnsupportedModelError, match=f"{kind}.* at {edge} tokens"):
                decoder.generate(ids, max_new_tokens=new, do_sample=False)
