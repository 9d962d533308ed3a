"""`specdec generate` with a head: one of our own, a published one, and one of a hub, down to the text."""

from __future__ import annotations

import json
from functools import lru_cache

import pytest
import torch

from specdec import Decoder
from specdec.core.errors import ConfigError, ModelNotFoundError
from specdec.drafters import Eagle, Eagle2, Eagle3, Medusa
from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.eagle3 import Eagle3Head
from specdec.heads.medusa import MedusaHead
from specdec.schedulers import Fixed
from tests.frontdoor.models import LETTERS, tokenizer
from tests.heads.formats import dialects
from tests.heads.formats.target import VOCAB, target

pytestmark = pytest.mark.filterwarnings("ignore::specdec.core.errors.CheckpointWarning")
PROMPT = "abcabdab"


@lru_cache
def words():
    """A token for every id of the target, so that no part of a text is left out."""
    return tokenizer(extra=VOCAB - len(LETTERS))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    target().save_pretrained(folder)
    words().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A head of ours that has learnt nothing, in a folder."""
    folder = tmp_path_factory.mktemp("head")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        Eagle3Head.for_target(target(), draft_ids=range(10, 50)).save(folder)
    return folder


@pytest.fixture(scope="module")
def plain():
    """What the target says, as text."""
    ids = torch.tensor([words()(PROMPT).input_ids])
    out = target().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    text = words().decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    assert text.count("<extra") > 3
    return text


@pytest.fixture
def hub(monkeypatch, head):
    """A hub that holds the head as `org/head`; what was asked of it is noted."""
    asked = []

    def download(name, revision=None, allow_patterns=None):
        asked.append((name, revision, tuple(allow_patterns)))
        if (name, revision) not in {("org/head", None), ("org/head", "v1")}:
            raise OSError(f"404 for {name} at {revision}")
        return str(head)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked


def generated(specdec, model, drafter, *options):
    """The text, after every round drafted; with the scheduler of the command a head that is wrong would soon rest."""
    arguments = ("--prompt", PROMPT, "--no-chat", "--max-new-tokens", 16, "--stats", *options)
    return specdec("generate", "--model", model, "--drafter", drafter, *arguments)


def test_a_head_of_ours_decodes(specdec, model, head, plain):
    result = generated(specdec, model, f"eagle3:{head}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == plain.strip() and "guarantee: exact-greedy" in result.stderr


@pytest.mark.parametrize("name", ["safeailab", "specforge", "speculators", "deepspec"])
def test_a_published_head_decodes(specdec, model, plain, name, tmp_path):
    result = generated(specdec, model, f"eagle3:{dialects.DIALECTS[name]().write(tmp_path)}")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == plain.strip() and "guarantee: exact-greedy" in result.stderr


@pytest.mark.parametrize("name", dialects.DIALECTS)
def test_every_dialect_drafts_by_name(model, name, tmp_path):
    """Drafted at every round, so that the head really ran, and the text is the target's all the same."""
    made = dialects.DIALECTS[name]()
    config = {"drafter": {"type": made.drafter, "checkpoint": str(made.write(tmp_path))}}
    decoder = Decoder.from_config({**config, "scheduler": {"type": "fixed", "depth": 2, "nodes": 4}}, target=target())
    ids = torch.tensor([[5, 17, 100, 31, 8]])
    out = decoder.generate(ids, max_new_tokens=8, do_sample=False, return_dict_in_generate=True)
    assert out.stats.judged > 0
    assert torch.equal(out.sequences, target().generate(ids, max_new_tokens=8, do_sample=False))


@pytest.mark.parametrize(("drafter", "revision"), [("eagle3:org/head", None), ("eagle3:org/head@v1", "v1")])
def test_a_head_of_a_hub_decodes(specdec, model, plain, hub, drafter, revision):
    result = generated(specdec, model, drafter)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == plain.strip()
    # Safetensors and JSON are asked for, and pickles not, since there is no need of them.
    assert hub == [("org/head", revision, ("*.json", "*.safetensors"))]


def test_a_revision_that_a_hub_does_not_have_is_named(specdec, model, hub):
    result = generated(specdec, model, "eagle3:org/head@v2")
    assert result.exit_code == 1
    assert "no head could be loaded from 'org/head'" in result.stderr and "404 for org/head at v2" in result.stderr


def test_a_hub_id_and_its_revision_stand_in_the_config(hub):
    made = Eagle3("org/head", revision="v1", depth=3)
    assert made.config.checkpoint == "org/head" and made.config.revision == "v1" and made.config.depth == 3
    decoder = Decoder(target(), made, scheduler=Fixed(depth=2))
    again = Decoder.from_config(json.loads(decoder.config.model_dump_json()), target=target())
    assert again.drafter.config == made.config
    assert [revision for _, revision, _ in hub] == ["v1", "v1"]


def test_a_revision_of_what_has_none_is_refused(head):
    with pytest.raises(ModelNotFoundError, match="only hub ids have them"):
        Eagle3(head, revision="v1")
    for drafter in (Eagle, Eagle2, Eagle3):
        with pytest.raises(ModelNotFoundError, match="only hub ids have them"):
            drafter(head, revision="v1")
    with pytest.raises(ConfigError, match="loaded already"):
        Eagle3(Eagle3Head.for_target(target()), revision="v1")
    with pytest.raises(ConfigError, match="loaded already"):
        Medusa(MedusaHead.for_target(target(), heads=2), revision="v1")


def test_a_head_of_another_kind_is_named(specdec, model, head):
    result = generated(specdec, model, f"eagle2:{head}")
    assert result.exit_code == 1 and "holds a head of kind 'eagle3', expected 'eagle'" in result.stderr


def test_a_head_for_another_tokenizer_is_refused(specdec, model, tmp_path):
    """It names the tokenizer of its training data; the target's own has the same letters in another order."""
    Eagle3Head.for_target(target(), tokenizer=tokenizer_fingerprint(words())).save(tmp_path / "head")
    target().save_pretrained(tmp_path / "other")
    tokenizer(rotated=3, extra=VOCAB - len(LETTERS)).save_pretrained(tmp_path / "other")
    drafter = f"eagle3:{tmp_path / 'head'}"
    assert generated(specdec, model, drafter).exit_code == 0
    traced = ("--prompt", PROMPT, "--no-chat", "--max-new-tokens", 4, "--out", tmp_path / "t.html")
    for result in (
        generated(specdec, tmp_path / "other", drafter),
        specdec("trace", "--model", tmp_path / "other", "--drafter", drafter, *traced),
    ):
        assert result.exit_code == 1 and "the same id is another token. Use a head trained for" in result.stderr
    assert not (tmp_path / "t.html").exists()
