"""Reverify, as a rule of the engine: where the logits of wide passes are moved, the text is that of narrow ones.

`Decoder` does not offer the mode yet, for on real models the keys and values of wide passes move, too; here they are
left alone.
"""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.core.errors import UnsupportedOptionError
from specdec.drafters import DraftModel, NoDraft, PromptLookup
from specdec.exactness import Mode
from specdec.schedulers import Fixed
from tests.exactness.models import tiny
from tests.exactness.parts import Mixed, in_wide_passes, noise_where
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, draft, llama

NOISE = 0.03
CALL = {"return_dict_in_generate": True}


def run(model, drafter, exactness, *args, noise=0.0, scheduler=None, **kwargs):
    """Generate with noise on the logits of wide passes; the target is probed before the noise begins."""
    decoder = Decoder(model, drafter, scheduler=scheduler or Fixed(5))
    decoder._mode = Mode(exactness)
    assert decoder.target.caps.rollback
    handle = noise_where(model, in_wide_passes, noise)
    try:
        return decoder.generate(*args, **{**CALL, **kwargs})
    finally:
        handle.remove()


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("branching", [False, True], ids=["chains", "trees"])
def test_texts_that_flip_without_it_and_do_not_with_it(branching, sample):
    flipped = 0
    for seed in range(3):
        model = llama(seed)
        call = {"max_new_tokens": 80, "do_sample": sample, **({"seed": seed} if sample else {})}
        want = Decoder(model, NoDraft()).generate(PROMPT, **CALL, **call).sequences
        drafter = Mixed(want.tolist(), branching, seed)
        without = run(model, drafter, "algorithmic", PROMPT, noise=NOISE, **call)
        flipped += not torch.equal(without.sequences, want)
        got = run(model, drafter, "reverify", PROMPT, noise=NOISE, **call)
        assert torch.equal(got.sequences, want)
        assert 0 < got.stats.reverified < got.stats.emitted
    assert flipped


def test_a_batch():
    model = llama(0)
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 40, "do_sample": False}
    want = Decoder(model, NoDraft()).generate(RAGGED, **CALL, **call).sequences
    texts = [row[pad:].tolist() for row, pad in zip(want, (RAGGED_MASK == 0).sum(1), strict=True)]
    for branching in (False, True):
        got = run(model, Mixed(texts, branching), "reverify", RAGGED, noise=NOISE, **call)
        assert torch.equal(got.sequences, want) and got.stats.reverified
    assert "rows of different length" in str(got.guarantee)


@pytest.mark.parametrize("kind", ["lookup", "foreign", "self"])
def test_drafters_that_keep_a_cache_of_their_own(kind):
    model = llama(0)
    drafter = PromptLookup() if kind == "lookup" else DraftModel(draft(kind))
    want = model.generate(PROMPT, max_new_tokens=80, do_sample=False)
    got = run(model, drafter, "reverify", PROMPT, noise=NOISE, max_new_tokens=80, do_sample=False)
    assert torch.equal(got.sequences, want)
    assert got.stats.emitted == 80 == got.sequences.shape[1] - PROMPT.shape[1]


def test_nothing_is_in_doubt_in_float32():
    model = tiny("float32")
    want = model.generate(PROMPT, max_new_tokens=60, do_sample=False)
    got = run(model, Mixed(want.tolist(), False), "reverify", PROMPT, max_new_tokens=60, do_sample=False)
    assert torch.equal(got.sequences, want)
    assert 0 <= got.stats.drift < 1e-4 and got.stats.reverified == got.stats.near_ties == 0


def test_the_drift_is_measured_once_and_only_where_it_is_needed():
    model = llama(5).to(torch.bfloat16)
    call = {"max_new_tokens": 20, "do_sample": False}
    plain = run(model, PromptLookup(), "algorithmic", PROMPT, **call).stats
    assert plain.drift is None and plain.near_ties is None and plain.reverified == 0
    again = run(model, PromptLookup(), "reverify", PROMPT, **call).stats
    assert again.drift > 0 and again.near_ties is not None
    known = run(model, PromptLookup(), "algorithmic", PROMPT, **call).stats
    assert known.drift == again.drift and known.near_ties is not None


def test_scores_and_streams_are_those_of_plain_decoding():
    model = llama(0)
    want = model.generate(PROMPT, max_new_tokens=40, do_sample=False, output_scores=True, **CALL)
    drafter = Mixed(want.sequences.tolist(), True)
    got = run(model, drafter, "reverify", PROMPT, max_new_tokens=40, do_sample=False, output_scores=True)
    assert torch.equal(got.sequences, want.sequences) and len(got.scores) == len(want.scores)
    for a, b in zip(got.scores, want.scores, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=0)


@pytest.mark.core
def test_the_mode_is_not_offered_yet():
    with pytest.raises(UnsupportedOptionError, match="reverify"):
        Decoder(tiny(), PromptLookup(), exactness="reverify")
