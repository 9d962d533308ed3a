"""Rules about the project: metadata, who imports whom, where tensors are read, where chance comes from."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import specdec

try:
    import tomllib
except ImportError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "specdec"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# Every exception to a rule below stands here with its reason. An entry that is no longer needed fails a test.

SIBLING_IMPORTS = {
    ("core/config.py", "specdec.plugins.manager"): "a config resolves names when it is validated; imported "
    "inside the function, and plugins import neither torch nor transformers",
    ("plugins/builtin.py", "specdec.targets.load"): "builds the target that a config names; imported inside "
    "the function, so that listing strategies stays free of torch",
    ("heads/cached.py", "specdec.targets.kv"): "a head is run with the slot cache",
    ("heads/cached.py", "specdec.targets.spec"): "a head is run with the slot cache",
    ("heads/cached.py", "specdec.targets.taps"): "a head is run with the slot cache",
    ("heads/decoder.py", "specdec.targets.compat"): "what a layer of this transformers calls its cache",
    ("heads/formats/doctor.py", "specdec.targets.taps"): "readings are measured on states captured as in decoding",
    ("heads/measure.py", "specdec.targets.compat"): "whether the target can leave out its LM head",
    ("heads/measure.py", "specdec.targets.taps"): "heads are measured on states captured as in decoding",
    ("heads/padded.py", "specdec.targets.compat"): "data is made with one cache of rows that come and go",
    ("heads/padded.py", "specdec.targets.masks"): "data is made with one cache of rows that come and go",
    ("heads/padded.py", "specdec.targets.spec"): "data is made with one cache of rows that come and go",
    ("heads/rows.py", "specdec.targets.spec"): "which models can be run packed",
    ("heads/training/features.py", "specdec.targets.compat"): "whether the target can leave out its LM head",
    ("heads/training/features.py", "specdec.targets.taps"): "heads are trained on states captured as in decoding",
    ("drafters/draft_model.py", "specdec.targets.load"): "a config may name the draft model's checkpoint",
    ("drafters/draft_model.py", "specdec.targets.tokenizers"): "compares the two models' vocabularies",
    ("drafters/self_skip.py", "specdec.targets.warpers"): "the sampling transform of drawn guesses",
    ("drafters/draft_model.py", "specdec.targets.warpers"): "the draft model's own sampling transform",
}

HOST_READS = {
    ("targets/request.py", "_prompts"): "the prompts, once a call and before its first round",
    ("targets/request.py", "_criteria"): "end tokens of the caller's criterion, once a call",
}

OWN_CHANCE = {
    ("drafters/draft_model.py", "example"): "weights of the tiny model of the conformance kit, not a draft",
    ("drafters/head_example.py", "fresh"): "weights of the tiny heads of the conformance kit, not a draft",
}


# --- metadata -------------------------------------------------------------------------------------------


def test_distribution() -> None:
    project = PROJECT["project"]
    assert project["name"] == "specdec-hf"
    assert project["requires-python"] == ">=3.10"
    assert project["license"] == "Apache-2.0"
    assert project["scripts"] == {"specdec": "specdec.cli.main:main"}
    declared = {re.match(r"[\w-]+", need).group() for need in project["dependencies"]}
    assert declared == {
        *("torch", "transformers", "pydantic", "pluggy", "safetensors", "huggingface_hub"),
        *("typer", "rich", "pyyaml", "packaging"),
    }
    assert {"smollm2", "test", "dev", "plots"} <= set(project["optional-dependencies"])


def test_readme_is_the_description_on_the_index() -> None:
    assert ("readme" in PROJECT["project"]) == (ROOT / "README.md").exists()


def test_version_is_written_once() -> None:
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/specdec/_version.py"
    assigned = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^__version__\s*=", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert assigned == ["_version.py"]


def test_installed_metadata_agrees() -> None:
    try:
        distribution = importlib.metadata.distribution("specdec-hf")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("specdec-hf is not installed, only on the path")
    assert distribution.version == specdec.__version__
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    (command,) = distribution.entry_points.select(group="console_scripts")
    assert (command.name, command.value) == ("specdec", "specdec.cli.main:main")


def test_files_that_ship() -> None:
    assert (PACKAGE / "py.typed").is_file()
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text[:120] and "Version 2.0, January 2004" in text[:200]
    assert "END OF TERMS AND CONDITIONS" in text


# --- what is written into files ------------------------------------------------------------------------


def _tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]  # a file may be deleted and not yet committed


# Written so that none of them matches itself.
MACHINE_PATHS = re.compile(r"/wor[k]/|/roo[t]/|/hom[e]/\w|/User[s]/\w|/tm[p]/w\b|[C]:\\\\?Users")
REGISTRY_HOSTS = re.compile(r"pypi\.or[g]|pythonhosted\.or[g]|npmjs\.or[g]|deb\.debia[n]|download\.pytorc[h]")


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, REGISTRY_HOSTS], ids=["machine paths", "registry hosts"])
def test_tracked_files_name_no(pattern: re.Pattern[str]) -> None:
    found = []
    for path in _tracked():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_no_pickles_are_tracked() -> None:
    assert not [path for path in _tracked() if path.suffix in {".pkl", ".pickle", ".pt", ".pth", ".bin"}]


# --- layers ---------------------------------------------------------------------------------------------


def _modules(*layers: str) -> Iterator[tuple[str, ast.Module]]:
    """Path below the package and syntax tree of every module of these subpackages."""
    for layer in layers:
        for path in sorted((PACKAGE / layer).rglob("*.py")):
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _imports(name: str, tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports, anywhere in it; `from a import b` counts as `a` and as `a.b`."""
    package = ("specdec", *Path(name).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            for alias in node.names:
                # A submodule may be imported by name: `from specdec.targets import compat`.
                path = PACKAGE.parent / Path(*module.split("."), alias.name)
                yield f"{module}.{alias.name}" if path.with_suffix(".py").exists() else module


def _within(module: str, *roots: str) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


ALLOWED_SIBLINGS = {
    "core": (),
    "drafters": (
        "specdec.core",
        "specdec.heads",
        "specdec.targets.branches",
        "specdec.targets.cached_lm",
        "specdec.targets.cached_session",
    ),
    "verifiers": ("specdec.core",),
    "schedulers": ("specdec.core",),
    "targets": ("specdec.core",),
    "heads": ("specdec.core", "specdec.targets.cached_lm"),
    "plugins": ("specdec.core.config", "specdec.core.errors"),
}


def _foreign(layer: str) -> set[tuple[str, str]]:
    """Imports of other parts of specdec that the layer rule does not allow."""
    own = (f"specdec.{layer}", "specdec._lazy", "specdec._version")
    return {
        (name, module)
        for name, tree in _modules(layer)
        for module in _imports(name, tree)
        if _within(module, "specdec") and not _within(module, *own, *ALLOWED_SIBLINGS[layer])
    }


@pytest.mark.parametrize("layer", sorted(ALLOWED_SIBLINGS))
def test_layer_imports_only_what_lies_below_it(layer: str) -> None:
    assert _foreign(layer) - SIBLING_IMPORTS.keys() == set()


def test_no_exception_for_imports_is_stale() -> None:
    used = set().union(*(_foreign(layer) for layer in ALLOWED_SIBLINGS))
    assert SIBLING_IMPORTS.keys() - used == set()


def test_core_needs_torch_and_pydantic_only() -> None:
    # yaml and packaging read configs and requirement strings; neither knows anything of models.
    allowed = {"specdec", "torch", "pydantic", "pydantic_core", "yaml", "packaging", *sys.stdlib_module_names}
    found = {(name, m) for name, tree in _modules("core") for m in _imports(name, tree)}
    assert {(name, module) for name, module in found if module.split(".")[0] not in allowed} == set()


def test_plugins_import_neither_torch_nor_transformers() -> None:
    found = {(name, m) for name, tree in _modules("plugins") for m in _imports(name, tree)}
    assert {pair for pair in found if _within(pair[1], "torch", "transformers")} == set()


def test_listing_strategies_and_reading_configs_import_no_torch() -> None:
    configs = [
        ".".join(("specdec", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in sorted(PACKAGE.rglob("*_config.py"))
    ]
    assert configs
    modules = ["specdec", "specdec.plugins", "specdec.plugins.manager", "specdec.cli.main", *configs]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "    loaded = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not loaded, f'importing {name} loads {loaded}'\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert run.returncode == 0, run.stderr


# --- where tensors are read, where chance comes from ----------------------------------------------------


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call, with the dotted name of the innermost function or class that it stands in."""

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[str, ast.Call]]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            scope = (*scope, node.name)
        if isinstance(node, ast.Call):
            yield ".".join(scope), node
        for child in ast.iter_child_nodes(node):
            yield from visit(child, scope)

    return visit(tree, ())


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text; what is no plain name at the left becomes an empty first part: `f().c` is `.c`."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


READS = {"item", "tolist", "cpu", "numpy"}


def _host_reads(name: str, tree: ast.Module) -> set[tuple[str, str]]:
    return {
        (name, scope)
        for scope, call in _calls(tree)
        if isinstance(call.func, ast.Attribute) and call.func.attr in READS
    }


def test_only_the_host_module_reads_tensors() -> None:
    # One device-to-host read a round; each further one stops a GPU's queue.
    found = set().union(
        *(
            _host_reads(name, tree)
            for name, tree in _modules("core", "verifiers", "drafters", "targets")
            if name != "core/host.py"
        )
    )
    assert found - HOST_READS.keys() == set()
    assert HOST_READS.keys() - found == set(), "exceptions that are no longer needed"


DRAWING = re.compile(
    r"(torch|np|numpy)\.(rand\w*|normal|bernoulli|multinomial|poisson|manual_seed|seed|Generator)$"
    r"|(^|\.)random\.\w+$"
    r"|\.(uniform_|normal_|exponential_|bernoulli_|geometric_|random_|cauchy_|log_normal_|multinomial)$"
)


def _draws(name: str, tree: ast.Module) -> set[tuple[str, str]]:
    return {(name, scope) for scope, call in _calls(tree) if DRAWING.search(_dotted(call.func))}


def test_parts_draw_only_through_the_rng_port() -> None:
    # A draw past core/rng.py could be neither enumerated by the tests nor keyed to a position.
    found = set().union(*(_draws(name, tree) for name, tree in _modules("drafters", "verifiers")))
    assert found - OWN_CHANCE.keys() == set()
    assert OWN_CHANCE.keys() - found == set(), "exceptions that are no longer needed"


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("def f(x):\n    return x.item()", _host_reads),
        ("class A:\n    def f(self, x):\n        return [y.sum().tolist() for y in x]", _host_reads),
        ("def f(x): return torch.rand(3)", _draws),
        ("def f(p): return torch.multinomial(p, 1)", _draws),
        ("def f(p): return p.exp().multinomial(1)", _draws),
        ("def f(x): return x.exponential_()", _draws),
        ("def f(): return random.random()", _draws),
        ("def f(): return np.random.default_rng()", _draws),
    ],
)
def test_the_rules_see(code: str, rule: object) -> None:
    assert rule("x.py", ast.parse(code))


def test_the_rules_let_pass() -> None:
    tree = ast.parse("def f(rng, x, items):\n    return rng.categorical(x, at=1), items.copy(), x.argmax()")
    assert not _host_reads("x.py", tree) and not _draws("x.py", tree)
    assert list(_imports("core/x.py", ast.parse("from . import draft\nfrom ..targets.kv import Pool"))) == [
        "specdec.core.draft",
        "specdec.targets.kv",
    ]
