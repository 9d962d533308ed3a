"""Fixed width with an EAGLE-2 head in bfloat16: text and logits are those without drafts, bit for bit."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from specdec import Decoder
from specdec.drafters import Eagle2, NoDraft
from specdec.schedulers import Fixed
from tests.drafters.eagles import fresh, teach
from tests.exactness.models import tiny
from tests.exactness.parts import noise_where, off_the_chain
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, llama, plain

KEEP = {"output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0}


@lru_cache
def head(taught):
    """A head that knows the model's greedy text after `PROMPT`, or a fresh one that is hardly ever right."""
    model = tiny("bfloat16")
    made = fresh("eagle", model)
    if taught:
        exact = tiny("float32")
        learnt = teach(fresh("eagle", exact), exact, plain(PROMPT, model, max_new_tokens=60))
        made.load_state_dict(learnt.state_dict())
    return made


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("taught", [False, True], ids=["fresh", "taught"])
@pytest.mark.parametrize("width", [5, 16])
@pytest.mark.parametrize("prompts", ["one", "ragged"])
def test_bits_with_dynamic_trees(prompts, width, taught, sample):
    model = tiny("bfloat16")
    ids, more = (PROMPT, {}) if prompts == "one" else (RAGGED, {"attention_mask": RAGGED_MASK})
    call = {**KEEP, **more, "max_new_tokens": 30, "do_sample": sample}
    call |= {"seed": 3, "temperature": 0.9} if sample else {}
    mode = f"fixed-width:{width}"
    want = Decoder(model, NoDraft(), exactness=mode).generate(ids, **call)
    got = Decoder(model, Eagle2(head(taught), top_k=3), scheduler=Fixed(5, width), exactness=mode).generate(ids, **call)
    assert torch.equal(got.sequences, want.sequences)
    assert all(torch.equal(a, b) for a, b in zip(got.logits, want.logits, strict=True))
    assert got.stats.judged > 0
    if taught and prompts == "one" and not sample:
        assert got.stats.tokens_per_pass > 1.3


def test_a_head_lives_with_tokens_that_were_taken_back():
    model = llama(0)
    learnt = teach(fresh("eagle"), model, plain(PROMPT, model, max_new_tokens=60))
    call = {**KEEP, "max_new_tokens": 50, "do_sample": False}
    want = Decoder(model, NoDraft(), exactness="fixed-width").generate(PROMPT, **call)
    speculating = Decoder(model, Eagle2(learnt, top_k=3), scheduler=Fixed(5, 12), exactness="fixed-width")
    handle = noise_where(model, off_the_chain, 1.0)
    try:
        got = speculating.generate(PROMPT, **call)
    finally:
        handle.remove()
    assert torch.equal(got.sequences, want.sequences) and got.stats.accepted > 5
