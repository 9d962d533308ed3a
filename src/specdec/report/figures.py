"""Results of a benchmark as PNG plots; needs matplotlib, the extra `plots`."""

from __future__ import annotations

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


def plots(records: Iterable[Record], folder: Path, baseline: str = PLAIN) -> list[Path]:
    """Write, for each setting, speed by task, tokens a pass, shares of the time and acceptance by depth.

    Raises SpecdecError where matplotlib is not installed, DataError where a file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SpecdecError("plots need matplotlib: pip install 'specdec-hf[plots]'") from error
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for summary in summarise(records, baseline):
            lines = [line for line in summary.lines if line.prompts]
            stem = re.sub(r"[^\w.-]+", "_", str(summary.setting))
            for name, draw in _PLOTS.items():
                figure = Figure(figsize=(max(6.0, 1.2 * len(lines) + 3), 4.2), layout="constrained")
                axes = figure.subplots()
                if not draw(axes, lines, summary):
                    continue
                axes.set_title(str(summary.setting), fontsize="small")
                path = folder / f"{stem}_{name}.png"
                figure.savefig(path, dpi=150)
                written.append(path)
    except OSError as error:
        raise DataError(f"{folder}: a plot could not be written: {error.strerror}") from error
    return written


def _speed(axes: Any, lines: list[Line], summary: Summary) -> bool:
    shown = [line for line in lines if line.ratios]
    if not shown:
        return False
    width = 0.8 / len(shown)
    for at, line in enumerate(shown):
        ratios = line.ratios or {}
        places = [place + (at + 0.5) * width - 0.4 for place, task in enumerate(summary.tasks) if task in ratios]
        axes.bar(places, [ratios[task] for task in summary.tasks if task in ratios], width, label=line.strategy)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(summary.tasks)), summary.tasks, rotation=20, ha="right")
    axes.set_ylabel("speed against plain generate")
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return True


def _tokens(axes: Any, lines: list[Line], summary: Summary) -> bool:
    shown = [line for line in lines if line.tokens_per_pass is not None]
    if not shown:
        return False
    axes.barh([line.strategy for line in shown], [line.tokens_per_pass for line in shown])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("tokens a pass")
    return True


def _times(axes: Any, lines: list[Line], summary: Summary) -> bool:
    shown = [line for line in lines if line.shares is not None]
    if not shown:
        return False
    left = [0.0] * len(shown)
    for at, name in enumerate(_SHARES):
        widths = [line.shares[at] for line in shown if line.shares is not None]
        axes.barh([line.strategy for line in shown], widths, left=left, label=name)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("share of the time")
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return True


def _acceptance(axes: Any, lines: list[Line], summary: Summary) -> bool:
    shown = [line for line in lines if line.acceptance]
    if not shown:
        return False
    for line in shown:
        axes.plot(range(1, len(line.acceptance) + 1), line.acceptance, marker="o", label=line.strategy)
    axes.set_ylim(0, 1)
    axes.set_xlabel("depth")
    axes.set_ylabel("accepted / judged")
    axes.figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return True


_PLOTS: dict[str, Callable[[Any, list[Line], Summary], bool]] = {
    "speed": _speed,
    "tokens_per_pass": _tokens,
    "times": _times,
    "acceptance": _acceptance,
}
