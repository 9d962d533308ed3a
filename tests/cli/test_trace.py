"""`specdec trace`, on a tiny random Llama with a tokenizer of its own."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest

from tests.cli.test_generate import PROMPT, model_folder  # noqa: F401 - a fixture


def data(file):
    return json.loads(re.search(r'id="data-trace">(.*?)</script>', file.read_text(encoding="utf-8"))[1])


@pytest.mark.parametrize("options", [(), ("--temperature", "0.8", "--seed", "3"), ("--depth", "3")], ids=str)
def test_a_page_is_written(specdec, model_folder, tmp_path, options):  # noqa: F811
    out = tmp_path / "page.html"
    arguments = ("--model", model_folder, "--drafter", "token-recycling", "--prompt", PROMPT, "--max-new-tokens", 12)
    result = specdec("trace", *arguments, "--out", out, *options)
    assert result.exit_code == 0, result.stderr
    assert "tokens per pass" in result.stderr and str(out) in result.stderr
    found = data(out)
    assert found["facts"]["drafter"] == "token-recycling" and found["facts"]["model"] == str(model_folder)
    assert sum(len(one["rows"][0]["tokens"]) for one in found["rounds"]) == found["facts"]["new tokens"] <= 12
    if options[:1] == ("--depth",):
        assert found["facts"]["scheduler"] == "fixed"
        assert max(node["d"] for one in found["rounds"] for node in one["rows"][0]["nodes"]) <= 3


def test_a_config_with_particles(specdec, model_folder, tmp_path):  # noqa: F811
    config, out = tmp_path / "decoder.yaml", tmp_path / "page.html"
    config.write_text(
        f"target: {model_folder}\ndrafter: {{type: draft-model, model: {model_folder}}}\n"
        "verifier: {type: smc, particles: 3}\nallow: consistent\n"
    )
    result = specdec(
        "trace", "--config", config, "--prompt", PROMPT, "--out", out, "--max-new-tokens", 9, "--temperature", 1
    )
    assert result.exit_code == 0, result.stderr
    found = data(out)
    assert found["rows"] == 3 and all(len(one["weights"]) == 3 for one in found["rounds"])


@pytest.mark.parametrize("earlier", [None, "an earlier page"])
def test_a_full_disk_leaves_what_was_there(specdec, model_folder, tmp_path, monkeypatch, earlier):  # noqa: F811
    out = tmp_path / "page.html"
    if earlier is not None:
        out.write_text(earlier)
    written = Path.write_text

    def full(path, text, **options):
        written(path, text[:100], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = specdec("trace", "--model", model_folder, "--prompt", PROMPT, "--max-new-tokens", 4, "--out", out)
    assert result.exit_code == 1 and f"--out {out}: cannot be written: No space left" in result.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ([earlier] if earlier else [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--out": "no/such/folder/page.html"}, "there is no folder no/such/folder"),
        ({"--prompt": "  "}, "the prompt is empty"),
        ({"--drafter": "token-recyclin"}, "token-recycling"),
    ],
    ids=["folder", "prompt", "drafter"],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(specdec, tmp_path, change, message):
    options = {"--model": "no-such-model", "--drafter": "jacobi", "--prompt": "a", "--out": tmp_path / "page.html"}
    arguments = [part for pair in {**options, **change}.items() for part in pair]
    result = specdec("trace", *arguments)
    assert result.exit_code == 1 and message in result.stderr
