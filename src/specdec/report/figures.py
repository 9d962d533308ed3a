"""Results of a benchmark as PNG plots; needs matplotlib, the extra `plots`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specdec.bench.record import Record
from specdec.bench.strategies import PLAIN
from specdec.core.errors import DataError, SpecdecError
from specdec.report.summary import Line, Summary, summarise

__all__ = ["plots"]

_SHARES = ("draft", "target", "verify", "rest")
_DEPTHS = 10  # of acceptance that are shown


def plots(records: Iterable[Record], folder: Path, baseline: str = PLAIN) -> list[Path]:
    """Write, for each setting, speed by task, tokens a pass, shares of the time and acceptance by depth.

    Every plot has a line a strategy, so that many of them can be told apart. Raises SpecdecError where matplotlib is
    not installed, DataError where a file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SpecdecError("plots need matplotlib: pip install 'specdec-hf[plots]'") from error
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for summary in summarise(records, baseline):
            stem = re.sub(r"[^\w.-]+", "_", str(summary.setting))
            for name, (title, has, draw) in _PLOTS.items():
                lines = [line for line in summary.lines if has(line)]
                if not lines:
                    continue
                figure = Figure(figsize=(7.0, 1.9 + 0.34 * len(lines)), layout="constrained")
                draw(figure, lines, summary)
                figure.suptitle(f"{title}: {summary.setting}", fontsize="medium")
                path = folder / f"{stem}_{name}.png"
                figure.savefig(path, dpi=150)
                written.append(path)
    except OSError as error:
        raise DataError(f"{folder}: a plot could not be written: {error.strerror}") from error
    return written


def _speed(figure: Any, lines: list[Line], summary: Summary) -> None:
    """Speed over all tasks as bars, with the quartiles of prompts, and task by task as a table."""
    figure.set_size_inches(5.5 + 0.75 * len(summary.tasks), figure.get_figheight() + 0.5)
    bars, table = figure.subplots(1, 2, sharey=True, width_ratios=[4.0, max(1.5, 0.9 * len(summary.tasks))])
    ratios = [line.ratio or 0.0 for line in lines]
    _barh(bars, lines, ratios, "{:.2f}x", f"speed over all tasks; {summary.baseline} is 1")
    for place, line in enumerate(lines):
        if line.low is not None and line.high is not None:
            bars.plot([line.low, line.high], [place, place], color="black", linewidth=1.2, solid_capstyle="butt")
    cells = [[(line.ratios or {}).get(task, math.nan) for task in summary.tasks] for line in lines]
    _table(table, cells, middle=1.0)
    table.set_xticks(range(len(summary.tasks)), summary.tasks, rotation=30, ha="right", fontsize="small")
    table.set_xlabel("by task")
    figure.supxlabel("thin lines: half of the prompts lie within", fontsize="small")


def _tokens(figure: Any, lines: list[Line], summary: Summary) -> None:
    about = "new tokens over passes of the target, averaged over tasks"
    _barh(figure.subplots(), lines, [line.tokens_per_pass or 0.0 for line in lines], "{:.2f}", about)


def _times(figure: Any, lines: list[Line], summary: Summary) -> None:
    axes, left = figure.subplots(), [0.0] * len(lines)
    for at, (name, colour, ink) in enumerate(zip(_SHARES, _SHADES, _INKS, strict=True)):
        widths = [line.shares[at] if line.shares else 0.0 for line in lines]
        bars = axes.barh(range(len(lines)), widths, left=left, label=name, color=colour, edgecolor="white")
        # A label that is wider than its part of the bar would run into the next.
        labels = [f"{width:.0%}" if width >= 0.05 else "" for width in widths]
        axes.bar_label(bars, labels, label_type="center", fontsize="small", color=ink)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlim(0, 1)
    _names(axes, lines)
    axes.set_xlabel("share of the time")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")


def _acceptance(figure: Any, lines: list[Line], summary: Summary) -> None:
    axes = figure.subplots()
    depths = min(_DEPTHS, max(len(line.kept) for line in lines))
    shown = [[*line.kept, *[math.nan] * depths][:depths] for line in lines]
    _table(axes, shown)
    axes.set_xticks(range(depths), range(1, depths + 1))
    _names(axes, lines)
    axes.set_xlabel("share of passes that kept a drafted token at this depth")


_SHADES = ("#e69f00", "#0072b2", "#009e73", "#999999")  # told apart by the colour-blind, too
_INKS = ("black", "white", "white", "black")


def _barh(axes: Any, lines: list[Line], values: list[float], shape: str, about: str) -> None:
    """A bar a strategy from 0, with its value at the end of the plot, and a line at 1."""
    axes.barh(range(len(lines)), values, color="#9ecae1")
    axes.axvline(1.0, color="black", linewidth=1.0)
    for place, value in enumerate(values):
        axes.text(1.02, place, shape.format(value), va="center", fontsize="small", transform=axes.get_yaxis_transform())
    axes.spines[["top", "right"]].set_visible(False)
    _names(axes, lines)
    axes.set_xlabel(about)


def _table(axes: Any, cells: list[list[float]], middle: float | None = None) -> None:
    """Numbers on a ground that is the darker the larger they are; around `middle`, red below and blue above."""
    low, high = 0.0, 1.0
    if middle is not None:
        known = [value for row in cells for value in row if not math.isnan(value)]
        reach = max([0.2, *(abs(value - middle) for value in known)])
        low, high = middle - reach, middle + reach
    axes.imshow(cells, aspect="auto", cmap="Blues" if middle is None else "RdBu", vmin=low, vmax=high, alpha=0.75)
    for place, row in enumerate(cells):
        for column, value in enumerate(row):
            if math.isnan(value):
                continue
            share = (value - low) / (high - low)
            dark = share > 0.7 if middle is None else abs(share - 0.5) > 0.35
            ink = "white" if dark else "black"
            axes.text(column, place, f"{value:.2f}", ha="center", va="center", fontsize="small", color=ink)


def _names(axes: Any, lines: list[Line]) -> None:
    """The strategies down the side, the first one on top."""
    names = (line.strategy if len(line.strategy) <= _LONG else line.strategy[: _LONG - 1] + "…" for line in lines)
    axes.set_yticks(range(len(lines)), [name.replace("$", r"\$") for name in names], fontsize="small")
    axes.set_ylim(len(lines) - 0.5, -0.5)


_LONG = 48
_PLOTS: dict[str, tuple[str, Callable[[Line], bool], Callable[[Any, list[Line], Summary], None]]] = {
    "speed": ("Speed", lambda line: line.ratio is not None, _speed),
    "tokens_per_pass": ("Tokens a pass", lambda line: line.tokens_per_pass is not None, _tokens),
    "times": ("Where the time goes", lambda line: line.shares is not None, _times),
    "acceptance": ("Acceptance by depth", lambda line: bool(line.kept), _acceptance),
}
