"""A text ends inside a block exactly where plain `generate` ends it, whatever ends it."""

from __future__ import annotations

import pytest
import torch
from transformers import MaxTimeCriteria, StoppingCriteria, StoppingCriteriaList

from specdec.core.errors import UnsupportedOptionError
from specdec.drafters import DraftModel, NoDraft, PromptLookup
from specdec.schedulers import Fixed
from tests.frontdoor.models import (
    DRAFTERS,
    LETTERS,
    PROMPT,
    RAGGED,
    RAGGED_MASK,
    cyclic,
    decoder,
    encode,
    llama,
    markov,
    oracle,
    plain,
    tokenizer,
)


def everyone(model, ids, length=60):
    """Drafters for a model whose text is known: none, lookup, perfect and nearly perfect ones."""
    text = model.generate(ids, max_new_tokens=length, do_sample=False)
    return {
        "none": NoDraft(),
        "prompt-lookup": PromptLookup(),
        "self": DraftModel(model),
        "oracle": oracle(text),
        "nearly": oracle(text, wrong_every=5),
    }


# --- eos ------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("depth", [1, 4, 9])
def test_eos_at_every_place_of_a_block(depth):
    free = plain(max_new_tokens=24)
    new = free[0, 7:].tolist()
    texts = free
    tried = set()
    for step, token in enumerate(new[:18]):
        if token in tried:
            continue
        tried.add(token)
        for eos in (token, [token, 63]):
            expected = plain(max_new_tokens=24, eos_token_id=eos)
            assert expected.shape[1] == 8 + step or token in new[:step] or 63 in new[:step]
            for drafter in (oracle(texts), oracle(texts, wrong_every=4), PromptLookup()):
                out = decoder(drafter, Fixed(depth)).generate(
                    PROMPT, max_new_tokens=24, do_sample=False, eos_token_id=eos, return_dict_in_generate=True
                )
                assert torch.equal(out.sequences, expected)
                assert out.stats.emitted == expected.shape[1] - 7
    assert len(tried) >= 8


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_eos_and_length_in_one_block(drafter):
    free = plain(max_new_tokens=20)[0, 7:].tolist()
    eos = free[8]
    step = free.index(eos)
    for cap in range(step, step + 4):
        if cap == 0:
            continue
        out = decoder(drafter, Fixed(15)).generate(PROMPT, max_new_tokens=cap, do_sample=False, eos_token_id=eos)
        assert torch.equal(out, plain(max_new_tokens=cap, eos_token_id=eos))


def test_the_reason_is_eos_where_eos_is_the_last_allowed_token():
    free = plain(max_new_tokens=20)[0, 7:].tolist()
    step = free.index(free[8])
    stream = decoder("self", Fixed(15)).stream(PROMPT, max_new_tokens=step + 1, do_sample=False, eos_token_id=free[8])
    events = list(stream)
    assert events[-1].rows[0].row.finish_reason == "eos"


def test_eos_among_the_tokens_of_the_prompt_ends_the_copy():
    # The lookup finds a whole cycle in the prompt, with the end token and what followed it there.
    model = cyclic()
    ids = encode("abcdefghijklabcdefghijkl")
    for eos in ("e", "a", "l"):
        call = {"max_new_tokens": 30, "eos_token_id": LETTERS.index(eos)}
        expected = plain(ids, model, **call)
        assert expected.shape[1] < 24 + 30
        for name, drafter in everyone(model, ids).items():
            out = decoder(drafter, Fixed(9), model).generate(ids, do_sample=False, return_dict_in_generate=True, **call)
            assert torch.equal(out.sequences, expected), name
    copies = decoder("prompt-lookup", Fixed(9), model).generate(
        ids, max_new_tokens=30, eos_token_id=LETTERS.index("e"), do_sample=False, return_dict_in_generate=True
    )
    assert copies.stats.judged == copies.stats.accepted  # what followed the end token was not even drafted


def test_without_eos_and_without_pad():
    model = markov([1, 2, 3, 4, 5, 0, 0, 0])
    ids = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1]])
    assert model.config.eos_token_id is None and model.config.pad_token_id is None
    for drafter in (PromptLookup(), DraftModel(model)):
        out = decoder(drafter, Fixed(6), model).generate(ids, max_new_tokens=15, do_sample=False)
        assert torch.equal(out, plain(ids, model, max_new_tokens=15))


def test_eos_without_pad_pads_as_plain_generate_does():
    model = llama(0, pad_token_id=None)
    free = model.generate(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=16, do_sample=False)
    eos = int(free[0, 9])
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 16, "eos_token_id": eos}
    expected = plain(RAGGED, model, **call)
    for drafter in (PromptLookup(), DraftModel(model)):
        assert torch.equal(decoder(drafter, model=model).generate(RAGGED, do_sample=False, **call), expected)
        one = {"max_new_tokens": 16, "eos_token_id": eos}
        assert torch.equal(
            decoder(drafter, model=model).generate(PROMPT, do_sample=False, **one), plain(PROMPT, model, **one)
        )


def test_pad_equal_to_eos():
    eos = int(plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=16)[2, 10])
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 16, "eos_token_id": eos, "pad_token_id": eos}
    for drafter in DRAFTERS:
        assert torch.equal(decoder(drafter).generate(RAGGED, do_sample=False, **call), plain(RAGGED, **call))


# --- stop strings ---------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize(
    "stops",
    ["de", ["de"], "cdefg", ["kl", "bc"], ["bc", "kl"], ["hij", "ghi", "i"], "la", ["zz", "ef"], "a"],
    ids=str,
)
def test_stop_strings_end_inside_a_block(stops):
    model = cyclic()
    ids = encode("abcdefghijklabc")
    call = {"max_new_tokens": 30, "stop_strings": stops}
    expected = plain(ids, model, tokenizer=tokenizer(), **call)
    assert expected.shape[1] < ids.shape[1] + 30
    for name, drafter in everyone(model, ids).items():
        out = decoder(drafter, Fixed(9), model).generate(ids, tokenizer=tokenizer(), do_sample=False, **call)
        assert torch.equal(out, expected), name


def test_the_earliest_stop_string_wins_whatever_the_order():
    model, ids = cyclic(), encode("abc")
    speculating = decoder(DraftModel(model), Fixed(9), model)
    ends = [
        speculating.generate(ids, max_new_tokens=12, stop_strings=stops, tokenizer=tokenizer(), do_sample=False)
        for stops in (["g", "e"], ["e", "g"])
    ]
    assert tokenizer().decode(ends[0][0]) == tokenizer().decode(ends[1][0]) == "abcde"


def test_stop_strings_in_a_config_and_in_the_models_own():
    model, ids = markov([(i + 1) % 12 for i in range(12)] + [0] * (len(LETTERS) - 12)), encode("abcdefghijklab")
    expected = plain(ids, model, max_new_tokens=20, stop_strings="fg", tokenizer=tokenizer())
    model.generation_config.stop_strings = ["fg"]
    speculating = decoder("prompt-lookup", model=model)
    assert torch.equal(speculating.generate(ids, max_new_tokens=20, tokenizer=tokenizer(), do_sample=False), expected)
    options = type(model.generation_config)(max_new_tokens=20, stop_strings="fg", do_sample=False)
    assert torch.equal(speculating.generate(ids, options, tokenizer=tokenizer()), expected)
    assert torch.equal(speculating.generate(ids, generation_config=options, tokenizer=tokenizer()), expected)
    assert model.generation_config.stop_strings == ["fg"] and options.stop_strings == "fg"


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(UnsupportedOptionError, match="tokenizer"):
        decoder().generate(PROMPT, max_new_tokens=4, stop_strings="x")


def test_stop_strings_in_a_batch():
    model = cyclic()
    ids = torch.cat([encode("...abc"), encode(".klabc"), encode("abcdef")])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1], [1] * 6])
    # Without any eos id plain `generate` writes on in rows that have ended; with one it pads them, as we always do.
    call = {
        "max_new_tokens": 12,
        "stop_strings": ["hi"],
        "attention_mask": mask,
        "pad_token_id": 26,
        "eos_token_id": 31,
    }
    expected = plain(ids, model, tokenizer=tokenizer(), **call)
    assert (expected == 26).any()
    for drafter in (PromptLookup(), DraftModel(model)):
        out = decoder(drafter, model=model).generate(ids, tokenizer=tokenizer(), do_sample=False, **call)
        assert torch.equal(out, expected)


# --- criteria -------------------------------------------------------------------------------------------


class After(StoppingCriteria):
    """Stops once an id stands at the end; notes every prefix and the shapes of the scores it was given."""

    def __init__(self, token):
        self.token, self.prefixes, self.scores = token, [], []

    def __call__(self, input_ids, scores, **kwargs):
        self.prefixes.append(input_ids.tolist())
        self.scores.append(None if scores is None else [tuple(entry.shape) for entry in scores])
        return (input_ids[:, -1] == self.token).to(torch.bool)


@pytest.mark.core
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("with_scores", [False, True])
def test_a_criterion_sees_what_plain_generate_shows_it_and_stops_there(drafter, with_scores):
    free = plain(max_new_tokens=20)[0, 7:].tolist()
    options = {"return_dict_in_generate": True, "output_scores": True} if with_scores else {}
    ours, theirs = After(free[11]), After(free[11])
    expected = plain(max_new_tokens=20, stopping_criteria=StoppingCriteriaList([theirs]), **options)
    out = decoder(drafter, Fixed(9)).generate(
        PROMPT, max_new_tokens=20, do_sample=False, stopping_criteria=StoppingCriteriaList([ours]), **options
    )
    if with_scores:
        assert torch.equal(out.sequences, expected.sequences)
        assert len(out.scores) == len(expected.scores)
    else:
        assert torch.equal(out, expected)
    assert ours.prefixes == theirs.prefixes
    assert ours.scores == theirs.scores


def test_criteria_in_a_batch_see_each_padded_row():
    class Long(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.tensor([len(set(row.tolist())) >= 9 for row in input_ids])

    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 20, "pad_token_id": 0, "eos_token_id": 63}
    expected = plain(RAGGED, stopping_criteria=[Long()], **call)
    assert (expected[:, -1] == 0).any()
    for drafter in DRAFTERS:
        out = decoder(drafter).generate(RAGGED, do_sample=False, stopping_criteria=[Long()], **call)
        assert torch.equal(out, expected), drafter


def test_a_criterion_may_answer_a_plain_bool():
    out = decoder().generate(
        PROMPT, max_new_tokens=20, do_sample=False, stopping_criteria=[lambda ids, scores, **kw: ids.shape[1] >= 10]
    )
    assert out.shape[1] == 10


def test_a_time_limit_ends_after_one_token_when_it_has_passed():
    for drafter in DRAFTERS:
        limit = MaxTimeCriteria(max_time=1.0, initial_timestamp=0.0)
        out = decoder(drafter, Fixed(5)).generate(
            PROMPT, max_new_tokens=20, do_sample=False, stopping_criteria=StoppingCriteriaList([limit])
        )
        assert out.shape[1] == 8
    out = decoder("self").generate(PROMPT, max_new_tokens=400, do_sample=False, max_time=0.01)
    assert 8 <= out.shape[1] < 407


# --- everything ends there ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["eos", "stop string", "criterion", "length"])
def test_statistics_scores_stream_and_cache_end_with_the_text(how):
    model, ids = cyclic(), encode("abcdefghijklabc")
    call = {"max_new_tokens": 30}
    if how == "eos":
        call["eos_token_id"] = LETTERS.index("h")
    elif how == "stop string":
        call["stop_strings"] = "gh"
    elif how == "criterion":
        call["stopping_criteria"] = [After(LETTERS.index("h"))]
    else:
        call["max_new_tokens"] = 5
    put = []

    class Streamer:
        def put(self, value):
            put.extend(value.flatten().tolist())

        def end(self):
            put.append(None)

    for drafter in (DraftModel(model), PromptLookup(), oracle(plain(ids, model, max_new_tokens=60), 4)):
        put.clear()
        out = decoder(drafter, Fixed(9), model).generate(
            ids, do_sample=False, return_dict_in_generate=True, output_scores=True, output_logits=True,
            streamer=Streamer(), tokenizer=tokenizer(), **call,
        )  # fmt: skip
        assert tokenizer().decode(out.sequences[0]) == "abcdefghijklabcdefgh"
        assert out.stats.emitted == 5 == len(out.scores) == len(out.logits)
        assert sum(out.stats.accepted_by_depth) == out.stats.accepted <= 5
        assert sum(n * count for n, count in enumerate(out.stats.accepted_lengths)) == out.stats.accepted
        assert put == [*out.sequences[0].tolist(), None]
        cache = getattr(out, "cache", None) or out.past_key_values
        assert cache.get_seq_length() == out.sequences.shape[1] - 1


def test_a_peft_model_whose_own_config_has_stop_strings_is_left_alone():
    peft = pytest.importorskip("peft")
    base = markov([(i + 1) % 12 for i in range(12)] + [0] * (len(LETTERS) - 12))
    wrapped = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    wrapped.generation_config.cache_implementation = "static"
    ids = encode("abcdefghijklab")
    out = decoder("prompt-lookup", model=wrapped).generate(
        ids, max_new_tokens=20, tokenizer=tokenizer(), stop_strings="fg", do_sample=False
    )
    assert tokenizer().decode(out[0]) == "abcdefghijklabcdefg"
    wrapped.generation_config.stop_strings = ["fg"]
    with pytest.raises(UnsupportedOptionError, match="PEFT"):
        decoder("prompt-lookup", model=wrapped).generate(ids, max_new_tokens=20, tokenizer=tokenizer())
    assert wrapped.generation_config.stop_strings == ["fg"]
