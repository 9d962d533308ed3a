"""Every snippet of the documentation runs, against a tiny random Llama; every command and test that it names exists.

Python blocks of a file run in order, in one namespace. A Python block that begins with `# name.py` becomes that
module; a YAML block becomes `decoder.yaml`; the entry points of a TOML block are registered as plugins.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import typer.main

import specdec
import specdec.drafters.draft_model as draft_model
import specdec.targets.load as load
from specdec.cli.main import build_app
from specdec.core.config import load_config
from specdec.core.errors import PluginLoadWarning
from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.shards import Dialogue, ShardWriter
from specdec.plugins.manager import PluginManager, use
from specdec.testing.checks import CHECKS
from tests.frontdoor.models import LETTERS, llama, tokenizer

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
SUFFIX = ROOT / "examples" / "specdec-suffix"
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), SUFFIX / "README.md"]
RUN = {"python", "py", "yaml", "toml"}
SHELL = {"", "sh", "bash", "shell", "console"}
COMMAND = re.compile(r"(\$ )?([A-Z_]+=\S* )*(specdec|make|python) ")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text and the line of the file on which the text begins."""

    language: str
    text: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a Markdown file."""
    for found in re.finditer(r"^```([\w-]*)[^\n]*\n(.*?)^```\s*$", text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[2], text.count("\n", 0, found.start(2)) + 1)


def of(languages: set[str]) -> list:
    """Each file with its blocks of these languages, as parameters."""
    files = [(path, [b for b in blocks(path.read_text(encoding="utf-8")) if b.language in languages]) for path in FILES]
    return [pytest.param(path, found, id=path.relative_to(ROOT).as_posix()) for path, found in files if found]


def words() -> object:
    """The tokenizer of single characters, without what Llama's forward does not take."""
    made = tokenizer.__wrapped__()  # its own: the cached one belongs to other tests
    made.model_input_names = ["input_ids", "attention_mask"]
    return made


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A folder with data to run in, in which every model loaded is a tiny one; the names that snippets may use."""
    model = llama(0, vocab=len(LETTERS), pad_token_id=None)

    def load_model(x, dtype=None, **options):
        assert isinstance(x, str) and x
        return model, words()

    for module in (specdec, load, draft_model):
        monkeypatch.setattr(module, "load_model", load_model, raising=False)
    monkeypatch.chdir(tmp_path)
    about = {"model": "tiny", "tokenizer": tokenizer_fingerprint(words()), "vocab_size": len(LETTERS), "settings": {}}
    ShardWriter(Path("data"), about).write([Dialogue(0, "maths/1", (1, 2, 3, 4), ((2, 4),), greedy=True)], {})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(SUFFIX / "src"))
    before = set(sys.modules)
    inputs = words()("the river runs through the valley and the river runs on", return_tensors="pt")
    with use(PluginManager()), warnings.catch_warnings():
        warnings.simplefilter("error", PluginLoadWarning)
        yield {
            "__name__": "snippet",
            "model": model,
            "inputs": dict(inputs),
            "large": model,
            "small": llama(1, layers=1, vocab=len(LETTERS)),
        }
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith((str(tmp_path), str(SUFFIX))):
            del sys.modules[name]


@pytest.mark.parametrize(("path", "found"), of(RUN))
def test_snippets_run(path, found, scene):
    torch.manual_seed(0)
    for block in found:
        if block.language == "yaml":
            Path("decoder.yaml").write_text(block.text, encoding="utf-8")
            load_config("decoder.yaml")
        elif block.language == "toml":
            register(tomllib.loads(block.text))
        elif name := re.match(r"# (\w+\.py)\n", block.text):
            Path(name[1]).write_text(block.text, encoding="utf-8")
            run(f"import {name[1].removesuffix('.py')}", path, block.line, {})
        else:
            run(block.text, path, block.line, scene)


def run(text: str, path: Path, line: int, names: dict[str, object]) -> None:
    """Run the text so that a traceback shows the line of the file it stands in."""
    tree = ast.increment_lineno(ast.parse(text), line - 1)
    exec(compile(tree, str(path), "exec"), names)


def register(project: dict) -> None:
    """Register the plugins of a pyproject.toml, as an installation of it would."""
    from specdec.plugins.manager import discover

    for name, module in project["project"]["entry-points"]["specdec"].items():
        about = project["project"]
        record = discover().register(module, name=name, dist=about["name"], version=about["version"])
        assert record.state == "loaded", record.error


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command line of a shell block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if not COMMAND.match(line):
            continue
        found = shlex.split(line.removeprefix("$ "), comments=True)
        while found and re.fullmatch(r"[A-Z_]+=.*", found[0]):
            found = found[1:]
        if found:
            yield found


@pytest.mark.parametrize(("path", "found"), of(SHELL))
def test_commands_exist(path, found):
    with use(PluginManager()) as manager:
        group = typer.main.get_command(build_app(manager))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for block in found:
        for line in commands(block):
            if line[0] == "specdec":
                check_command(group, line[1:])
            elif line[0] == "make":
                assert re.search(rf"^\.PHONY:.*\b{line[1]}\b", makefile, re.MULTILINE), line
            elif line[0] == "python" and line[1].endswith(".py"):
                assert (ROOT / line[1]).is_file(), line


def check_command(group: object, given: list[str]) -> None:
    """The sub-command and each of its options are known to the command line."""
    name, *rest = given
    assert name in group.commands, f"specdec has no command {name!r}; it has {sorted(group.commands)}"
    options = {option for param in group.commands[name].params for option in (*param.opts, *param.secondary_opts)}
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"specdec {name} has no option {word}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_the_text_exist(path):
    with use(PluginManager()) as manager:
        group = typer.main.get_command(build_app(manager))
    prose = re.sub(r"^```.*?^```\s*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for command in re.findall(r"`specdec ([^`\n]+)`", prose):
        check_command(group, shlex.split(command))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_tests_that_are_named_exist(path):
    text = path.read_text(encoding="utf-8")
    for file, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"
    for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        assert (path.parent / link).exists(), link


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_checks_that_are_named_exist(path):
    named = set(re.findall(r"`((?:drafter|verifier|scheduler|target)/[a-z-]+)`", path.read_text(encoding="utf-8")))
    known = {f"{role}/{name}" for role, checks in CHECKS.items() for name in checks}
    assert named <= known
    if path.name == "footguns.md":
        assert named == known, "the table of checks is not whole"


def test_what_every_plugin_needs_takes_under_thirty_lines():
    """Hook, config and class of the guide's example, without docstrings and without the guessing itself."""
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    modules = [block.text for block in blocks(text) if re.match(r"# again_\w+\.py\n", block.text)]
    assert len(modules) == 2
    guessing = re.compile(r"(    def propose\(.*\n)(?:        .*\n|\n(?=        ))+")
    lines = [line.strip() for module in modules for line in guessing.sub(r"\1", module).splitlines()]
    code = [line for line in lines if line and not line.startswith(("#", '"""'))]
    assert "def propose(self, row, budget, rng, context):" in code and 20 < len(code) < 30, len(code)


def test_the_snippets_of_a_file_are_found():
    text = "a\n```python\nx = 1\n```\n\n```\nspecdec plugins  # all\n$ specdec show \\\n  x --json\n```\n"
    first, second = blocks(text)
    assert (first.language, first.text, first.line) == ("python", "x = 1\n", 3)
    assert list(commands(second)) == [["specdec", "plugins"], ["specdec", "show", "x", "--json"]]


def test_a_snippet_that_fails_shows_its_line(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught:
        run("x = 1\ny = x / 0\n", tmp_path / "page.md", 40, {})
    assert caught.traceback[-1].lineno + 1 == 41


def test_a_command_that_does_not_exist_is_found():
    group = typer.main.get_command(build_app(PluginManager()))
    check_command(group, ["show", "walk", "--json"])
    for wrong in (["shwo"], ["show", "walk", "--jsno"]):
        with pytest.raises(AssertionError):
            check_command(group, wrong)
