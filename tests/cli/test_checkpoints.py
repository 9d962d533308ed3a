"""`specdec show`, `doctor` and `export` of checkpoints, and `generate` with one."""

from __future__ import annotations

import json

import pytest

from specdec.heads.base import facts_of
from specdec.heads.formats import read_published
from tests.frontdoor.models import tokenizer
from tests.heads.formats import dialects
from tests.heads.formats.target import target

pytestmark = pytest.mark.filterwarnings("ignore::specdec.core.errors.CheckpointWarning")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    target().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def test_show_says_what_a_folder_holds(specdec, tmp_path):
    out = specdec("show", dialects.safeailab().write(tmp_path))
    assert out.exit_code == 0, out.stdout
    for said in (
        "EAGLE-3 (SafeAILab",
        "low, middle and high layers, as the target has them",
        "draft vocabulary     64",
        "target's layers      as the target has it",
        "unusual: its weights are pickles",
        "unusual: its config says num_hidden_layers 40, its weights have 1",
        f"use: --drafter eagle3:{tmp_path}",
    ):
        assert said in out.stdout, out.stdout
    told = json.loads(specdec("show", tmp_path, "--json").stdout)
    assert told["format"] == "eagle3" and told["drafters"] == ["eagle3"]


def test_show_of_what_cannot_be_used_says_why(specdec, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["DFlashDraftModel"]}))
    dialects.save_file({"fc.weight": dialects.torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    out = specdec("show", tmp_path)
    assert out.exit_code == 0 and "DFlash, a block drafter" in out.stdout and "cannot be used" in out.stdout


def test_show_of_a_head_of_ours(specdec, tmp_path):
    read_published(dialects.specforge().write(tmp_path / "in")).head(facts_of(target())).save(tmp_path / "own")
    out = specdec("show", tmp_path / "own")
    assert "a head that specdec saved" in out.stdout and "layer:1, layer:3, layer:4" in out.stdout


def test_show_still_knows_strategies(specdec):
    assert "eagle3 (drafter)" in specdec("show", "eagle3").stdout
    assert specdec("show", "drafter/nothing").exit_code == 1 and specdec("show", "nothing").exit_code == 1


def test_export_writes_what_is_read_again(specdec, model, tmp_path):
    folder = dialects.specforge().write(tmp_path / "in")
    out = specdec("export", folder, tmp_path / "out", "--target", model, "--verifier", "org/base", "--tokens", 5)
    assert out.exit_code == 0, out.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    spec = config["speculators_config"]
    assert spec["verifier"] == {"name_or_path": "org/base", "architectures": ["LlamaForCausalLM"]}
    assert spec["proposal_methods"][0]["speculative_tokens"] == 5
    assert config["norm_before_residual"] is False and config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert read_published(tmp_path / "out").plan.boundaries == (2, 4, 5)
    out = specdec("export", folder, tmp_path / "raw", "--target", model, "--format", "vllm", "--layer-ids", "0,3,8")
    assert out.exit_code == 0 and read_published(tmp_path / "raw").plan.boundaries == (0, 3, 8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--format", "onnx"], "--format: expected speculators, vllm, found 'onnx'"),
        (["--layer-ids", "a"], "--layer-ids: expected numbers"),
        ([], "give --target"),
    ],
)
def test_export_refuses_what_does_not_fit(specdec, tmp_path, options, said):
    folder = dialects.safeailab().write(tmp_path / "in")
    out = specdec("export", folder, tmp_path / "out", *options)
    assert out.exit_code == 1 and said in out.stderr
    assert not (tmp_path / "out").exists()


def test_doctor_prints_every_reading(specdec, model, tmp_path):
    folder = dialects.specforge().write(tmp_path)
    out = specdec("doctor", model, folder, "--tokens", 6, "--texts", 2)
    assert "2 texts, 6 tokens each" in out.stdout, out.stderr
    for said in ("as written", "layer ids mean", "no norm before the LM head", "d2t holds target ids", "best: "):
        assert said in out.stdout
