"""Checks that parts of every role share: configs that round-trip, and hook modules that stay light."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from specdec.core.config import StrategyConfig
from specdec.plugins.manager import ENTRY_POINT_GROUP, discover
from specdec.plugins.registry import BUILTIN
from specdec.testing.subject import Subject
from specdec.testing.trial import Failure, NotApplicable, Trial, applies

__all__ = ["SHARED"]

_WEIGHTS = {"model", "checkpoint"}


def _has_config(subject: Subject) -> None:
    if subject.sample.config is None:
        raise NotApplicable("it has no config")


def _is_registered(subject: Subject) -> None:
    if subject.strategy is None:
        raise NotApplicable("it is not a registered strategy")


@applies(_has_config)
def config_round_trip(subject: Subject, trial: Trial) -> str:
    """The config survives JSON, and a part built from it has an equal one."""
    config = subject.sample.config
    if not isinstance(config, StrategyConfig):
        raise Failure(f"config returned {type(config).__name__}; expected a StrategyConfig or None")
    text = json.dumps(config.model_dump(mode="json"))
    again = type(config).model_validate(json.loads(text))
    if again != config:
        raise Failure(f"the config read back from JSON is {again!r}; expected {config!r}", text)
    build = subject.strategy.create if subject.strategy else getattr(type(subject.sample), "from_config", None)
    if build is None:
        return "through JSON; there is no builder to try"
    if _names_weights(config):
        return "through JSON; building it would load weights"
    try:
        built = build(again)
    except Exception as error:
        raise Failure(f"its own config cannot be built: {type(error).__name__}: {error}", text) from error
    if built.config != config:
        raise Failure(f"the part built from the config has {built.config!r}; expected {config!r}", text)
    return "through JSON and through the builder"


def _names_weights(value: Any) -> bool:
    """Whether a config, or one inside it, names weights that would have to be loaded."""
    if isinstance(value, StrategyConfig):
        return bool(_WEIGHTS & set(type(value).model_fields)) or any(_names_weights(inner) for _, inner in value)
    return isinstance(value, (list, tuple)) and any(_names_weights(inner) for inner in value)


def _declaring_modules(strategy: Any) -> list[str]:
    """The modules that are imported to list a strategy and to read its config: its hooks' and its config's."""
    modules = [strategy.config.partition(":")[0]]
    registry = discover().registry
    if strategy in list(registry):
        owner = registry.owner(strategy.role, strategy.name)
        if owner == BUILTIN:
            modules.append("specdec.plugins.builtin")
        points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
        modules += [point.value.partition(":")[0] for point in points if point.name == owner]
    return modules


@applies(_is_registered)
def light_hook_module(subject: Subject, trial: Trial) -> str:
    """Importing the modules of the strategy's hooks and of its config loads neither torch nor transformers."""
    modules = _declaring_modules(subject.strategy)
    code = (
        f"import sys, importlib\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
        "    print(name, ' and '.join(sorted({'torch', 'transformers'} & set(sys.modules))) or 'nothing', sep='=')"
    )
    path = os.pathsep.join(place or os.curdir for place in sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=trial.seconds,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode != 0:
        raise Failure(f"importing {' and '.join(modules)} fails: {done.stderr.strip().splitlines()[-1]}")
    for line in done.stdout.strip().splitlines()[-len(modules) :]:
        name, _, loaded = line.partition("=")
        if loaded != "nothing":
            raise Failure(f"importing {name} loads {loaded}; expected a module that only declares")
    return ", ".join(modules)


SHARED: dict[str, Callable[[Subject, Trial], str]] = {
    "config-round-trip": config_round_trip,
    "light-hook-module": light_hook_module,
}
