"""`Strategy`: what a plugin says about one strategy, as data."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, get_args

from specdec.core.config import Role, StrategyConfig
from specdec.core.errors import PluginError

__all__ = ["PLUGIN_API", "ROLES", "Strategy"]

# The number of the contract between specdec and its plugins; it grows when a plugin written against the
# older contract would no longer be right.
PLUGIN_API = 1

ROLES: tuple[Role, ...] = get_args(Role)

# No colon and no slash: the command line writes `name:argument` and `role/name`.
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Strategy:
    """One strategy by role and name, with lazy "module:attribute" references to everything heavy.

    Nothing is imported until the strategy is used, so a plugin's hook module stays light.

    role: "drafter", "verifier", "scheduler" or "target".
    name: lower-case letters, digits and dashes; the `type` of its config.
    config: a `StrategyConfig` subclass whose `type` has the strategy's name as default.
    build: a callable that takes the config and returns the part, such as "acme.suffix:Suffix.from_config".
    api: the `PLUGIN_API` that the author wrote against.
    example: a callable that takes a vocabulary size and returns a tiny part, for checks.
    summary: one line for `specdec show`.
    """

    role: Role
    name: str
    config: str
    build: str
    api: int
    example: str | None = None
    summary: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise PluginError(f"strategy {self.name!r} has role {self.role!r}; expected one of {', '.join(ROLES)}")
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise PluginError(
                f"a {self.role} has the name {self.name!r}; expected lower-case letters, digits and single dashes"
            )
        for field in ("config", "build", "example"):
            reference = getattr(self, field)
            if field == "example" and reference is None:
                continue
            if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
                raise PluginError(
                    f"{self}: {field} is {reference!r}; expected a text 'package.module:attribute', "
                    "which is imported on first use"
                )

    def __str__(self) -> str:
        return f"{self.role} {self.name!r}"

    @property
    def key(self) -> str:
        """`role/name`, unique among the strategies of a registry."""
        return f"{self.role}/{self.name}"

    def load_config(self) -> type[StrategyConfig]:
        """The config class, imported now and checked to belong to this strategy."""
        found = self._load("config")
        if not isinstance(found, type) or not issubclass(found, StrategyConfig):
            raise PluginError(
                f"{self}: {self.config} is {found!r}; expected a subclass of specdec.plugins.StrategyConfig"
            )
        default = found.model_fields["type"].default
        if default != self.name:
            raise PluginError(f"{self}: `type` of {self.config} has the default {default!r}; expected {self.name!r}")
        return found

    def load_build(self) -> Callable[[Any], Any]:
        """The builder, imported now."""
        return self._load_callable("build")

    def load_example(self) -> Callable[[int], Any]:
        """The maker of a tiny part, imported now; an error where the strategy has none."""
        if self.example is None:
            raise PluginError(f"{self} has no example; give `example` in its Strategy to have it checked")
        return self._load_callable("example")

    def create(self, config: StrategyConfig) -> Any:
        """Build the part that `config` describes; what the builder raises keeps its type."""
        build = self.load_build()
        try:
            return build(config)
        except Exception as error:
            # `add_note` came with Python 3.11; on 3.10 the traceback alone names the builder.
            if hasattr(error, "add_note"):
                error.add_note(f"while building {self} through {self.build}")
            raise

    def _load_callable(self, field: str) -> Callable[..., Any]:
        found = self._load(field)
        if not callable(found):
            raise PluginError(f"{self}: {getattr(self, field)} is {found!r}; expected a callable")
        return cast("Callable[..., Any]", found)

    def _load(self, field: str) -> object:
        reference: str = getattr(self, field)
        module_name, _, attributes = reference.partition(":")
        try:
            found: object = importlib.import_module(module_name)
            for attribute in attributes.split("."):
                found = getattr(found, attribute)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{self}: {field} {reference!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return found
