"""Streamers and `stream()`: the same tokens, in order, once; closing early leaves everything usable."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from transformers import TextIteratorStreamer, TextStreamer

from specdec.core.errors import UnsupportedOptionError
from specdec.drafters import DraftModel, PromptLookup
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.manager import PluginManager, discover, use
from specdec.schedulers import Fixed
from tests.frontdoor.models import (
    DRAFTERS,
    PROMPT,
    RAGGED,
    RAGGED_MASK,
    cyclic,
    decoder,
    encode,
    oracle,
    plain,
    tokenizer,
)


class Recorder:
    def __init__(self):
        self.puts, self.ends = [], 0

    def put(self, value):
        assert self.ends == 0
        self.puts.append(value)

    def end(self):
        self.ends += 1


@pytest.mark.core
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_streamer_gets_what_plain_generate_gives_it(drafter):
    theirs, ours = Recorder(), Recorder()
    expected = plain(max_new_tokens=16, streamer=theirs)
    out = decoder(drafter).generate(PROMPT, max_new_tokens=16, do_sample=False, streamer=ours)
    assert torch.equal(out, expected)
    assert [tuple(value.shape) for value in ours.puts] == [tuple(value.shape) for value in theirs.puts]
    assert all(torch.equal(a, b) for a, b in zip(ours.puts, theirs.puts, strict=True))
    assert torch.equal(ours.puts[0], PROMPT) and ours.ends == 1
    assert torch.equal(torch.cat([value.flatten() for value in ours.puts]), out[0])


def test_a_streamer_by_position_as_generate_takes_it():
    ours = Recorder()
    decoder().generate(PROMPT, None, None, None, None, None, None, ours, max_new_tokens=3, do_sample=False)
    assert len(ours.puts) == 4 and ours.ends == 1


def test_text_streamers(capsys):
    model, ids = cyclic(), encode("abcdefghijkl ab")
    call = {"max_new_tokens": 12, "do_sample": False}
    for options in ({}, {"skip_prompt": True}):
        model.generate(ids, streamer=TextStreamer(tokenizer(), **options), **call)
        expected = capsys.readouterr().out
        assert expected.strip()
        for drafter in (PromptLookup(), DraftModel(model)):
            decoder(drafter, model=model).generate(ids, streamer=TextStreamer(tokenizer(), **options), **call)
            assert capsys.readouterr().out == expected


def test_an_iterating_streamer_in_another_thread():
    model, ids = cyclic(), encode("abcdefghijkl ab")
    streamer = TextIteratorStreamer(tokenizer(), skip_prompt=True, timeout=30)
    speculating = decoder("prompt-lookup", model=model)
    thread = threading.Thread(
        target=speculating.generate,
        args=(ids,),
        kwargs={"max_new_tokens": 12, "do_sample": False, "streamer": streamer},
    )
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == "cdefghijklab"


def test_a_batch_is_refused_before_anything_is_shown():
    recorder = Recorder()
    with pytest.raises(UnsupportedOptionError, match="5 rows"):
        decoder().generate(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=4, streamer=recorder)
    assert recorder.puts == []


@pytest.mark.core
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_events_add_up_to_the_result(drafter):
    call = {"max_new_tokens": 14, "do_sample": False, "attention_mask": RAGGED_MASK, "pad_token_id": 0}
    call["eos_token_id"] = int(plain(RAGGED, **{k: v for k, v in call.items() if k != "do_sample"})[1, 9])
    stream = decoder(drafter).stream(RAGGED, return_dict_in_generate=True, **call)
    tokens, accepted = {row: [] for row in range(5)}, 0
    for number, event in enumerate(stream):
        assert event.number == number
        for outcome in event.rows:
            tokens[outcome.row.index].extend(outcome.tokens)
            accepted += outcome.accepted
            # The path says which tokens came from the draft: as many as were accepted, at the front.
            assert [outcome.drafted[node - 1] for node in outcome.path[: outcome.accepted]] == list(
                outcome.tokens[: outcome.accepted]
            )
            assert outcome.accepted <= len(outcome.tokens) <= outcome.accepted + 1
    result = stream.result()
    for row, new in tokens.items():
        padded = new + [0] * (result.sequences.shape[1] - 6 - len(new))
        assert result.sequences[row, 6:].tolist() == padded
    assert result.stats.emitted == sum(map(len, tokens.values()))
    assert result.stats.accepted == accepted
    assert torch.equal(result.sequences, plain(RAGGED, **{k: v for k, v in call.items() if k != "do_sample"}))


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_closing_early(rounds):
    expected = plain(max_new_tokens=30)
    speculating = decoder("noisy", Fixed(4))
    stream = speculating.stream(
        PROMPT, max_new_tokens=30, do_sample=False, return_dict_in_generate=True, output_scores=True
    )
    seen = []
    for _ in range(rounds):
        seen.extend(next(stream).rows[0].tokens)
    stream.close()
    assert list(stream) == []
    assert stream.sequences[0].tolist() == [*PROMPT[0].tolist(), *seen] == expected[0, : 7 + len(seen)].tolist()
    assert stream.stats.emitted == len(seen) and stream.stats.rounds == rounds
    assert len(stream.result().scores) == len(seen)
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=30, do_sample=False), expected)


def test_the_result_while_rounds_are_still_to_come():
    stream = decoder("self").stream(PROMPT, max_new_tokens=30, do_sample=False)
    next(stream), next(stream)
    assert stream.result().shape[1] == 7 + 1 + 6


def test_observers_hear_of_every_round_once():
    heard = []

    class Plugin:
        @staticmethod
        @hookimpl
        def specdec_round(info):
            heard.append(info)

    manager = PluginManager.from_environment()
    manager.register(Plugin(), name="listening")
    with use(manager):
        stream = decoder("prompt-lookup").stream(PROMPT, max_new_tokens=12, do_sample=False)
        events = list(stream)
        assert discover() is manager
    assert heard == events and [event.number for event in heard] == list(range(len(events)))


def test_a_streamer_that_raises_ends_the_call_and_not_the_decoder():
    class Broken(Recorder):
        def put(self, value):
            super().put(value)
            if len(self.puts) == 3:
                raise OSError("closed")

    speculating = decoder(oracle(plain(max_new_tokens=20)))
    broken = Broken()
    with pytest.raises(OSError, match="closed"):
        speculating.generate(PROMPT, max_new_tokens=20, do_sample=False, streamer=broken)
    assert len(broken.puts) == 3 and broken.ends == 0
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=20, do_sample=False), plain(max_new_tokens=20))


def test_events_say_what_was_so_when_they_happened_and_can_be_copied():
    events = list(decoder("prompt-lookup").stream(PROMPT, max_new_tokens=20, do_sample=False))
    assert [event.rows[0].done for event in events] == [False] * (len(events) - 1) + [True]
    for how in (copy.copy, copy.deepcopy, lambda row: pickle.loads(pickle.dumps(row))):
        tokens = how(events[-1].rows[0].row.tokens)
        assert tokens == events[-1].rows[0].row.tokens and type(tokens) is type(events[-1].rows[0].row.tokens)


@pytest.mark.parametrize("seed", [1.5, "7", torch.tensor([1, 2])], ids=str)
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(UnsupportedOptionError, match="seed: expected a whole number"):
        decoder("prompt-lookup").generate(PROMPT, max_new_tokens=4, do_sample=True, seed=seed)
