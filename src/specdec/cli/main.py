"""`specdec`: the command line, made of one command a module and of what plugins add."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from specdec import __version__
from specdec.cli.autotune import autotune
from specdec.cli.bench import bench
from specdec.cli.certify import certify
from specdec.cli.check import check
from specdec.cli.distill import distill
from specdec.cli.doctor import doctor
from specdec.cli.export import export
from specdec.cli.generate import generate
from specdec.cli.plugins import plugins
from specdec.cli.report import report
from specdec.cli.schema import schema
from specdec.cli.show import show
from specdec.cli.trace import trace
from specdec.cli.train import train
from specdec.cli.validate import validate
from specdec.core.errors import PluginError, PluginLoadWarning, SpecdecError
from specdec.plugins.manager import PluginManager, discover

__all__ = ["build_app", "main"]

# A new command is a module beside this one and a line here; the module may not import torch at its top.
COMMANDS: tuple[Callable[..., None], ...] = (
    plugins,
    show,
    schema,
    validate,
    generate,
    check,
    certify,
    distill,
    train,
    bench,
    report,
    autotune,
    export,
    doctor,
    trace,
)


class _Group(TyperGroup):
    """Prints an error of specdec as one message and ends with status 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SpecdecError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error


def build_app(manager: PluginManager | None = None) -> typer.Typer:
    """The typer application with the commands of specdec and of the plugins of `manager`."""
    app = typer.Typer(
        name="specdec",
        cls=_Group,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
    )
    app.callback()(_root)
    for command in COMMANDS:
        app.command()(command)
    _add_plugin_commands(app, manager or discover())
    return app


def main() -> None:
    """Run the command line of this process."""
    warnings.formatwarning = _one_line(warnings.formatwarning)
    try:
        app = build_app()
    except SpecdecError as error:  # strict plugins
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(1) from error
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit()


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Faster text generation with any causal LM, without a change in what it says."""


def _add_plugin_commands(app: typer.Typer, manager: PluginManager) -> None:
    for record, add in manager.command_hooks():
        commands, groups = list(app.registered_commands), list(app.registered_groups)
        try:
            add(app)
            names = _names(app)
            taken = sorted({name for name in names if names.count(name) > 1})
            if taken:
                raise PluginError(f"command names taken already: {', '.join(taken)}")
            # typer reads signatures when it makes the command, so one that it cannot read would otherwise
            # take `specdec --help` down.
            typer.main.get_command(app)
        except (Exception, SystemExit) as error:
            app.registered_commands[:], app.registered_groups[:] = commands, groups
            manager.fail(record, f"its commands are left out: {type(error).__name__}: {error}")


def _names(app: typer.Typer) -> list[str]:
    names = []
    for command in app.registered_commands:
        function = command.callback
        names.append(command.name or (typer.main.get_command_name(function.__name__) if function else ""))
    names.extend(str(typer.main.solve_typer_info_defaults(group).name) for group in app.registered_groups)
    return names


def _one_line(formatwarning: Callable[..., str]) -> Callable[..., str]:
    def format_one(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> str:
        if issubclass(category, PluginLoadWarning):
            return f"warning: {message}\n"  # where it was raised helps nobody at a command line
        return formatwarning(message, category, *args, **kwargs)

    return format_one
