"""First of all: without drafts the engine says in bfloat16 what `generate` says."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.drafters import NoDraft
from tests.exactness.models import smollm2, tiny
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, llama

CALL = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}


@pytest.mark.core
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tokens_and_logits_without_drafts(dtype, seed):
    model = tiny(dtype, seed)
    ours = Decoder(model, NoDraft()).generate(PROMPT, max_new_tokens=60, **CALL)
    theirs = model.generate(PROMPT, max_new_tokens=60, **CALL)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))


@pytest.mark.parametrize("row", range(len(RAGGED)))
def test_prompts_with_padding(row):
    ids, mask = RAGGED[row : row + 1], RAGGED_MASK[row : row + 1]
    model = tiny()
    ours = Decoder(model, NoDraft()).generate(ids, attention_mask=mask, max_new_tokens=30, do_sample=False)
    real = ids[:, int((mask == 0).sum()) :]
    theirs = model.generate(real, max_new_tokens=30, do_sample=False)
    assert torch.equal(ours[:, ids.shape[1] :], theirs[:, real.shape[1] :])


def test_a_larger_model():
    model = llama(2, layers=3, vocab=512, spread=0.1).to(torch.bfloat16)
    ours = Decoder(model, NoDraft()).generate(PROMPT, max_new_tokens=150, do_sample=False)
    assert torch.equal(ours, model.generate(PROMPT, max_new_tokens=150, do_sample=False))


def test_smollm2():
    model, tokenizer = smollm2()
    ids = tokenizer("The history of the printing press began", return_tensors="pt").input_ids
    call = {"do_sample": False, "max_new_tokens": 48, "pad_token_id": tokenizer.eos_token_id}
    assert torch.equal(Decoder(model, NoDraft()).generate(ids, **call), model.generate(ids, **call))
