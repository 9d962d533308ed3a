"""What drafters without training share: the text of plain decoding, its bits at fixed width, and never more passes."""

from __future__ import annotations

import pytest
import torch
from benchmarks import draft_free

from specdec import Decoder
from specdec.drafters import Jacobi, Lookahead, Merge, NoDraft, PromptLookup, TokenRecycling
from specdec.schedulers import Adaptive, Fixed
from tests.exactness.models import tiny
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, cyclic, encode, plain, target

DRAFTERS = {
    "jacobi": lambda: Jacobi(4),
    "lookahead": lambda: Lookahead(5, 4, 4),
    "lookahead from the prompt": lambda: Lookahead(3, 3, 2, prompt=True),
    "lookahead, simple": lambda: Lookahead(form="simple", ngram=3),
    "token-recycling": TokenRecycling,
    "merge": lambda: Merge(PromptLookup(), TokenRecycling(4, 20), Lookahead(4, 3, 3), Jacobi()),
}
SAMPLING = [{"temperature": 0.8}, {"top_p": 0.9, "repetition_penalty": 1.3}, {"top_k": 5, "temperature": 1.4}]
GREEDY = {"do_sample": False, "return_dict_in_generate": True}


@pytest.mark.core
@pytest.mark.parametrize("scheduler", [None, Fixed(3), Fixed(8, 200)], ids=["default", "narrow", "wide"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_text_is_that_of_generate(name, scheduler):
    speculating = Decoder(target(), DRAFTERS[name](), scheduler=scheduler)
    out = speculating.generate(PROMPT, max_new_tokens=40, **GREEDY)
    assert torch.equal(out.sequences, plain(max_new_tokens=40))
    assert out.stats.target_passes <= 40
    batch = {"attention_mask": RAGGED_MASK, "max_new_tokens": 24}
    assert torch.equal(speculating.generate(RAGGED, do_sample=False, **batch), plain(RAGGED, **batch))


@pytest.mark.core
@pytest.mark.parametrize("options", SAMPLING, ids=str)
@pytest.mark.parametrize("name", DRAFTERS)
def test_sampled_text_is_that_of_the_seed_alone_and_in_a_batch(name, options):
    speculating = Decoder(target(), DRAFTERS[name](), scheduler=Fixed(6))
    call = {"do_sample": True, "seed": 11, "max_new_tokens": 24, **options}
    batch = {"attention_mask": RAGGED_MASK, **call}
    want = Decoder(target(), NoDraft()).generate(RAGGED, **batch)
    assert torch.equal(speculating.generate(RAGGED, **batch), want)
    alone = speculating.generate(RAGGED[2:3], **call)
    assert torch.equal(alone, want[2:3])


@pytest.mark.parametrize("name", DRAFTERS)
def test_rows_that_end_at_different_tokens(name):
    free = plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=30)
    eos = [int(free[0, 9]), int(free[2, 13]), int(free[4, 20])]
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 30, "eos_token_id": eos, "pad_token_id": 0}
    expected = plain(RAGGED, **call)
    assert len({int((row[6:] != 0).sum()) for row in expected}) >= 3
    assert torch.equal(
        Decoder(target(), DRAFTERS[name](), scheduler=Fixed(7)).generate(RAGGED, do_sample=False, **call), expected
    )


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "merge"])
def test_bits_at_fixed_width(name, sample):
    model = tiny()
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 40, "do_sample": sample, "output_logits": True}
    call |= {"return_dict_in_generate": True, **({"seed": 5} if sample else {})}
    want = Decoder(model, NoDraft(), exactness="fixed-width:12").generate(RAGGED, **call)
    for scheduler in (Fixed(6), Adaptive()):
        got = Decoder(model, DRAFTERS[name](), scheduler=scheduler, exactness="fixed-width:12").generate(RAGGED, **call)
        assert torch.equal(got.sequences, want.sequences)
        assert all(torch.equal(a, b) for a, b in zip(got.logits, want.logits, strict=True))


@pytest.mark.core
@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "jacobi"])
def test_text_that_repeats_takes_fewer_passes(name):
    model, ids = cyclic(), encode("abc")
    out = Decoder(model, DRAFTERS[name](), scheduler=Fixed(8)).generate(ids, max_new_tokens=60, **GREEDY)
    assert torch.equal(out.sequences, plain(ids, model, max_new_tokens=60))
    assert out.stats.tokens_per_pass > 1.8
    assert out.stats.accepted > 0


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_grammar_sees_prefixes_of_the_text_only(name):
    allowed = {token: [(token * 7 + 3) % 64, (token * 5 + 1) % 64, (token + 9) % 64] for token in range(64)}
    reached = set()

    def only(batch, ids):
        reached.add(tuple(ids.tolist()))
        return allowed[int(ids[-1])]

    call = {"max_new_tokens": 30, "prefix_allowed_tokens_fn": only}
    expected = plain(**call)
    reached.clear()
    got = Decoder(target(), DRAFTERS[name](), scheduler=Fixed(5)).generate(PROMPT, do_sample=False, **call)
    assert torch.equal(got, expected)
    text = expected[0].tolist()
    assert all(list(prefix) == text[: len(prefix)] for prefix in reached)


@pytest.mark.parametrize("name", DRAFTERS)
def test_two_streams_of_one_decoder_do_not_meet(name):
    speculating = Decoder(target(), DRAFTERS[name](), scheduler=Fixed(5))
    streams = [speculating.stream(ids, max_new_tokens=25, do_sample=False) for ids in (PROMPT, RAGGED[2:3])]
    left = list(streams)
    while left:
        left = [stream for stream in left if next(stream, None) is not None]
    for stream, ids in zip(streams, (PROMPT, RAGGED[2:3]), strict=True):
        assert torch.equal(stream.sequences, plain(ids, max_new_tokens=25))


def test_the_benchmark_measures_every_system():
    made = draft_free.systems(target())
    prompts = [("one", PROMPT), ("two", RAGGED[2:3])]
    sums = draft_free.measure(target(), made, prompts, {"max_new_tokens": 8}, 0.0)
    found = draft_free.rows(sums)
    assert [*found] == [*made] and len(made) == 1 + 2 * len(draft_free.DRAFTERS)
    for name, row in found.items():
        assert set(row["tokens_per_pass"]) == {"one", "two", "mean"} and row["texts_differing"] == []
        assert row["tokens_per_pass"]["mean"] == 1.0 if name == draft_free.PLAIN else row["nodes_per_pass"] >= 1.0
    assert draft_free.shown(found, "title").row_count == len(made)
    with pytest.raises(SystemExit, match="no system nothing; expected plain generate, prompt-lookup"):
        draft_free.systems(target(), ["nothing"])
