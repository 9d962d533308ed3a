"""What is imported when: the listing half of the library starts without torch."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import specdec
from specdec import drafters, schedulers, verifiers

SOURCE = Path(specdec.__file__).parent
CONFIGS = sorted(
    ".".join(["specdec", *path.relative_to(SOURCE).with_suffix("").parts]) for path in SOURCE.rglob("*_config.py")
)
LIGHT = {
    "the package": ["specdec"],
    "plugins": [
        "specdec.plugins",
        "specdec.plugins.builtin",
        "specdec.plugins.manager",
        "specdec.plugins.schema",
    ],
    "configs": ["specdec.core.config", *CONFIGS],
    "part packages": ["specdec.drafters", "specdec.verifiers", "specdec.schedulers"],
    "the command line": ["specdec.cli.main"],
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"


@pytest.mark.parametrize("case", LIGHT)
def test_light_modules_import_neither_torch_nor_transformers(case):
    assert run(f"import sys, {', '.join(LIGHT[case])}\n{HEAVY}") == "[]"


def test_a_whole_config_is_read_without_torch():
    code = (
        "import sys\nfrom specdec.core.config import load_config\n"
        "from specdec.plugins.manager import discover\n"
        "load_config({'drafter': 'prompt-lookup', 'verifier': 'walk', 'target': 'm', 'scheduler': 'fixed'})\n"
        "[strategy.load_config() for strategy in discover().registry]\n"
    )
    assert run(code + HEAVY) == "[]"


def test_there_are_configs_to_look_at():
    assert "specdec.drafters.prompt_lookup_config" in CONFIGS and len(CONFIGS) >= 9


@pytest.mark.parametrize("package", [specdec, drafters, verifiers, schedulers], ids=lambda package: package.__name__)
def test_lazy_exports(package):
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("package", [specdec, drafters, verifiers, schedulers], ids=lambda package: package.__name__)
def test_lazy_exports_agree_with_what_type_checkers_see(package):
    tree = ast.parse(Path(package.__file__).read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: node.module for node in branch.body for alias in node.names}
    table = ast.literal_eval(
        next(node.args[1] for node in ast.walk(tree) if isinstance(node, ast.Call) and "lazy" in ast.unparse(node.func))
    )
    assert seen == table and set(seen) == set(package.__all__) - {"__version__"}


@pytest.mark.parametrize("package", [specdec, drafters, verifiers, schedulers], ids=lambda package: package.__name__)
def test_every_lazy_export_exists(package):
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_a_second_distribution_of_the_same_import_name_is_warned_of(monkeypatch):
    def installed(name):
        assert name == "specdec"
        return "9.9"

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.warns(UserWarning, match=r"distribution 'specdec' 9.9 is installed beside 'specdec-hf'.*uninstall"):
        specdec._warn_of_namesake()


def test_the_warning_comes_on_import_and_only_then(tmp_path):
    code = (
        "import sys, warnings\nsys.path.insert(0, {folder!r})\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n    import specdec\n"
        "print([str(w.message)[:28] for w in caught])"
    )
    assert run(code.format(folder=str(tmp_path))) == "[]"
    info = tmp_path / "specdec-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec\nVersion: 0.0.1\n")
    assert "the distribution 'specdec' 0" in run(code.format(folder=str(tmp_path)))


def test_our_own_distribution_is_not_warned_of(tmp_path, monkeypatch):
    info = tmp_path / "specdec_hf-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec-hf\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        specdec._warn_of_namesake()


def test_no_package_exports_a_name_that_one_of_its_modules_has() -> None:
    """Importing a submodule sets its name on the package, so which of the two a user got would depend on the order."""
    found = []
    for init in SOURCE.rglob("__init__.py"):
        exported = {
            key.value
            for node in ast.walk(ast.parse(init.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_exports"
            for key in getattr(node.args[1], "keys", [])
            if isinstance(key, ast.Constant)
        }
        modules = {path.stem for path in init.parent.iterdir() if path.suffix == ".py" or path.is_dir()}
        found += [f"{init.parent.name}.{name}" for name in sorted(exported & modules)]
    assert not found
