"""`specdec show`: what one strategy is and which options it takes, or what a checkpoint holds."""

from __future__ import annotations

import json
from typing import Any

import typer
from pydantic import BaseModel

from specdec.cli.checkpoint import is_checkpoint, show_checkpoint
from specdec.core.config import ROLE_KEY
from specdec.core.errors import UnknownStrategyError
from specdec.plugins.manager import discover
from specdec.plugins.strategy import Strategy

__all__ = ["options_of", "show"]


def show(
    name: str = typer.Argument(help="Name of the strategy, or role/name; or folder or hub id of a checkpoint."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show a strategy, its options and which plugin it comes from; or what a checkpoint holds, and for which target."""
    registry = discover().registry
    try:
        strategy = registry.find(name)
    except UnknownStrategyError:
        if not is_checkpoint(name):
            raise
        show_checkpoint(name, as_json)
        return
    facts = _facts(strategy, registry.origin(strategy.role, strategy.name))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def _facts(strategy: Strategy, owner: str) -> dict[str, Any]:
    return {
        "role": strategy.role,
        "name": strategy.name,
        "summary": strategy.summary,
        "options": options_of(strategy.load_config()),
        "owner": owner,
        "origin": {"config": strategy.config, "build": strategy.build},
        "api": strategy.api,
    }


def options_of(config: type[BaseModel]) -> list[dict[str, Any]]:
    """Name, type, default or whether it is required, and description of each option of a config but `type`."""
    schema = config.model_json_schema()
    required = schema.get("required", [])
    options = []
    for name, field in schema.get("properties", {}).items():
        if name == "type":
            continue
        option = {"name": name, "type": _type(field), "required": name in required}
        if name not in required:
            made = config.model_fields[name].get_default(call_default_factory=True)
            option["default"] = field.get("default", made)
        options.append({**option, "description": field.get("description", "")})
    return options


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(part) for part in field["anyOf"])
    if "enum" in field:
        return " or ".join(json.dumps(value) for value in field["enum"])
    if field.get("type") == "array":
        inner = field.get("items") or next(iter(field.get("prefixItems", ())), None)
        return f"list of {_type(inner)}" if inner else "list"
    limits = [
        f"{sign} {field[key]:g}"
        for key, sign in (
            ("minimum", ">="),
            ("exclusiveMinimum", ">"),
            ("maximum", "<="),
            ("exclusiveMaximum", "<"),
        )
        if key in field
    ]
    return " ".join([str(field.get("type", field.get(ROLE_KEY, "any"))), ", ".join(limits)]).strip()


def _print(facts: dict[str, Any]) -> None:
    # Imported here because only this way of printing needs it.
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{facts['name']}[/bold] ({facts['role']}): {escape(facts['summary'])}")
    console.print(f"from {escape(facts['owner'])}", highlight=False)
    console.print(f"config {facts['origin']['config']}", highlight=False)
    console.print(f"build  {facts['origin']['build']}", highlight=False)
    if not facts["options"]:
        console.print("no options")
        return
    table = Table("option", "type", "default", "meaning", box=None, pad_edge=False)
    for option in facts["options"]:
        default = "required" if option["required"] else json.dumps(option["default"])
        table.add_row(*(escape(cell) for cell in (option["name"], option["type"], default, option["description"])))
    console.print(table)
