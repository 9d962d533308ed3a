"""The short scripts of `examples/` run, on a tiny model."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.heads import chatty

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tiny")
    chatty.target().save_pretrained(made)
    chatty.tokenizer().save_pretrained(made)
    return made


@pytest.mark.parametrize(
    ("script", "last"),
    [("compose_by_hand", "exact-greedy (algorithmic)"), ("certify_a_pair", "level of claim: identical")],
)
def test_a_script_runs(folder, script, last, capsys):
    main = runpy.run_path(str(EXAMPLES / f"{script}.py"))["main"]
    main(str(folder), tokens=8)
    assert last in capsys.readouterr().out.splitlines()[-1]
