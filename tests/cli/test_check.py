"""`specdec check`: the kit's report as text and JSON, and status 1 for anything that failed."""

from __future__ import annotations

import json
import types

import pytest

from specdec.plugins import PLUGIN_API, Strategy, hookimpl
from specdec.plugins.manager import PluginManager, use


@pytest.fixture
def plugin(request):
    """Strategies of a drafter whose example is named by each test."""

    def make(example):
        module = types.ModuleType("made")

        @hookimpl
        def specdec_strategies():
            return [
                Strategy(
                    role="drafter", name="made", api=PLUGIN_API, example=example,
                    config="specdec.drafters.none_config:NoDraftConfig", build="tests.kit.mutants:Point",
                )
            ]  # fmt: skip

        module.specdec_strategies = specdec_strategies
        return PluginManager.from_modules([module])

    return make


def test_a_shipped_part_passes_as_text(specdec):
    result = specdec("check", "prompt-lookup", "--max-examples", "3")
    assert result.exit_code == 0, result.stdout
    assert result.stdout.startswith(f"drafter 'prompt-lookup', plugin API {PLUGIN_API}")
    assert "passed           output-law" in result.stdout and result.stdout.rstrip().endswith("ok")


def test_a_shipped_part_passes_as_json(specdec):
    result = specdec("check", "scheduler/fixed", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0 and report["ok"] is True
    assert report["part"] == "scheduler 'fixed'" and report["counts"]["failed"] == 0
    light = next(one for one in report["results"] if one["name"] == "light-hook-module")
    assert light["status"] == "passed" and light["reason"] == "specdec.schedulers.fixed_config, specdec.plugins.builtin"


def test_a_faulty_part_fails_with_status_one(specdec, plugin):
    manager = plugin("tests.kit.mutants:IdOutOfRange")
    with use(manager):
        result = specdec("check", "made", "--max-examples", "2", manager=manager)
    assert result.exit_code == 1
    assert "failed           ids" in result.stdout and "token id 3 is outside the vocabulary of 3" in result.stdout
    assert "FAILED: " in result.stdout and "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (None, "drafter 'made' has no example"),
        ("tests.kit.mutants:NoSuchThing", "cannot be loaded"),
        ("tests.cli.test_check:refuses", "ValueError: not today"),
    ],
)
def test_what_cannot_be_built_is_a_failure_and_no_traceback(specdec, plugin, example, words):
    manager = plugin(example)
    with use(manager):
        result = specdec("check", "made", "--json", manager=manager)
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and report["ok"] is False
    (build,) = report["results"]
    assert build["name"] == "build" and "cannot build" in build["reason"] and words in build["reason"]
    assert "Traceback" not in result.stdout + result.stderr


def refuses(vocab_size):
    raise ValueError("not today")


def test_an_unknown_name_is_an_error(specdec):
    result = specdec("check", "prompt-lokup")
    assert result.exit_code == 1 and "Did you mean 'prompt-lookup'?" in result.stderr
