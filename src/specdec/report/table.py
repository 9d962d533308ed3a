"""A summary as rows of text, and as tables of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specdec.bench.record import Record
from specdec.bench.strategies import PLAIN
from specdec.report.summary import Line, Summary, slower, summarise

__all__ = ["cells", "heads", "show"]

_NONE = "-"
_WIDE = 180
_DEPTHS = 6


def heads(summary: Summary) -> list[str]:
    """Names of the columns of `cells`."""
    return [
        "strategy", "tokens/s", "speed", "median (quartiles)", *summary.tasks, "tokens a pass", "kept by depth",
        "accepted / judged", "draft/target/verify/rest", "peak memory", "plain's text", "near-ties", "repeated",
        "guarantee", "failed",
    ]  # fmt: skip


def cells(line: Line, tasks: Sequence[str]) -> list[str]:
    """One row; what was not measured is a dash."""
    ratios = line.ratios or {}
    spread = _NONE
    if line.median is not None:
        spread = f"{line.median:.2f}"
        if line.low is not None and line.high is not None:
            spread += f" ({line.low:.2f} to {line.high:.2f})"
    equal, asked = line.identical
    same = f"{equal} of {asked}" if asked else _NONE
    if line.worst is not None:
        same += f", margin up to {line.worst:.2g}"
    if line.unexplained:
        same += f", {line.unexplained} not at a margin"
    return [
        line.strategy,
        _number(line.speed, "{:.1f}"),
        _number(line.ratio, "{:.2f}x"),
        spread,
        *(_number(ratios.get(task), "{:.2f}x") for task in tasks),
        _number(line.tokens_per_pass, "{:.2f}"),
        _shares(line.kept),
        _shares(line.acceptance),
        " ".join(f"{share:.0%}" for share in line.shares) if line.shares else _NONE,
        _number(line.memory and line.memory / 2**20, "{:.0f} MiB"),
        same,
        "{} of {}".format(*line.near_ties) if line.near_ties is not None else _NONE,
        _number(line.repeated, "{:.0%}"),
        line.guarantee or _NONE,
        f"skipped: {line.skipped}" if line.skipped and not line.prompts else str(line.failed) if line.failed else "",
    ]


def show(records: Iterable[Record], title: str = "", baseline: str = PLAIN) -> None:
    """Print a summary of each setting: speed by task, then what explains it, then what is slower than plain."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, _WIDE))  # a file can be as wide as it needs to be
    for summary in summarise(records, baseline):
        rows = [cells(line, summary.tasks) for line in summary.lines]
        names = heads(summary)
        first = 4 + len(summary.tasks)
        # Three tables, which fit a terminal, in the place of one that does not.
        for at, columns in enumerate((range(1, first), range(first, first + 5), range(first + 5, len(names)))):
            kept = [column for column in columns if any(row[column] not in ("", _NONE) for row in rows)]
            if not kept:
                continue
            about = ", ".join(text for text in (title, str(summary.setting)) if text) if at == 0 else None
            # Text and not markup: a name may hold what rich would take for a style.
            made = Table(title=about and Text(about), title_justify="left")
            for head in (names[0], *(names[column] for column in kept)):
                made.add_column(Text(head))
            for row in rows:
                made.add_row(*(Text(entry) for entry in (row[0], *(row[column] for column in kept))))
            console.print(made)
        for text in slower(summary):
            console.print(text, highlight=False, markup=False, soft_wrap=True)


def _shares(by_depth: Sequence[float]) -> str:
    """The first ones; deeper tokens are few, and the plots have them."""
    return " ".join(f"{share:.2f}" for share in by_depth[:_DEPTHS]) or _NONE


def _number(value: float | None, shape: str) -> str:
    return _NONE if value is None else shape.format(value)
