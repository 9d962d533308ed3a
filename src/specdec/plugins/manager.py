"""`PluginManager`: loads plugins one by one, each all or nothing, and keeps a record of what happened."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pluggy
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from specdec._version import __version__
from specdec.core.config import DecoderConfig, Role, StrategyConfig
from specdec.core.errors import PluginError, PluginLoadWarning
from specdec.plugins import hookspecs
from specdec.plugins.registry import BUILTIN, Registry
from specdec.plugins.strategy import PLUGIN_API, Strategy

__all__ = ["ENTRY_POINT_GROUP", "PluginManager", "PluginRecord", "discover", "use"]

ENTRY_POINT_GROUP = "specdec"
ALLOW_VARIABLE = "SPECDEC_PLUGINS"
STRICT_VARIABLE = "SPECDEC_STRICT_PLUGINS"
DISTRIBUTION = "specdec-hf"


@dataclass(frozen=True)
class PluginRecord:
    """What became of one plugin: loaded, failed (with the error), skipped by the allow-list, or missing."""

    name: str
    dist: str | None
    version: str | None
    state: Literal["loaded", "failed", "skipped", "missing"]
    error: str | None = None
    strategies: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The plugin in words: name, distribution and version."""
        if self.name == BUILTIN:
            return f"specdec itself ({self.dist} {self.version})"
        if self.dist is None:
            return f"plugin {self.name!r}"
        return f"plugin {self.name!r} ({self.dist} {self.version})"


class PluginManager:
    """The plugins of one process: their strategies, commands and round observers.

    A plugin is one transaction. It is imported, registered, its hooks are checked, its own strategies are
    asked for, and then all of them are added or none; whatever goes wrong leaves no trace but its record.
    A failure is a `PluginLoadWarning`, given once; with `strict` it is a `PluginError`.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.registry = Registry()
        self._strict = strict
        self._plugins = pluggy.PluginManager("specdec")
        self._plugins.add_hookspecs(hookspecs)
        self._records: dict[tuple[str, str | None], PluginRecord] = {}
        self._observers: dict[str, Callable[..., object]] = {}
        self._unreported: list[str] = []
        self._lock = threading.RLock()
        self._transaction(
            PluginRecord(BUILTIN, DISTRIBUTION, __version__, "loaded"),
            lambda: importlib.import_module("specdec.plugins.builtin"),
            strict=True,
        )

    @classmethod
    def from_modules(cls, modules: Iterable[object], *, strict: bool = False) -> PluginManager:
        """A manager with the built-ins and only these plugins: modules, objects or import names."""
        manager = cls(strict=strict)
        for module in modules:
            manager.register(module)
        return manager

    @classmethod
    def from_environment(cls) -> PluginManager:
        """A manager with the built-ins and the installed plugins, as the environment variables allow.

        Failures wait for `report`.
        """
        allowed = os.environ.get(ALLOW_VARIABLE)
        allow = None if allowed is None else {name.strip() for name in allowed.split(",") if name.strip()}
        manager = cls(strict=os.environ.get(STRICT_VARIABLE, "") not in ("", "0"))
        manager.load_entry_points(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), allow=allow)
        return manager

    def register(
        self, plugin: object, *, name: str | None = None, dist: str | None = None, version: str | None = None
    ) -> PluginRecord:
        """Load one plugin, a module, an object with hooks or an import name, and return its record."""
        if name is None:
            name = plugin if isinstance(plugin, str) else getattr(plugin, "__name__", type(plugin).__name__)
        load = (lambda: importlib.import_module(plugin)) if isinstance(plugin, str) else (lambda: plugin)
        record = self._transaction(PluginRecord(name, dist, version, "loaded"), load)
        self.report()
        return record

    def load_entry_points(
        self, entry_points: Iterable[importlib.metadata.EntryPoint], *, allow: Collection[str] | None = None
    ) -> None:
        """Load the plugins behind entry points; with `allow`, only those of these names or distributions.

        Failures wait for `report`.
        """
        # Sorted, so that the order of folders on the path does not decide who gets a name that two want.
        ordered = sorted(entry_points, key=lambda point: (point.name, point.dist.name if point.dist else ""))
        seen: set[str] = set()
        for point in ordered:
            dist = point.dist.name if point.dist else None
            version = point.dist.version if point.dist else None
            names = {point.name} if dist is None else {point.name, dist}
            seen |= names
            record = PluginRecord(point.name, dist, version, "loaded")
            if allow is not None and not names & set(allow):
                reason = f"left out: {ALLOW_VARIABLE} does not list it"
                self._keep(replace(record, state="skipped", error=reason))
            else:
                self._transaction(record, point.load)
        for name in sorted(set(allow or ()) - seen):
            reason = f"{ALLOW_VARIABLE} lists it, but no installed distribution has a plugin of that name"
            if self._strict:
                raise PluginError(f"plugin {name!r} is missing: {reason}")
            self._keep(PluginRecord(name, None, None, "missing", reason))
            self._unreported.append(f"plugin {name!r} is missing: {reason}")

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """What became of every plugin, built-ins first."""
        return tuple(self._records.values())

    def report(self) -> None:
        """Warn of the failures that were not reported yet, each once."""
        with self._lock:
            pending, self._unreported = self._unreported, []
        for text in pending:
            warnings.warn(text, PluginLoadWarning, stacklevel=3)

    def create(self, role: Role, config: StrategyConfig) -> Any:
        """Build the part that `config` describes."""
        return self.registry.get(role, config.type).create(config)

    def unmet(self, requirement: Requirement) -> str | None:
        """Why `requirement`, on a plugin or its distribution, is not met by what is loaded; None if it is."""
        wanted = canonicalize_name(requirement.name)
        found = [
            record
            for record in self._records.values()
            if wanted in {canonicalize_name(name) for name in (record.name, record.dist) if name}
        ]
        if not found:
            return f"plugin {requirement.name!r} is not installed; install it: pip install '{requirement}'"
        # One distribution may bring several plugins; all of them have to be there.
        for record in found:
            if record.state != "loaded":
                return f"{record.origin} is not loaded: {record.error}"
            if requirement.specifier and record.version is None:
                return f"{record.origin} has no version to compare with '{requirement.specifier}'"
            if record.version and not requirement.specifier.contains(record.version, prereleases=True):
                return f"{record.origin} does not satisfy '{requirement}'; install a version that does"
        return None

    def stamp(self, config: DecoderConfig) -> DecoderConfig:
        """The same config with the versions of specdec and of every plugin whose strategies it uses."""
        versions = {}
        for strategy_config in _strategy_configs(config):
            for strategy in self.registry:
                if strategy.name != strategy_config.type:
                    continue
                if type(strategy_config) is not strategy.load_config():
                    continue  # the same name in another role
                owner = self.registry.owner(strategy.role, strategy.name)
                for record in self._records.values():
                    if record.name == owner != BUILTIN and record.state == "loaded" and record.version:
                        versions[record.dist or record.name] = record.version
        return config.model_copy(update={"specdec_version": __version__, "plugin_versions": versions})

    def command_hooks(self) -> Iterator[tuple[PluginRecord, Callable[[Any], object]]]:
        """Each loaded plugin that adds commands, with the call that adds them to a typer application."""
        for record in self.records:
            hook = self._own_hook(record, "specdec_commands")
            if hook is not None:
                yield record, lambda cli, hook=hook: hook(cli=cli)  # type: ignore[misc]

    @property
    def observes_rounds(self) -> bool:
        """Whether any observer is left, so that no event has to be made for nobody."""
        return bool(self._observers)

    def observe_round(self, info: object) -> None:
        """Show one round to every observer; one that raises is reported once and switched off."""
        for name, observer in tuple(self._observers.items()):
            try:
                observer(info=info)
            except Exception as error:
                self._drop_observer(name, error)

    def fail(self, record: PluginRecord, error: str) -> None:
        """Note an error of a plugin that stays loaded, and warn of it, or raise it when strict."""
        self._keep(replace(record, error=error))
        if self._strict:
            raise PluginError(f"{record.origin}: {error}")
        self._unreported.append(f"{record.origin}: {error}")
        self.report()

    def _transaction(self, record: PluginRecord, load: Callable[[], object], *, strict: bool = False) -> PluginRecord:
        with self._lock:
            plugin: object = None
            entered = False
            try:
                plugin = load()
                self._refuse_taken(record, plugin)
                entered = True
                self._plugins.register(plugin, record.name)
                self._plugins.check_pending()
                self._refuse_idle(plugin)
                strategies = self._strategies_of(plugin)
                self.registry.add(strategies, plugin=record.name, origin=record.origin)
            except (Exception, SystemExit) as error:
                # Some versions of pluggy leave a plugin half registered when one of its hooks has the wrong
                # signature, others take it out themselves.
                if entered and self._plugins.is_registered(plugin):
                    self._plugins.unregister(plugin)
                if strict or self._strict:
                    raise PluginError(f"{record.origin} failed to load: {_described(error)}") from error
                record = replace(record, state="failed", error=_described(error))
                self._unreported.append(f"{record.origin} failed to load and is left out: {record.error}")
            else:
                record = replace(record, strategies=tuple(strategy.key for strategy in strategies))
                self._find_observers(record)
            self._keep(record)
            return record

    def _refuse_taken(self, record: PluginRecord, plugin: object) -> None:
        for other in self._records.values():
            if other.name == record.name and other.state == "loaded":
                reserved = " and is reserved" if other.name == BUILTIN else ""
                raise PluginError(f"its plugin name belongs to {other.origin}{reserved}")
        if self._plugins.is_registered(plugin):
            name = self._plugins.get_name(plugin)
            raise PluginError(f"the same module is loaded already, as plugin {name!r}")

    def _refuse_idle(self, plugin: object) -> None:
        if not self._plugins.get_hookcallers(plugin):
            raise PluginError(
                f"{plugin!r} implements no hook of specdec; "
                "expected functions such as specdec_strategies under @specdec.plugins.hookimpl"
            )

    def _strategies_of(self, plugin: object) -> list[Strategy]:
        # Asked alone, so that what comes back is known to be this plugin's.
        others = [other for other in self._plugins.get_plugins() if other is not plugin]
        answers = self._plugins.subset_hook_caller("specdec_strategies", others)()
        implements = {caller.name for caller in self._plugins.get_hookcallers(plugin) or ()}
        if "specdec_strategies" in implements and not answers:
            # pluggy drops None, and a forgotten `return` would pass for a plugin without strategies.
            raise PluginError("specdec_strategies() returned None; expected a list of Strategy objects")
        strategies: list[Strategy] = []
        for answer in answers:
            strategies.extend(answer)
        for strategy in strategies:
            if not isinstance(strategy, Strategy):
                raise PluginError(f"specdec_strategies() returned {strategy!r}; expected Strategy objects")
            if strategy.api != PLUGIN_API:
                newer = isinstance(strategy.api, int) and strategy.api > PLUGIN_API
                advice = "upgrade specdec-hf" if newer else "upgrade the plugin"
                raise PluginError(
                    f"{strategy} is written against plugin API {strategy.api}; "
                    f"specdec {__version__} has plugin API {PLUGIN_API}: {advice}"
                )
        return strategies

    def _find_observers(self, newest: PluginRecord) -> None:
        # All anew, because a caller made earlier leaves out the plugins of that time and would call this one.
        known = {record.name: record for record in self._records.values() if record.state == "loaded"}
        active = {**{name: known[name] for name in self._observers}, newest.name: newest}
        found = {name: self._own_hook(record, "specdec_round") for name, record in active.items()}
        self._observers = {name: hook for name, hook in found.items() if hook is not None}

    def _own_hook(self, record: PluginRecord, hook: str) -> Callable[..., object] | None:
        plugin = self._plugins.get_plugin(record.name) if record.state == "loaded" else None
        if plugin is None:
            return None
        callers = self._plugins.get_hookcallers(plugin) or []
        if hook not in {caller.name for caller in callers}:
            return None
        others = [other for other in self._plugins.get_plugins() if other is not plugin]
        return self._plugins.subset_hook_caller(hook, others)

    def _drop_observer(self, name: str, error: Exception) -> None:
        with self._lock:
            if self._observers.pop(name, None) is None:
                return  # another thread has dropped and reported it
            for record in self.records:
                if record.name == name and record.state == "loaded":
                    text = f"its round observer failed and is switched off: {_described(error)}"
                    self._keep(replace(record, error=text))
                    self._unreported.append(f"{record.origin}: {text}")
        self.report()

    def _keep(self, record: PluginRecord) -> None:
        # Two distributions may offer a plugin of one name: both stay visible.
        self._records[record.name, record.dist] = record
        if record.state == "loaded":
            self.registry.unavailable.pop(record.origin, None)
        else:
            self.registry.unavailable[record.origin] = record.error or record.state


_current: PluginManager | None = None
_discovering = False
_current_lock = threading.RLock()


def discover() -> PluginManager:
    """The manager of this process; the first call loads the installed plugins, whichever thread makes it."""
    global _current, _discovering
    with _current_lock:
        if _current is None:
            if _discovering:
                raise PluginError(
                    "a strategy was asked for while plugins load; a plugin module may only declare strategies"
                )
            _discovering = True
            try:
                _current = PluginManager.from_environment()
            finally:
                _discovering = False
            # Only now, so that a warning turned into an error does not make the next call load all again.
            _current.report()
        return _current


@contextmanager
def use(manager: PluginManager) -> Iterator[PluginManager]:
    """Make `manager` the one that `discover` returns, in all threads, until the block ends; for tests."""
    global _current
    with _current_lock:
        previous, _current = _current, manager
    try:
        yield manager
    finally:
        with _current_lock:
            _current = previous


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _strategy_configs(value: object) -> Iterator[StrategyConfig]:
    if isinstance(value, StrategyConfig):
        yield value
    if isinstance(value, (StrategyConfig, DecoderConfig)):
        for _, inner in value:
            yield from _strategy_configs(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strategy_configs(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strategy_configs(inner)
