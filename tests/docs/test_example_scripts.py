"""The short scripts of `examples/` run, on a tiny model."""

from __future__ import annotations

import re
import webbrowser

import pytest

from tests.docs import scripts
from tests.docs.scripts import EXAMPLES
from tests.heads import chatty


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return chatty.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def main_of(monkeypatch):
    """The `main` of a script, which is imported under a name of its own, as a plugin's module is."""

    return lambda script: scripts.load(script, monkeypatch).main


@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("compose_by_hand", "exact-greedy (algorithmic)"),
        ("certify_a_pair", "level of claim: identical"),
        ("from_config", "exact-greedy (algorithmic)"),
    ],
)
def test_a_script_runs(folder, main_of, script, last, capsys):
    main_of(script)(str(folder), tokens=8)
    assert last in capsys.readouterr().out.splitlines()[-1]


def test_a_config_is_written_out_whole(folder, main_of, capsys):
    main_of("from_config")(str(folder), tokens=4)
    out = capsys.readouterr().out
    assert f"model: {folder}" in out and "dtype: float32" in out and "max_ngram: 3" in out
    assert "refused: drafter.max_ngrams: extra option. Did you mean 'max_ngram'?" in out


def test_a_plugin_is_checked_and_used(folder, main_of, capsys):
    main_of("write_a_plugin")(str(folder), tokens=24, examples=3)
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("failed")]
    assert sum(line.startswith("passed") for line in lines) > 10
    found = re.fullmatch(r"(.*) tokens a pass; the text of plain generate: True", lines[-1])
    assert found and float(found[1]) >= 1.0


def test_a_page_is_written_and_opened_on_request(folder, main_of, tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda place: opened.append(place) or False)
    main, out = main_of("watch_a_trace"), tmp_path / "trace.html"
    main(str(folder), str(out), tokens=8)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>") and not opened
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"rounds in {out.as_uri()}")
    main(str(folder), str(out), show=True, tokens=8)
    assert opened == [out.as_uri()] and "open the file yourself" in capsys.readouterr().out


def test_a_head_is_trained_and_a_second_call_uses_it(main_of, tmp_path, capsys):
    main = main_of("train_a_head")
    main(out=str(tmp_path), tiny=True)
    first = capsys.readouterr().out.splitlines()
    assert (tmp_path / "eagle" / "model.safetensors").is_file() and any("held out" in line for line in first)
    assert first[-1].endswith("tokens a pass; exact-greedy (algorithmic)")
    main(out=str(tmp_path), tiny=True)
    again = capsys.readouterr().out.splitlines()
    assert again[-1] == first[-1] and any("holds a finished head" in line for line in again)


def test_every_example_is_listed():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.glob("*.py")} | {
        f"{path.name}/" for path in EXAMPLES.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
    }
    assert names == set(re.findall(r"^\| `(.+?)` \|", listed, re.MULTILINE))
    assert all(len(line) <= 200 for line in listed.splitlines())
