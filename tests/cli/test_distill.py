"""`specdec distill`, on a tiny random Llama with a tokenizer of bytes."""

from __future__ import annotations

import json
import signal

import pytest

from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.shards import ShardReader
from tests.heads import chatty


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return chatty.save(tmp_path_factory.mktemp("chatty"))


@pytest.fixture
def asked(tmp_path):
    path = tmp_path / "asked.txt"
    path.write_text("\n".join(f"question {i}" for i in range(12)))
    return path


def test_prompts_of_a_file(specdec, model_folder, asked, tmp_path):
    out = tmp_path / "data"
    command = ["distill", model_folder, "--out", out, "--prompts", asked, "--max-new-tokens", 16, "--slots", 5]
    done = specdec(*command, "--tokens", 40, "--greedy-share", 0.25)
    assert done.exit_code == 0, done.stderr
    assert "answer tokens" in done.stdout
    reader = ShardReader(out, tokenizer=tokenizer_fingerprint(chatty.tokenizer()), vocab_size=len(chatty.tokenizer()))
    first = {d.number: d for d in reader}
    assert reader.answer_tokens >= 40 and len(first) < 12
    again = specdec(*command, "--tokens", 1000, "--greedy-share", 0.25)
    assert again.exit_code == 1 and "--resume" in again.stderr
    other = specdec(*command, "--tokens", 1000, "--resume")
    assert other.exit_code == 1 and "greedy_share" in other.stderr
    more = specdec(*command, "--tokens", 1000, "--greedy-share", 0.25, "--resume")
    assert more.exit_code == 0, more.stderr
    every = chatty.made(out)
    assert set(every) == set(range(12)) and {n: every[n] for n in first} == first
    assert sum(d.greedy for d in every.values()) == 3
    index = json.loads((out / "index.json").read_text())
    assert index["settings"]["prompts"].split()[0] == "asked.txt" and index["settings"]["dtype"] == "float32"


def test_templates_and_being_told_to_stop(specdec, model_folder, tmp_path, monkeypatch):
    from specdec.heads.distill import Distiller

    handler = signal.getsignal(signal.SIGTERM)
    step, passes = Distiller._step, []

    def stopping(self):
        passes.append(self)
        if len(passes) == 40:
            signal.raise_signal(signal.SIGTERM)
        step(self)

    monkeypatch.setattr(Distiller, "_step", stopping)
    options = ["--slots", 20, "--max-new-tokens", 16, "--tokens", 5000, "--max-length", 2000]
    done = specdec("distill", model_folder, "--out", tmp_path / "data", *options)
    assert done.exit_code == 0, done.stderr
    assert "stopped" in done.stderr and "--resume" in done.stderr
    assert {d.source.split("/")[0] for d in ShardReader(tmp_path / "data")} == {"write"}  # the first wave's beginning
    assert len(passes) == 40 and signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--prompts", "p.txt", "--self"], "leave out --self"),
        (["--prompts", "p.txt", "--held-out"], "leave out --self"),
        (["--self", "--held-out"], "leave out --held-out"),
        (["--prompts", "none.txt"], "cannot be read"),
        (["--passages", "none.txt"], "cannot be read"),
    ],
)
def test_options_that_do_not_fit(specdec, model_folder, tmp_path, options, fault):
    done = specdec("distill", model_folder, "--out", tmp_path / "data", *options)
    assert done.exit_code == 1 and fault in done.stderr
    assert not (tmp_path / "data").exists()
