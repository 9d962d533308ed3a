"""`specdec validate`: everything that is wrong with a config file, without loading weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import typer
import yaml

from specdec import __version__
from specdec.core.config import DecoderConfig, Role, StrategyConfig, load_config
from specdec.core.errors import ConfigError, PluginError
from specdec.plugins.manager import PluginManager, discover

if TYPE_CHECKING:
    from specdec.core.interfaces import Drafter, Target, Verifier

__all__ = ["validate"]

# Options by which strategies name weights; a strategy without one is built as it is, which costs nothing.
_WEIGHTS = {"model", "checkpoint"}


def validate(file: Path = typer.Argument(help="A decoder config, YAML or JSON.")) -> None:
    """Check a config file: all problems with their paths and status 1, or what it would compose."""
    config = load_config(file)
    manager = discover()
    problems, unchecked = compose_problems(config, manager)
    if problems:
        lines = [f"{len(problems)} problems", *(f"  {problem}" for problem in problems)]
        raise ConfigError(f"{file}: " + (problems[0] if len(problems) == 1 else "\n".join(lines)))
    typer.echo(f"# {file} composes")
    for note in [*unchecked, *_version_notes(config, manager)]:
        typer.echo(f"# {note}")
    typer.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), nl=False)


def compose_problems(config: DecoderConfig, manager: PluginManager) -> tuple[list[str], list[str]]:
    """What keeps the parts of `config` from working together, and what could not be checked.

    Loads no weights.
    """
    problems: list[str] = []
    unchecked: list[str] = []
    parts: dict[Role, Any] = {}
    roles: tuple[Role, ...] = ("drafter", "verifier", "scheduler")
    for role in roles:
        chosen: StrategyConfig | None = getattr(config, role)
        if chosen is None:
            continue
        try:
            parts[role] = _weightless(role, chosen, manager)
        except PluginError as error:
            problems.append(f"{role}: {error}")
        except Exception as error:  # a part may refuse its options by any exception
            problems.append(f"{role}: {type(error).__name__}: {error}")
        else:
            if parts[role] is None:
                unchecked.append(f"{role}: not checked against the others, as it has no example to check")
    if parts.get("drafter") is not None and parts.get("verifier") is not None:
        problems += _unfit(config, parts["drafter"], parts["verifier"])
    return problems, unchecked


def _weightless(role: Role, config: StrategyConfig, manager: PluginManager) -> Any:
    strategy = manager.registry.get(role, config.type)
    strategy.load_build()  # tells of a plugin whose own imports fail
    if not _names_weights(config):
        return strategy.create(config)
    return None if strategy.example is None else strategy.load_example()(32)


def _names_weights(value: object) -> bool:
    if isinstance(value, StrategyConfig):
        return bool(_WEIGHTS & set(type(value).model_fields)) or any(_names_weights(inner) for _, inner in value)
    if isinstance(value, (list, tuple)):
        return any(_names_weights(inner) for inner in value)
    return False


class _Declared:
    """A drafter as far as it declares itself, without what it would ask of its target."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def problems(self, *args: object, **options: object) -> list[str]:
        return []


def _unfit(config: DecoderConfig, drafter: Drafter, verifier: Verifier) -> list[str]:
    # Imported here because the listing commands start without torch.
    from specdec.core.contracts import Caps, Exactness, problems

    # What a real target lacks, and what the drafter itself asks of it, is known only with its weights; until
    # then declarations are held against a target that has everything.
    any_target = SimpleNamespace(caps=Caps(forks=True), features=tuple, shared=lambda name: name)
    allowed = Exactness.EXACT_GREEDY if config.allow is None else Exactness.parse(config.allow)
    found = problems(cast("Target", any_target), cast("Drafter", _Declared(drafter)), verifier, allowed)
    return [f"drafter and verifier: {problem}" for problem in found]


def _version_notes(config: DecoderConfig, manager: PluginManager) -> list[str]:
    notes = []
    if config.specdec_version not in (None, __version__):
        notes.append(f"written by specdec {config.specdec_version}; this is {__version__}")
    here = {record.dist or record.name: record.version for record in manager.records}
    for name, version in config.plugin_versions.items():
        if here.get(name) != version:
            notes.append(f"written with {name} {version}; here: {here.get(name) or 'not installed'}")
    return notes
