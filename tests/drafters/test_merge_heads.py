"""Draft heads below merge and first: text, and the states that their caches hold when others drafted the text."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.drafters import DraftModel, Eagle2, First, Medusa, Merge, NoDraft, PromptLookup
from specdec.heads.medusa import MedusaHead
from specdec.schedulers import Adaptive, Fixed
from tests.drafters.eagles import DRAFTERS, features, fresh, kind_of, taught
from tests.drafters.parts import Scripted, ahead, texts_of
from tests.exactness.models import tiny
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, draft, plain, target

BATCH = {"attention_mask": RAGGED_MASK, "pad_token_id": 0}


def head_drafter(name, kind="taught"):
    return DRAFTERS[name](taught(kind_of(name)) if kind == "taught" else fresh(kind_of(name)))


def medusa():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Medusa(MedusaHead.for_target(target(), heads=3))


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_text_is_that_of_generate(name):
    scheduler = Adaptive() if name == "eagle3" else Fixed(4, 9)
    for drafter in (
        Merge(PromptLookup(), head_drafter(name)),
        First(PromptLookup(), head_drafter(name, "fresh")),
        Merge(Merge(head_drafter(name), medusa()), DraftModel(draft("noisy")), PromptLookup()),
    ):
        decoder = Decoder(target(), drafter, scheduler=scheduler)
        assert torch.equal(decoder.generate(PROMPT, max_new_tokens=40, do_sample=False), plain(max_new_tokens=40))
        call = {**BATCH, "max_new_tokens": 24, "do_sample": False}
        assert torch.equal(decoder.generate(RAGGED, **call), plain(RAGGED, **call))


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("kind", [Merge, First])
@pytest.mark.parametrize("prompts", ["one", "ragged"])
def test_a_heads_cache_holds_the_true_states_of_text_that_others_drafted(name, kind, prompts):
    ids, more = {"one": (PROMPT, {}), "ragged": (RAGGED, BATCH)}[prompts]
    call = {"max_new_tokens": 30, "do_sample": False, **more}
    texts = texts_of(plain(ids, **call), more.get("attention_mask"))
    right = ahead(texts)

    def some(row, budget):  # right for 0 to 3 tokens, silent every third round: the text comes by both, and by either
        text = right(row, budget).tokens[: (row.rounds + row.index) % 4]
        return Draft.point([*text, 63][: budget.depth]) if row.rounds % 3 else Draft.empty()

    inner, sessions = head_drafter(name), []
    begin = inner.begin
    inner.begin = lambda context: sessions.append(begin(context)) or sessions[-1]
    rows, compared = {}, 0
    for event in Decoder(target(), kind(Scripted(some), inner), scheduler=Fixed(4, 16)).stream(ids, **call):
        rows |= {outcome.row.index: outcome.row for outcome in event.rows}
        (session,) = sessions or (None,)
        for index, row in rows.items() if session is not None else ():
            if row.done or index not in session._last:
                continue
            held = session._session.length(session._place[index])
            text = torch.tensor([row.tokens[: held + 1]])
            with torch.no_grad():
                known = inner.head.fuse(features(target(), text, inner.head.features))
                want = inner.head(text[:, 1:], known[:, :-1])
            assert torch.allclose(session._last[index], want[0, -1], atol=1e-4)
            compared += 1
    assert [list(row.tokens) for row in rows.values()] == texts and compared >= 3


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_bits_at_a_fixed_width(sample):
    model = tiny()
    call = {"max_new_tokens": 50, "do_sample": sample, "output_logits": True, "return_dict_in_generate": True}
    call |= {"seed": 3} if sample else {}
    want = Decoder(model, NoDraft(), exactness="fixed-width:16").generate(PROMPT, **call)
    oracle = Scripted(lambda row, budget: ahead(texts_of(want.sequences), right=len(row.tokens) % 4)(row, budget))
    for drafter in (
        Merge(PromptLookup(), Eagle2(fresh("eagle", model), top_k=3)),
        Merge(oracle, Eagle2(fresh("eagle", model), top_k=3)),
    ):
        got = Decoder(model, drafter, scheduler=Fixed(5), exactness="fixed-width:16").generate(PROMPT, **call)
        assert torch.equal(got.sequences, want.sequences)
        assert all(torch.equal(a, b) for a, b in zip(got.logits, want.logits, strict=True))
    assert got.stats.tokens_per_pass > 1.3


def test_sampled_text_of_point_trees_is_that_without_drafts():
    call = {"max_new_tokens": 30, "do_sample": True, "seed": 5, **BATCH}
    want = Decoder(target(), NoDraft()).generate(RAGGED, **call)
    for drafter in (Merge(PromptLookup(), head_drafter("eagle2")), First(PromptLookup(), medusa())):
        assert torch.equal(Decoder(target(), drafter, scheduler=Fixed(4, 24)).generate(RAGGED, **call), want)
