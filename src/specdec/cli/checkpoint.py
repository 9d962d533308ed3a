"""What `specdec show` prints of a checkpoint: what a folder or hub repository holds."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import typer

from specdec.plugins.strategy import ROLES

__all__ = ["is_checkpoint", "show_checkpoint"]


def is_checkpoint(name: str) -> bool:
    """Whether a name that is no strategy can be a folder or a hub id."""
    hub = re.fullmatch(r"([\w.-]+)/[\w.-]+", name)
    return Path(name).expanduser().is_dir() or (hub is not None and hub[1] not in ROLES)


def show_checkpoint(name: str, as_json: bool) -> None:
    """Print what it is, which drafters take it, for which target, and what is unusual; or why none does."""
    from specdec.heads.formats.summary import summary

    found = summary(name)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    typer.echo(f"{found.where}: {found.title}")
    if found.problem:
        typer.echo(f"cannot be used: {found.problem}")
        return
    width = max(len(label) for label, _ in found.facts)
    for label, value in found.facts:
        typer.echo(f"  {label:{width}}  {value}")
    for remark in found.remarks:
        typer.echo(f"unusual: {remark}")
    typer.echo("use: " + ", ".join(f"--drafter {drafter}:{name}" for drafter in found.drafters))
