"""A command line to run in the test's process."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from specdec.cli.main import build_app


@pytest.fixture
def specdec(monkeypatch):
    """Runs `specdec` with these arguments; the result has exit_code, stdout and stderr."""
    # Wide, so that help and tables are not wrapped in the middle of what a test looks for.
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments, manager=None, text=None):
        try:
            runner = CliRunner(mix_stderr=False)
        except TypeError:  # newer versions always keep the two apart
            runner = CliRunner()
        return runner.invoke(build_app(manager), [str(argument) for argument in arguments], input=text)

    return run
