"""`specdec report`: what `specdec bench` measured, as tables, Markdown and plots."""

from __future__ import annotations

from pathlib import Path

import typer

from specdec.bench.strategies import PLAIN
from specdec.core.errors import ConfigError, DataError

__all__ = ["report"]


def report(
    results: list[Path] = typer.Argument(help="Files of JSON lines that `specdec bench --out` wrote."),
    markdown: Path | None = typer.Option(None, help="Write Markdown here, too."),
    plots: Path | None = typer.Option(None, help="Folder for PNG plots; needs the extra `plots`."),
    baseline: str = typer.Option(PLAIN, help="Strategy that the others are compared to."),
) -> None:
    """Print what was measured, strategy by strategy, and say which are slower than plain generate."""
    from specdec.bench.record import read_results
    from specdec.report.document import markdown as as_markdown
    from specdec.report.table import show

    records, runs, left = read_results(results)
    for text in left:
        typer.echo(f"left out: {text}", err=True)
    names = list(dict.fromkeys(record.strategy for record in records))
    if baseline not in names:
        raise ConfigError(f"--baseline {baseline}: it was not measured; measured were {', '.join(names)}")
    models = dict.fromkeys(str(run.get("model")) for run in runs)
    if len(models) > 1:
        raise ConfigError(f"the results are of several models: {', '.join(models)}; report them one by one")
    show(records, next(iter(models), ""), baseline)
    if markdown is not None:
        try:
            markdown.write_text(as_markdown(records, runs, baseline), encoding="utf-8")
        except OSError as error:
            raise DataError(f"--markdown {markdown}: cannot be written: {error.strerror}") from error
    if plots is not None:
        from specdec.report.figures import plots as draw

        for path in draw(records, plots, baseline):
            typer.echo(str(path), err=True)
