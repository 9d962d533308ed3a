"""Check that plugins from other distributions work, and that broken ones break nothing else.

    python scripts/plugins_check.py PYTHON

PYTHON is that of a clean environment in which a wheel of specdec is installed. Into it go the example plugin
`specdec-suffix` and two faulty plugins. Then `specdec plugins` has to list all three, the faulty ones with their
errors, without importing torch; `specdec show suffix` has to work; and the tests of the example have to pass.
Prints one line a check and exits with 0, or with the first failure.

Environment variables:
    PIP_ARGS  further arguments for the pip call
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PLUGINS = (
    f"{EXAMPLES / 'specdec-suffix'}[test]",
    str(EXAMPLES / "faulty-plugins" / "import-error"),
    str(EXAMPLES / "faulty-plugins" / "wrong-api"),
)
RUNS = 5
# Generous: a machine under load may take several times as long as an idle one. What is imported is checked apart.
MOST_SECONDS = 3.0


def main(argv: list[str]) -> int:
    """Install the plugins into the environment of `argv[0]` and run every check."""
    if len(argv) != 1:
        sys.exit(__doc__)
    python = Path(argv[0]).absolute()
    specdec = python.with_name("specdec.exe" if os.name == "nt" else "specdec")
    further = shlex.split(os.environ.get("PIP_ARGS", ""))
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *further, *PLUGINS)
    check_listing(python, specdec)
    shown = run(specdec, "show", "suffix", "--json")
    facts = json.loads(shown.stdout)
    assert facts["role"] == "drafter" and "specdec-suffix" in facts["owner"], facts
    assert {"min_match", "store"} <= {option["name"] for option in facts["options"]}, facts
    print(f"specdec show suffix: {facts['summary']}")
    with tempfile.TemporaryDirectory() as folder:
        # Elsewhere, so that what is tested is what was installed.
        tests = shutil.copytree(EXAMPLES / "specdec-suffix" / "tests", Path(folder, "tests"))
        done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=folder)
    print(f"tests of specdec-suffix: {done.stdout.strip().splitlines()[-1]}")
    return 0


def check_listing(python: Path, specdec: Path) -> None:
    """`specdec plugins`: what is loaded, what failed and why, how long it takes, and what it imports."""
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        listed = run(specdec, "plugins")
        seconds.append(time.perf_counter() - start)
    plugins = {plugin["name"]: plugin for plugin in json.loads(listed.stdout)}
    suffix = plugins["suffix"]
    assert suffix["state"] == "loaded" and suffix["dist"] == "specdec-suffix", suffix
    assert suffix["strategies"] == ["drafter/suffix"], suffix
    for name, error in (("faulty-import", "a_module_that_is_not_installed"), ("faulty-api", "plugin API 999")):
        assert plugins[name]["state"] == "failed" and error in plugins[name]["error"], plugins[name]
        assert name in listed.stderr, f"no warning names {name}: {listed.stderr}"
        print(f"{name} is left out: {plugins[name]['error']}")
    assert plugins["builtin"]["state"] == "loaded", plugins["builtin"]
    middle = statistics.median(seconds)
    assert middle < MOST_SECONDS, f"specdec plugins took {middle:.2f} s"
    print(f"specdec plugins with two broken plugins: median {middle:.2f} s of {RUNS} runs")
    imports = run(python, "-X", "importtime", specdec, "plugins").stderr if os.name != "nt" else ""
    loaded = {line.rsplit("|", 1)[-1].strip() for line in imports.splitlines() if line.startswith("import time:")}
    assert os.name == "nt" or "specdec.plugins.manager" in loaded, imports[:500]
    assert not loaded & {"torch", "transformers"}, f"specdec plugins imports {loaded & {'torch', 'transformers'}}"
    print("specdec plugins imports neither torch nor transformers")


def run(*command: object, cwd: object = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output, or an exit that shows it."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=environ)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
