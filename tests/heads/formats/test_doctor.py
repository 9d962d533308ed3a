"""Checkpoints that say the wrong thing about themselves: found by their target's own texts, and written again."""

from __future__ import annotations

import json
from functools import lru_cache

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.formats.doctor import diagnose
from specdec.heads.formats.write import export_head
from tests.drafters.eagles import features
from tests.heads.formats.target import PROMPT, target

pytestmark = pytest.mark.filterwarnings("ignore::specdec.core.errors.CheckpointWarning")

START = PROMPT.shape[1]


@lru_cache
def text():
    return target().generate(PROMPT, max_new_tokens=24, do_sample=False)


@lru_cache
def taught():
    """A head that knows the text by heart from what layer 0 puts out."""
    ids = text()[0].unique()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        head = Eagle3Head.for_target(
            target(), taps=("layer:0",), fc_norm=False, norm_before_residual=True,
            draft_ids=ids, own_lm_head=True,
        )  # fmt: skip
    # It must go by what the target's states say, and not by the tokens, which any reading gets right.
    head.layers[0].input_layernorm.weight.requires_grad_(False).zero_()
    known, labels = features(target(), text(), head.features), torch.searchsorted(ids, text())
    optimizer = torch.optim.Adam([each for each in head.parameters() if each.requires_grad], lr=5e-3)
    for _ in range(40):
        with torch.enable_grad():
            first = head(text()[:, 1:], head.fuse(known)[:, :-1])
            second = head(text()[:, 2:], first[:, :-1])
            pairs = ((first, 2), (second, 3))
            loss = sum(F.cross_entropy(head.logits(out)[0, :-1], labels[0, ahead:]) for out, ahead in pairs)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    return head.eval()


@pytest.fixture
def folder(tmp_path):
    export_head(taught(), tmp_path, "vllm")
    return tmp_path


def config(folder, **changes):
    path = folder / "config.json"
    found = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


def test_a_checkpoint_that_is_right_is_left_as_it_is(folder):
    found = diagnose(target(), folder, text(), [START])
    assert found[0].label == "as written" and found[0].first > 0.9
    labels = {reading.label for reading in found}
    assert "the residual starts before the norm" in labels and "no norm before the LM head" in labels
    assert all(found[0].score >= reading.score for reading in found)


def test_a_wrong_layer_convention_is_found(folder):
    # Ids of what layers put out, nested as trainers do who mean that, and read as what enters layers.
    config(
        folder,
        eagle_aux_hidden_state_layer_ids=None,
        eagle_aux_layer_semantics=None,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [0]},
    )
    found = diagnose(target(), folder, text(), [START])
    written = next(reading for reading in found if reading.label == "as written")
    assert found[0].label == "layer ids mean what layers put out" and found[0].first > 0.9
    assert written.score < found[0].score - 0.1
    assert found[0].conventions.layers == "output"


def test_a_wrong_norm_is_found(folder):
    config(folder, norm_before_residual=False)
    found = diagnose(target(), folder, text(), [START])
    assert found[0].conventions.norm_before_residual is True and found[0].first > 0.9


def test_a_map_of_ids_instead_of_offsets_is_found(folder):
    weights = load_file(folder / "model.safetensors")
    ids = weights["d2t"] + torch.arange(len(weights["d2t"]))
    save_file({**weights, "d2t": ids}, folder / "model.safetensors")
    found = diagnose(target(), folder, text(), [START])
    assert found[0].label == "d2t holds target ids" and found[0].first > 0.9
    written = next(reading for reading in found if reading.label == "as written")
    assert "the maps disagree" in written.problem or "outside the vocabulary" in written.problem


def test_a_head_for_another_target_has_no_reading(folder):
    from tests.frontdoor.models import llama

    found = diagnose(llama(0, layers=8, vocab=256), folder, text(), [START])
    assert all(reading.problem for reading in found)
