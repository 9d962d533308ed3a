"""The commands that list, show and check; none of them needs a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import pytest
import typer
import yaml

from specdec import __version__
from specdec.core.config import load_config
from specdec.core.errors import PluginError, PluginLoadWarning
from specdec.plugins import Strategy, hookimpl
from specdec.plugins.manager import PluginManager, use


def hooks(name: str, commands=None, strategies=()) -> types.ModuleType:
    module = types.ModuleType(name)

    @hookimpl
    def specdec_strategies():
        return strategies

    module.specdec_strategies = specdec_strategies
    if commands is not None:
        module.specdec_commands = hookimpl(commands)
    return module


def test_plugins_prints_json(specdec):
    result = specdec("plugins")
    assert result.exit_code == 0
    (record,) = [record for record in json.loads(result.stdout) if record["name"] == "builtin"]
    assert list(record) == ["name", "dist", "version", "state", "error", "strategies"]
    assert (record["dist"], record["version"], record["state"]) == ("specdec-hf", __version__, "loaded")
    assert "drafter/prompt-lookup" in record["strategies"]


def test_plugins_shows_a_broken_plugin(specdec):
    with pytest.warns(PluginLoadWarning):
        manager = PluginManager.from_modules([types.ModuleType("empty")])
    with use(manager):
        result = specdec("plugins", manager=manager)
    broken = json.loads(result.stdout)[-1]
    assert broken["name"] == "empty" and broken["state"] == "failed"
    assert "implements no hook" in broken["error"]


def test_plugins_names(specdec):
    names = specdec("plugins", "--names").stdout.split()
    assert {"drafter/none", "verifier/walk", "scheduler/adaptive", "target/hf"} <= set(names)


def test_show_is_readable(specdec):
    result = specdec("show", "prompt-lookup")
    assert result.exit_code == 0
    for part in ("prompt-lookup (drafter)", "from specdec itself", "max_ngram", "integer >= 1", '"recent"'):
        assert part in result.stdout


def test_show_json(specdec):
    facts = json.loads(specdec("show", "drafter/draft-model", "--json").stdout)
    assert facts["role"] == "drafter" and facts["origin"]["build"].endswith("DraftModel.from_config")
    options = {option["name"]: option for option in facts["options"]}
    assert options["model"]["required"] and "default" not in options["model"]
    assert options["top_p"]["type"] == "number > 0, <= 1 or null" and options["top_p"]["default"] is None
    assert all(option["description"] for option in facts["options"])


def test_an_error_is_one_message_and_status_one(specdec):
    result = specdec("show", "prompt-lokup")
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith("error: unknown strategy 'prompt-lokup'. Did you mean 'prompt-lookup'?")
    assert "Traceback" not in result.stderr


def test_schema_of_a_decoder_and_of_one_strategy(specdec):
    whole = json.loads(specdec("schema").stdout)
    assert "drafter.prompt-lookup" in whole["$defs"] and whole["additionalProperties"] is False
    one = json.loads(specdec("schema", "fixed").stdout)
    assert one["properties"]["depth"]["default"] == 5


def test_validate_prints_what_it_would_compose(specdec, tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text("drafter: {type: prompt-lookup, max_ngram: 2}\nverifier: walk\nscheduler: fixed\n")
    result = specdec("validate", path)
    assert result.exit_code == 0, result.stderr
    composed = load_config(yaml.safe_load(result.stdout))
    assert composed == load_config(path) and composed.scheduler.depth == 5


def test_validate_loads_no_weights(specdec, tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text(
        "target: nobody/has-this-model\ndrafter: {type: draft-model, model: nobody/has-this-either}\nverifier: block\n"
    )
    result = specdec("validate", path)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("verifier", ["{type: smc, particles: 4}", "typical"])
def test_validate_takes_rules_that_are_allowed_by_name(specdec, tmp_path, verifier):
    path = tmp_path / "decoder.yaml"
    path.write_text(f"drafter: {{type: draft-model, model: m}}\nverifier: {verifier}\nallow: approximate\n")
    result = specdec("validate", path)
    assert result.exit_code == 0, result.stderr
    path.write_text(f"drafter: {{type: draft-model, model: m}}\nverifier: {verifier}\n")
    assert 'Pass allow="' in specdec("validate", path).stderr


def test_validate_lists_all_mistakes(specdec, tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text("drafter: {type: prompt-lookup, max_ngramm: 2}\nscheduler: fixd\n")
    result = specdec("validate", path)
    assert result.exit_code == 1 and result.stdout == ""
    assert f"error: {path}: 2 problems" in result.stderr
    assert "drafter.max_ngramm: extra option. Did you mean 'max_ngram'?" in result.stderr
    assert "scheduler: unknown scheduler 'fixd'. Did you mean 'fixed'?" in result.stderr


def test_validate_says_which_parts_do_not_fit(specdec, tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text("drafter: {type: draft-model, model: m}\nverifier: walk\n")
    result = specdec("validate", path)
    assert result.exit_code == 1
    assert "drafter and verifier: drafter 'draft-model' emits IID" in result.stderr


def test_validate_names_a_part_that_cannot_be_loaded(specdec, tmp_path):
    lost = Strategy("drafter", "lost", "specdec_lost_config:LostConfig", "specdec_lost_parts:Lost.from_config", api=1)
    late = Strategy("scheduler", "none", "specdec.drafters.none_config:NoDraftConfig", "specdec_lost_parts:S", api=1)
    manager = PluginManager.from_modules([hooks("lost", strategies=[lost, late])])
    path = tmp_path / "decoder.yaml"
    with use(manager):
        path.write_text("drafter: lost\n")
        assert "drafter: drafter 'lost': config" in specdec("validate", path).stderr
        path.write_text("drafter: none\nscheduler: none\n")
        assert "scheduler: scheduler 'none': build" in specdec("validate", path).stderr


def test_validate_notes_other_versions(specdec, tmp_path):
    path = tmp_path / "decoder.json"
    path.write_text('{"drafter": "none", "specdec_version": "0.0.1", "plugin_versions": {"specdec-suffix": "2"}}')
    lines = specdec("validate", path).stdout.splitlines()
    assert f"# written by specdec 0.0.1; this is {__version__}" in lines
    assert "# written with specdec-suffix 2; here: not installed" in lines


def test_version_and_help(specdec):
    assert specdec("--version").stdout.strip() == __version__
    help_text = specdec("--help").stdout
    assert all(command in help_text for command in ("plugins", "show", "schema", "validate", "generate"))


def test_a_plugin_adds_commands(specdec):
    def specdec_commands(cli):
        @cli.command()
        def shout(word: str) -> None:
            """Say it louder."""
            typer.echo(word.upper())

    manager = PluginManager.from_modules([hooks("loud", specdec_commands)])
    assert specdec("shout", "hello", manager=manager).stdout == "HELLO\n"
    assert "Say it louder." in specdec("--help", manager=manager).stdout


def raises(cli):
    cli.command()(lambda: None)
    raise RuntimeError("half-way")


def cannot_be_read(cli):
    @cli.command()
    def strange(value: str) -> None: ...

    strange.__annotations__["value"] = "Nowhere"


def takes_a_taken_name(cli):
    @cli.command("validate")
    def other() -> None: ...


def takes_a_taken_group(cli):
    cli.add_typer(typer.Typer(), name="show")


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (raises, "RuntimeError: half-way"),
        (cannot_be_read, "left out: NameError: name 'Nowhere'"),
        (takes_a_taken_name, "command names taken already: validate"),
        (takes_a_taken_group, "command names taken already: show"),
    ],
)
def test_a_plugin_that_fails_to_add_commands_leaves_help_as_it_was(specdec, commands, message):
    manager = PluginManager.from_modules([hooks("bad", commands, [])])
    plain = specdec("--help", manager=PluginManager()).stdout
    with pytest.warns(PluginLoadWarning, match=message):
        result = specdec("--help", manager=manager)
    assert result.exit_code == 0 and result.stdout == plain
    assert "left out" in manager.records[-1].error
    with pytest.raises(PluginError, match=message):
        specdec("--help", manager=PluginManager.from_modules([hooks("bad", commands)], strict=True))


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_python_m_specdec():
    done = run_python("-m", "specdec", "plugins", "--names")
    assert done.returncode == 0 and "drafter/none" in done.stdout.split()


def test_plugin_warnings_are_one_line():
    done = run_python("-m", "specdec", "plugins", SPECDEC_PLUGINS="gone")
    assert done.returncode == 0 and json.loads(done.stdout)[-1]["state"] == "missing"
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: plugin 'gone' is missing")
    strict = run_python("-m", "specdec", "plugins", SPECDEC_PLUGINS="gone", SPECDEC_STRICT_PLUGINS="1")
    assert strict.returncode == 1 and strict.stderr.startswith("error: plugin 'gone' is missing")


@pytest.mark.parametrize("arguments", [["plugins"], ["show", "adaptive"], ["schema"], ["--help"]])
def test_listing_commands_do_not_import_torch(arguments):
    code = (
        "import sys\nfrom specdec.cli.main import main\n"
        f"sys.argv = ['specdec', *{arguments!r}]\n"
        "try:\n    main()\n"
        "finally:\n    print({'torch', 'transformers'} & set(sys.modules), file=sys.stderr)\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 0 and done.stderr.strip() == "set()"
