"""All hooks of specdec, on one screen.

Each hook is a promise kept for good, so there are three. An implementation may take fewer arguments than the
hook has, so hooks can grow without breaking plugins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pluggy

from specdec.plugins.strategy import Strategy

__all__ = ["hookimpl", "hookspec", "specdec_commands", "specdec_round", "specdec_strategies"]

hookspec = pluggy.HookspecMarker("specdec")
hookimpl = pluggy.HookimplMarker("specdec")


@hookspec
def specdec_strategies() -> Iterable[Strategy]:  # type: ignore[empty-body]
    """Strategies that this plugin adds. Return data; import nothing heavy, touch neither network nor disk."""


@hookspec
def specdec_commands(cli: Any) -> None:
    """Add commands to `cli`, the typer application of `specdec`; a name that is taken drops them all."""


@hookspec
def specdec_round(info: Any) -> None:
    """Observe one round; `info` is the event that `Decoder.stream` yields, to be read and not changed.

    Called in the thread that decodes. An observer that raises is reported once and not called again.
    """
