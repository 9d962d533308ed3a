"""`specdec schema`: the JSON schema of configs."""

from __future__ import annotations

import json

import typer

from specdec.plugins.manager import discover
from specdec.plugins.schema import decoder_schema, strategy_schema

__all__ = ["schema"]


def schema(
    name: str | None = typer.Argument(None, help="A strategy, name or role/name; without it: a whole decoder."),
) -> None:
    """Print the JSON schema of a decoder config, or of one strategy."""
    registry = discover().registry
    found = decoder_schema(registry) if name is None else strategy_schema(registry.find(name), registry)
    typer.echo(json.dumps(found, indent=2))
