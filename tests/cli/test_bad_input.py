"""Damaged, foreign and hostile files, given to the commands: one message that names them, and nothing left behind."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.heads.eagle3 import Eagle3Head
from tests.frontdoor.models import LETTERS, tokenizer
from tests.heads import chatty
from tests.heads.formats import dialects
from tests.heads.formats.target import VOCAB, target

pytestmark = pytest.mark.filterwarnings("ignore::specdec.core.errors.CheckpointWarning")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A target for heads, a head, a target for data, and data of it."""
    root = tmp_path_factory.mktemp("bad")
    target().save_pretrained(root / "target")
    tokenizer(extra=VOCAB - len(LETTERS)).save_pretrained(root / "target")
    Eagle3Head.for_target(target(), draft_ids=range(10, 50)).save(root / "head")
    chatty.save(root / "chatty")
    (root / "asked.txt").write_text("\n".join(f"question {number}" for number in range(9)))
    from specdec.heads.prompts import FilePrompts

    chatty.distiller(root / "data", FilePrompts(root / "asked.txt", 0, 1.0, (12,)), 9).run()
    return root


def weights(folder, change):
    """The folder with its tensors changed."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def cut(path):
    path.write_bytes(path.read_bytes()[:900])


def outside(folder):
    (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
    table = dict.fromkeys(load_file(folder.parent / "x.safetensors"), "../x.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


class Code:
    def __reduce__(self):
        return print, ("this was run",)


def pickled(folder):
    shutil.rmtree(folder)
    given = dialects.safeailab()
    given.write(folder)
    torch.save({**given.tensors, "evil": Code()}, folder / given.file)


def quantised(tensors):
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.float8_e4m3fn)


HEADS = {
    "cut": (lambda folder: cut(folder / "model.safetensors"), "is not a whole safetensors file"),
    "a pickle with code": (pickled, "reading it could run code: it is not read"),
    "outside": (outside, "'../x.safetensors', which is not a file of its folder"),
    "a map": (lambda folder: weights(folder, lambda t: t["draft_ids"].add_(VOCAB)), "draft id 305 is outside"),
    "quantised": (lambda folder: weights(folder, quantised), "it is quantised"),
    "no layers": (lambda folder: weights(folder, lambda t: t.pop("fc.weight")), "fc.weight is missing"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_is_no_head(specdec, root, tmp_path, capsys, name):
    harm, said = HEADS[name]
    folder, out = shutil.copytree(root / "head", tmp_path / "head"), tmp_path / "out"
    harm(folder)
    prompt = ("--prompt", "abcabc", "--no-chat", "--max-new-tokens", 4)
    for command in (
        ("generate", "--model", root / "target", "--drafter", f"eagle3:{folder}", *prompt),
        ("export", folder, out, "--target", root / "target", "--verifier", "org/base"),
    ):
        result = specdec(*command)
        assert result.exit_code == 1 and not result.stdout, result.stdout
        assert said in result.stderr and "error: " in result.stderr and "this was run" not in result.stderr
    assert not out.exists() and "this was run" not in capsys.readouterr().out


def entry(folder, **changes):
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0] |= changes
    (folder / "index.json").write_text(json.dumps(index))


DATA = {
    "cut": (lambda folder: cut(next(folder.glob("shard-*"))), "the shard is broken: it has 900 bytes, expected"),
    "deleted": (lambda folder: next(folder.glob("shard-*")).unlink(), "the shard is missing"),
    "outside": (lambda folder: entry(folder, file="../shard-00000.safetensors"), "expected a file of its folder"),
    "no index": (lambda folder: (folder / "index.json").write_text("{"), "the index is broken"),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_is_broken(specdec, root, tmp_path, name):
    harm, said = DATA[name]
    folder, out = shutil.copytree(root / "data", tmp_path / "data"), tmp_path / "out"
    harm(folder)
    result = specdec("train", "medusa", "--target", root / "chatty", "--data", folder, "--out", out, "--steps", 1)
    assert result.exit_code == 1 and "error: " in result.stderr and said in result.stderr
    assert str(folder) in result.stderr and not out.exists()


def test_data_of_another_tokenizer(specdec, root, tmp_path):
    command = ("train", "medusa", "--target", root / "target", "--data", root / "data", "--steps", 1)
    result = specdec(*command, "--out", tmp_path / "out")
    assert result.exit_code == 1 and "the data has tokenizer" in result.stderr and "expected" in result.stderr
    assert "make data with `specdec distill` for this model" in result.stderr and not (tmp_path / "out").exists()


def test_a_file_where_a_folder_should_be(specdec, root, tmp_path):
    (tmp_path / "out").write_text("mine")
    prompts = ("--prompts", root / "asked.txt", "--tokens", 9)
    for command in (
        ("distill", root / "chatty", "--out", tmp_path / "out", *prompts),
        ("train", "medusa", "--target", root / "chatty", "--data", root / "data", "--out", tmp_path / "out"),
        ("export", root / "head", tmp_path / "out", "--target", root / "target", "--verifier", "org/base"),
    ):
        result = specdec(*command)
        assert result.exit_code == 1 and f"{tmp_path / 'out'}" in result.stderr, result.stderr
        assert "error: " in result.stderr and (tmp_path / "out").read_text() == "mine"
