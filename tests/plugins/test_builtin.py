"""What specdec ships: every reference leads somewhere, and parts and configs give each other back."""

from __future__ import annotations

import pytest

from specdec.plugins.manager import PluginManager

STRATEGIES = [*PluginManager().registry]
PARTS = [strategy for strategy in STRATEGIES if strategy.role != "target"]
WEIGHTS = {"model", "checkpoint"}
WITHOUT_WEIGHTS = [
    strategy
    for strategy in PARTS
    if not WEIGHTS & set(strategy.load_config().model_fields)
    and not any(field.is_required() for field in strategy.load_config().model_fields.values())
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_every_strategy_has_a_builder_and_a_summary(strategy):
    assert callable(strategy.load_build())
    assert strategy.summary.endswith(".")


@pytest.mark.parametrize("strategy", PARTS, ids=str)
def test_every_part_has_an_example_of_its_name(strategy):
    assert strategy.load_example()(16).name == strategy.name


@pytest.mark.parametrize("strategy", WITHOUT_WEIGHTS, ids=str)
def test_a_part_gives_its_config_back(strategy):
    config = strategy.load_config()()
    assert strategy.create(config).config == config


def test_the_target_is_loaded_as_its_config_says(monkeypatch):
    import specdec.targets.load as load
    from specdec.core.config import TargetConfig

    calls = []
    monkeypatch.setattr(load, "load_model", lambda *args, **options: calls.append((args, options)) or ("m", "t"))
    config = TargetConfig(model="org/name", dtype="bfloat16", revision="main")
    assert PluginManager().create("target", config) == "m"
    options = {"dtype": "bfloat16", "trust_remote_code": False, "revision": "main"}
    assert calls == [(("org/name",), options)]
