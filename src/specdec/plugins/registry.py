"""`Registry`: the strategies that are known, by role and name, and who brought each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from specdec.core.config import Role
from specdec.core.errors import ConfigError, PluginError, UnknownStrategyError
from specdec.plugins.strategy import ROLES, Strategy

__all__ = ["BUILTIN", "Registry"]

# The plugin name of specdec's own strategies; their names are reserved.
BUILTIN = "builtin"


class Registry:
    """Strategies by role and name; a name has one owner and is never replaced or renamed."""

    def __init__(self) -> None:
        self._strategies: dict[tuple[str, str], Strategy] = {}
        self._owners: dict[tuple[str, str], tuple[str, str]] = {}
        # Plugins that are installed and whose strategies are not here, with the reason. Kept beside the
        # strategies because an unknown name is where somebody needs to hear about it.
        self.unavailable: dict[str, str] = {}

    def add(self, strategies: Iterable[Strategy], *, plugin: str, origin: str) -> None:
        """Add all of `strategies` or none; `origin` describes their owner in messages."""
        new: dict[tuple[str, str], Strategy] = {}
        for strategy in strategies:
            key = (strategy.role, strategy.name)
            if key in new:
                raise PluginError(f"{origin} gives {strategy} twice; a name has one strategy")
            if key in self._owners:
                owner, owner_origin = self._owners[key]
                reserved = " Built-in names are reserved." if owner == BUILTIN else ""
                raise PluginError(
                    f"{origin} gives {strategy}, but that name belongs to {owner_origin}; "
                    f"choose another name.{reserved}"
                )
            new[key] = strategy
        self._strategies.update(new)
        self._owners.update((key, (plugin, origin)) for key in new)

    def get(self, role: Role, name: str) -> Strategy:
        """The strategy of that role and name, or `UnknownStrategyError` with what could have been meant."""
        try:
            return self._strategies[role, name]
        except KeyError:
            raise UnknownStrategyError(self._unknown(role, name)) from None

    def find(self, text: str) -> Strategy:
        """The strategy called `text`, a name or `role/name`; an error where a bare name has two roles."""
        role, slash, name = text.partition("/")
        if slash and role in ROLES:
            return self.get(role, name)
        found = [strategy for strategy in self if strategy.name == text]
        if len(found) > 1:
            choices = ", ".join(strategy.key for strategy in found)
            raise ConfigError(f"the name {text!r} has several roles; write one of {choices}")
        if not found:
            raise UnknownStrategyError(self._unknown(None, text))
        return found[0]

    def names(self, role: Role) -> tuple[str, ...]:
        """Names of all strategies of that role, sorted."""
        return tuple(sorted(name for known, name in self._strategies if known == role))

    def owner(self, role: Role, name: str) -> str:
        """Name of the plugin that brought the strategy."""
        return self._owners[role, self.get(role, name).name][0]

    def origin(self, role: Role, name: str) -> str:
        """Where the strategy came from: plugin, distribution and version, in words."""
        return self._owners[role, self.get(role, name).name][1]

    def __iter__(self) -> Iterator[Strategy]:
        return iter([self._strategies[key] for key in sorted(self._strategies)])

    def __len__(self) -> int:
        return len(self._strategies)

    def _unknown(self, role: Role | None, name: str) -> str:
        names = sorted({known for has, known in self._strategies if role in (None, has)})
        parts = [f"unknown {role or 'strategy'} {name!r}."]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        elsewhere = sorted(has for has, known in self._strategies if known == name)
        if elsewhere:
            parts.append(f"{name!r} is a {' and a '.join(elsewhere)}.")
        elif near:
            parts.append(f"Did you mean {near[0]!r}?")
        parts.append(f"Known: {', '.join(names) or 'none'}.")
        if self.unavailable:
            reasons = "; ".join(f"{plugin} ({reason})" for plugin, reason in sorted(self.unavailable.items()))
            parts.append(f"Plugins not loaded: {reasons}.")
        return " ".join(parts)
