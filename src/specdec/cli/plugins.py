"""`specdec plugins`: what is installed, and what became of it."""

from __future__ import annotations

import dataclasses
import json

import typer

from specdec.plugins.manager import discover

__all__ = ["plugins"]


def plugins(
    names: bool = typer.Option(False, "--names", help="Only strategies, one role/name a line."),
) -> None:
    """List plugins and their strategies as JSON: name, dist, version, state, error, strategies."""
    manager = discover()
    if names:
        for strategy in manager.registry:
            typer.echo(strategy.key)
        return
    typer.echo(json.dumps([dataclasses.asdict(record) for record in manager.records], indent=2))
