"""EAGLE heads that draw trees: honest draws, the law of what is emitted, and that it is the head who is asked."""

from __future__ import annotations

import pytest
import torch

from specdec.core.draft import Kind
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.drafters import Eagle2, Eagle3
from specdec.drafters.head_example import fresh as tiny
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import Eagle3Head
from specdec.schedulers import Fixed
from specdec.testing import check
from specdec.testing.drafter_laws import compare
from specdec.testing.harness import FULL, generation_of
from specdec.testing.laws import LawCase
from specdec.testing.tiny import TinyTarget
from specdec.verifiers.token import Token
from specdec.verifiers.traversal import Traversal
from tests.drafters.eagles import BATCH, decoder, taught
from tests.frontdoor.models import PROMPT, RAGGED, plain

TAPS = ("layer:0", "layer:1", "layer:2")


def drafter(kind, vocab, **options):
    if kind == "eagle2":
        return Eagle2(tiny(EagleHead, vocab), depth=3, top_k=3, sampled=True, **options)
    return Eagle3(tiny(Eagle3Head, vocab, taps=TAPS), depth=3, top_k=3, sampled=True, **options)


@pytest.mark.core
@pytest.mark.parametrize(
    ("kind", "rule", "depth", "temperature"),
    [
        ("eagle2", Traversal, 1, 1.0),
        ("eagle2", Token, 1, 0.5),
        ("eagle3", Traversal, 1, 0.5),
        ("eagle3", Token, 1, 1.0),
        ("eagle2", Traversal, 2, 1.0),
    ],
)
def test_output_law_is_the_targets(kind, rule, depth, temperature):
    """Every random branch of the engine with a real model of three tokens, its head and sampled trees."""
    nodes = 3
    case = LawCase(FULL.opening((1, 0), 1), None, (1, 0), (), depth, nodes, temperature=temperature)
    spied = drafter(kind, 3)
    compare(case, TinyTarget(3), spied, rule(), 4000)
    made = first_draft(spied, depth, nodes)
    assert len(made) == nodes and made.topology.fanout > 1 and set(made.kinds) == {Kind.NO_REPLACE}


def first_draft(drafter, depth, nodes, greedy=False, seed=0):
    generation = generation_of(
        TinyTarget(3), drafter, Traversal(), Fixed(depth, nodes), [(1, 0)], 12, TorchRng(seed),
        sampling=Sampling(greedy=greedy),
    )  # fmt: skip
    events = generation.rounds()
    next(events)
    draft = next(events).rows[0].draft
    events.close()
    return draft


def test_a_greedy_target_gets_the_likeliest_tokens():
    assert set(first_draft(drafter("eagle2", 3), 2, 5, greedy=True).kinds) == {Kind.POINT}


@pytest.mark.parametrize(("kind", "names"), [("eagle2", ["kinds", "reported-law"]), ("eagle3", ["no-leak"])])
def test_the_kit_finds_nothing(kind, names):
    report = check(lambda vocab: drafter(kind, vocab), only=names)
    assert report.ok and report.count("passed") == len(names), str(report)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_taught_head_is_believed_at_low_temperature(kind):
    made = (Eagle2 if kind == "eagle" else Eagle3)(taught(kind), depth=4, top_k=3, nodes=12, sampled=True)
    call = {"max_new_tokens": 40, "do_sample": True, "temperature": 0.02, "return_dict_in_generate": True}
    out = decoder(made).generate(PROMPT, seed=3, **call)
    assert out.stats.tokens_per_pass > 1.5
    assert decoder(made)._usual.name == "traversal"


def test_greedy_and_ragged():
    made = Eagle2(taught("eagle"), depth=4, top_k=3, nodes=12, sampled=True)
    assert torch.equal(decoder(made).generate(PROMPT, max_new_tokens=30, do_sample=False), plain(max_new_tokens=30))
    call = {"max_new_tokens": 20, "do_sample": True, "temperature": 0.8, "seed": 4}
    together = decoder(made).generate(RAGGED, **call, **BATCH)
    again = decoder(made).generate(RAGGED, **call, **BATCH)
    assert torch.equal(together, again)


def test_config():
    made = drafter("eagle2", 3)
    assert made.config.sampled and made.emits == {Kind.NO_REPLACE, Kind.POINT}
    assert not Eagle2(tiny(EagleHead, 3)).config.sampled and Eagle2(tiny(EagleHead, 3)).emits == {Kind.POINT}
    chain = Eagle3(tiny(Eagle3Head, 3, taps=TAPS), shape="chain")
    assert chain.emits == {Kind.IID, Kind.POINT}
