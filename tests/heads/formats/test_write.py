"""Heads of ours written for vLLM: what they borrow is written out, and what a layout cannot say is refused."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.core.errors import CheckpointError
from specdec.drafters import Eagle3, Medusa, Merge, PromptLookup
from specdec.heads import MedusaHead, load_head
from specdec.heads.base import facts_of
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.formats.write import export_head
from tests.heads.formats import dialects
from tests.heads.formats.target import D, target
from tests.heads.formats.test_dialects import bound, said

pytestmark = pytest.mark.filterwarnings("ignore::specdec.core.errors.CheckpointWarning")

MAKERS = {
    "medusa": lambda **options: MedusaHead.for_target(target(), heads=2, **options),
    "eagle": lambda **options: EagleHead.for_target(target(), **options),
    "eagle3": lambda **options: Eagle3Head.for_target(target(), **options),
}


def made(kind, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        return MAKERS[kind](**options).eval()


@pytest.mark.parametrize(
    ("kind", "options", "form"),
    [
        ("medusa", {}, "vllm"),
        ("medusa", {"draft_ids": [3, 5, 200]}, "vllm"),
        ("eagle", {"embed_scale": 8.0}, "vllm"),
        ("eagle3", {"draft_ids": [3, 5, 200]}, "speculators"),
        ("eagle3", {"embed_scale": 8.0, "own_embed": True, "norm_output": True}, "speculators"),
        ("eagle3", {"final_norm": False, "taps": ("embed", "layer:7")}, "vllm"),
    ],
    ids=str,
)
def test_a_head_that_borrows_says_the_same_from_its_files(kind, options, form, tmp_path):
    head = made(kind, **options)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    export_head(head, tmp_path, form, verifier="org/base")
    again = bound(load_head(tmp_path, target=facts_of(target())))
    for ours, theirs in zip(said(head), said(again), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "options", "form", "message"),
    [
        ("medusa", {}, "speculators", "'medusa' cannot be written as 'speculators'; expected one of vllm"),
        ("eagle", {"draft_ids": [1, 2]}, None, "draft_vocab_size: EAGLE's layout"),
        ("eagle3", {"fc_bias": True}, None, "fc_bias: the layouts of EAGLE-3"),
        ("eagle3", {"taps": ("layer:0", "final")}, None, "the state after the final norm has no number"),
        ("eagle3", {"norm_output": True}, "vllm", "norm_output: only speculators' layout"),
        ("eagle3", {"final_norm": False}, "speculators", "final_norm: speculators' layout always has"),
        ("eagle3", {}, "speculators", "the head does not say it: give verifier"),
    ],
    ids=str,
)
def test_what_a_layout_cannot_say_is_refused(kind, options, form, message, tmp_path):
    head = made(kind, **options)
    head.config = head.config.model_copy(update={"target": ""})
    with pytest.raises(CheckpointError, match=message):
        export_head(head, tmp_path / "out", form)
    assert not (tmp_path / "out").exists()


def test_published_heads_merge_with_others(tmp_path):
    eagle3 = Eagle3(dialects.specforge().write(tmp_path / "a"))
    medusa = Medusa(dialects.medusa_vllm().write(tmp_path / "b"), tree=[[0], [0, 0]])
    merged = Merge(PromptLookup(), medusa, eagle3)
    decoder = Decoder(target(), merged)
    ids = torch.tensor([[5, 17, 100]])
    text = decoder.generate(ids, max_new_tokens=2, do_sample=False)
    assert torch.equal(text, target().generate(ids, max_new_tokens=2, do_sample=False))
    assert decoder.drafter is not merged and "lm_head" not in decoder.drafter.needs.shared
    assert {"final", "layer:1", "layer:3", "layer:4"} == set(decoder.drafter.needs.features)
    assert decoder.drafter.drafters[1].head.config.target_hidden_size == D
    assert Decoder(target(), eagle3).drafter.head is not decoder.drafter.drafters[2].head  # each decoder meets its own
