"""One token in a pass over two: the same logits, nothing left in the cache, and only where drafts are decoded."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.drafters import DraftModel, NoDraft, PromptLookup
from specdec.schedulers import Fixed
from specdec.targets.cached_lm import CachedLM
from specdec.targets.cached_session import CachedSession
from tests.exactness.parts import Mixed
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, draft, plain, target

BATCH = {"attention_mask": RAGGED_MASK, "pad_token_id": 0}


@pytest.fixture
def widths(monkeypatch):
    """Every one-token pass goes in pairs; the widths of all passes."""
    seen, run = [], CachedLM.run

    def watched(self, tokens, *args, **kwargs):
        seen.append(tokens.shape[1])
        return run(self, tokens, *args, **kwargs)

    monkeypatch.setattr(CachedSession, "_pays_in_pairs", lambda self, held, device: True)
    monkeypatch.setattr(CachedLM, "run", watched)
    return seen


@pytest.mark.parametrize("drafter", ["none", "lookup", "chains", "trees", "model"])
def test_the_text_is_that_of_generate(widths, drafter):
    want, batch = plain(max_new_tokens=30), plain(RAGGED, max_new_tokens=30, **BATCH)
    for ids, expected, more in ((RAGGED, batch, BATCH), (PROMPT, want, {})):
        pads = [0] * len(ids) if not more else (RAGGED_MASK == 0).sum(1).tolist()
        texts = [row[pad:].tolist() for row, pad in zip(expected, pads, strict=True)]
        made = {
            "none": NoDraft(), "lookup": PromptLookup(), "chains": Mixed(texts, False), "trees": Mixed(texts, True),
            "model": DraftModel(draft("noisy")),
        }[drafter]  # fmt: skip
        decoder = Decoder(target(), made, scheduler=Fixed(3))
        assert decoder.target.caps.rollback  # measured here
        widths.clear()
        out = decoder.generate(ids, max_new_tokens=30, do_sample=False, **more)
        assert torch.equal(out, expected)
    assert 2 in widths and 1 not in widths


def test_features_are_those_of_the_one_token():
    lm = CachedLM(target())
    alone, paired = (lm.open([[1, 2, 3]]) for _ in range(2))
    paired._pays_in_pairs = lambda held, device: True
    for token in (5, 6, 7):
        found = []
        for session in (alone, paired):
            if not session.passes:
                session.prefill()
            found.append(session.extend([0], torch.tensor([[token]]), [(-1,)])[0])
            session.commit(0, (0,))
        assert found[0].shape == found[1].shape and torch.allclose(*found, atol=1e-5)
    assert alone.map.rows[0].slots == paired.map.rows[0].slots and alone.map.extent == paired.map.extent


@pytest.mark.parametrize(("dtype", "wide", "long", "pairs"), [
    (torch.bfloat16, True, True, True),
    (torch.bfloat16, True, False, False),
    (torch.bfloat16, False, True, False),  # without drafts the bits are those of plain decoding
    (torch.float32, True, True, False),
])  # fmt: skip
def test_where_it_pays(dtype, wide, long, pairs):
    session = CachedLM(target()).open([[1, 2, 3]], expected=3000)
    session.lm.dtype, session._wide = dtype, wide
    assert session._pays_in_pairs(2000 if long else 20, torch.device("cpu")) is pairs
    assert not session._pays_in_pairs(2000, torch.device("meta"))
    assert not session._pays_in_pairs(2999, torch.device("cpu"))  # a second one would stand behind the last position
