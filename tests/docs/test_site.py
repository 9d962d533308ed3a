"""The site is whole: every page is in its navigation, every strategy, option and public name has its place, and what is
written from the code is current.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from specdec.plugins.builtin import specdec_strategies

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
STRATEGIES = specdec_strategies()
PUBLIC = [
    "specdec",
    *(f"specdec.{name}" for name in ("analysis", "bench", "drafters", "heads", "plugins", "report")),
    *(f"specdec.{name}" for name in ("schedulers", "testing", "trace", "verifiers")),
    *("specdec.core.errors", "specdec.heads.formats", "specdec.heads.training"),
]
# What needs no entry: a text, a number, a decorator and a table, which guides explain.
PLAIN = {
    "specdec.__version__",
    "specdec.plugins.PLUGIN_API",
    "specdec.plugins.hookimpl",
    "specdec.heads.formats.FORMATS",
}


def pages(part: object) -> Iterator[str]:
    """The files that a part of the navigation names."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for inner in part.values():
            yield from pages(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from pages(inner)


def test_every_page_is_in_the_navigation_once():
    named = list(pages(SITE["nav"]))
    assert sorted(named) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.key)
def test_every_strategy_has_a_page_with_all_its_options(strategy):
    page = f"strategies/{strategy.name}.md"
    assert page in set(pages(SITE["nav"]))
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text.startswith(f"# {strategy.name}\n")
    table = text.partition(f"<!-- options: {strategy.key} -->")[2].partition("<!-- end of options -->")[0]
    fields = set(strategy.load_config().model_fields) - {"type"}
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == fields
    assert f"]({strategy.name}.md)" in (DOCS / "strategies" / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_api(package):
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    names = {f"{package}.{name}" for name in importlib.import_module(package).__all__}
    assert names - shown - PLAIN == set()


def test_names_in_the_api_exist():
    for path in (DOCS / "api").glob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            module, _, attribute = name.rpartition(".")
            try:
                assert hasattr(importlib.import_module(module), attribute), name
            except ModuleNotFoundError:
                pytest.fail(f"{path.name}: there is no {name}")


@pytest.fixture
def written(monkeypatch):
    """The module that writes tables and figures."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("write_docs")


def test_tables_and_figures_are_current(written, capsys):
    assert written.main(["--check"]) == 0, capsys.readouterr().out


def test_every_figure_is_drawn_and_shown(written):
    drawn = {path.name for path in written.drawn()}
    assert drawn == {path.name for path in (DOCS / "figures").iterdir()}
    text = "\n".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    assert drawn == set(re.findall(r"\.\./figures/([\w.]+)\)", text))


def test_what_is_not_current_is_said(written, tmp_path, monkeypatch, capsys):
    figure, page = tmp_path / "a.svg", tmp_path / "a.md"
    figure.write_text('<line x1="1.0"/>')
    assert written.same(figure, '<line x1="1.1"/>') and not written.same(figure, '<line x1="9.0"/>')
    assert not written.same(figure, '<rect x1="1.0"/>')
    page.write_text("1.0")
    assert not written.same(page, "1.1") and not written.same(tmp_path / "b.md", "")
    monkeypatch.setattr(written, "ROOT", tmp_path)
    monkeypatch.setattr(written, "tables", lambda: {page: "2.0"})
    monkeypatch.setattr(written, "drawn", dict)
    assert written.main(["--check"]) == 1 and page.read_text() == "1.0"
    assert written.main([]) == 0 and page.read_text() == "2.0"
    assert capsys.readouterr().out.splitlines()[0] == "a.md is not current"


def test_the_sites_environment_is_the_extra(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = project["optional-dependencies"]["docs"]
    assert importlib.import_module("dev").extra("docs") == needs
    assert not [need for need in needs if need.startswith(("specdec", "torch"))]


DOCSTRING = """What it is, with `*code*` and p * q.

first: what the first
    one is. second, third: others.
fourth [rows]: the last,
in two lines.
Source: a paper.

A paragraph: of words, with a
name: that begins no sentence. It ends.
fifth: begins a list.
Raises ValueError.
"""

AS_MARKDOWN = r"""What it is, with `*code*` and p \* q.

- **first**: what the first one is.
- **second, third**: others.
- **fourth [rows]**: the last, in two lines.

Source: a paper.

A paragraph: of words, with a
name: that begins no sentence. It ends.

- **fifth**: begins a list.

Raises ValueError."""


def test_docstrings_become_lists(monkeypatch):
    # Only the site's own environment has griffe; what is made of a text needs none of it.
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object))
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    assert importlib.import_module("docs_strings").markdown(DOCSTRING) == AS_MARKDOWN
