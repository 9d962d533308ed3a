"""`make demo` on a tiny model: what it streams, whose tokens it says they are, and what it compares."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from rich.console import Console

from specdec import Decoder
from specdec.drafters import Merge, PromptLookup, TokenRecycling
from specdec.schedulers import Fixed
from tests.docs import scripts
from tests.heads import chatty


@pytest.fixture
def demo(monkeypatch):
    return scripts.load("demo", monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return chatty.save(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("options", "drafter"),
    [
        ([], "prompt-lookup"),
        (["--drafter", "merge:prompt-lookup,token-recycling"], "merge of prompt-lookup, token-recycling"),
    ],
)
def test_the_whole_demo(demo, folder, options, drafter, monkeypatch, capsys):
    arguments = ["--model", str(folder), "--dtype", "float32", "--max-new-tokens", "24", "--repeats", "1", *options]
    monkeypatch.setattr(sys, "argv", ["demo.py", *arguments])
    monkeypatch.setattr(demo, "TASKS", {"edit": ["ab ab ab ab ab"]})
    assert demo.main() == 0
    out = capsys.readouterr().out
    assert f"drafter: {drafter}" in out and "the same 24" in out
    assert re.search(r"ratio +\d+\.\d\d \(medians of 1 interleaved runs\)", out)


def test_each_token_is_marked_by_who_drafted_it(demo):
    decoder = Decoder(
        chatty.target(), Merge(PromptLookup(), TokenRecycling()), scheduler=Fixed(depth=4, nodes=12)
    )  # fmt: skip
    words = chatty.tokenizer()
    inputs = {"input_ids": words("abcabcabcabc", return_tensors="pt").input_ids}
    settings = {"max_new_tokens": 60, "do_sample": False}
    pieces = list(demo.stream(words, decoder, inputs, settings))
    plain = chatty.target().generate(**inputs, **settings)[0, 12:]
    assert "".join(piece for piece, _, _ in pieces) == words.decode(plain, skip_special_tokens=True)
    assert sum(count for _, _, count in pieces) == len(plain)
    whose = {source for _, source, _ in pieces}
    assert "" in whose and whose - {""} and whose <= {"", "prompt-lookup", "token-recycling", demo.SEVERAL}
    # What one drafter alone accepts has its own name.
    alone = Decoder(chatty.target(), TokenRecycling(), scheduler=Fixed(depth=4, nodes=12))
    assert {source for _, source, _ in demo.stream(words, alone, inputs, settings)} == {"", "token-recycling"}


def test_marks(demo):
    pair = Decoder(chatty.target(), Merge(PromptLookup(), TokenRecycling()))
    plain, coloured = Console(color_system=None), Console(color_system="standard", force_terminal=True)
    marks = demo.Marks(pair, plain)
    assert marks.names == ["prompt-lookup", "token-recycling", demo.SEVERAL]
    shown = [marks.marked("x", name).plain for name in (*marks.names, "")]
    assert shown == ["«x»", "‹x›", "{x}", "x"] and marks.marked("", "prompt-lookup").plain == ""
    assert all(part in marks.legend().plain for part in ("«prompt-lookup»", "‹token-recycling›"))
    styles = [demo.Marks(pair, coloured).marked("x", name).style for name in marks.names]
    assert len(set(styles)) == 3 and demo.Marks(pair, coloured).marked("x", "").style == ""
    assert demo.Marks(Decoder(chatty.target(), PromptLookup()), plain).names == ["prompt-lookup"]


def test_the_default_takes_the_head_where_there_is_one(demo, monkeypatch, tmp_path):
    assert demo.usual("some/other") == "prompt-lookup"
    monkeypatch.setattr(demo, "HEAD", tmp_path)
    assert demo.usual(demo.MODEL) == "prompt-lookup"
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert demo.usual(demo.MODEL) == f"merge:prompt-lookup,eagle2:{tmp_path}"


def test_a_drafter_that_there_is_not_is_said(demo, folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo.py", "--model", str(folder), "--drafter", "promt-lookup"])
    with pytest.raises(SystemExit):
        demo.main()
    assert "Did you mean 'prompt-lookup'?" in capsys.readouterr().err


def test_a_text_that_differs_by_more_than_rounding_is_a_fault(demo):
    console = Console(color_system=None)
    prompt = torch.tensor([chatty.tokenizer()("abc").input_ids])
    plain = chatty.target().generate(prompt, max_new_tokens=4, do_sample=False)[0, 3:].tolist()
    wrong = [plain[0], (plain[1] + 1) % 200, *plain[2:]]
    with console.capture() as caught:
        within = demo.report_difference(chatty.target(), chatty.tokenizer(), prompt, wrong, plain, console)
    assert not within and "this is a fault" in caught.get() and "first difference at new token 2" in caught.get()
