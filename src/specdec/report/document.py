"""Results of a benchmark as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specdec.bench.record import Record
from specdec.bench.strategies import PLAIN
from specdec.report.summary import slower, summarise
from specdec.report.table import cells, heads

__all__ = ["markdown"]

_FACTS = ("model", "machine", "gpu", "threads", "torch", "transformers", "specdec", "tokens", "prompts", "repeats")


def markdown(
    records: Iterable[Record], runs: Sequence[Mapping[str, Any]] = (), baseline: str = PLAIN, notes: Sequence[str] = ()
) -> str:
    """A section a setting: one table of all columns, and what is slower than the baseline."""
    parts = ["# Benchmark"]
    for run in runs:
        parts.append(", ".join(f"{name} {run[name]}" for name in _FACTS if run.get(name) is not None))
    base = "plain `generate`" if baseline == PLAIN else baseline
    parts.append(
        f"Speed is against {base} in the same run: tokens over seconds of each task, averaged over tasks, as tokens a "
        "pass are. tokens/s, shares by depth and shares of the time are of all prompts together; medians and quartiles "
        "are over prompts. Kept by depth: share of the passes that kept a drafted token at depth 1, 2, and so on; "
        "accepted / judged: of the tokens drafted at that depth, of which a tree has many. Peak memory is that of the "
        "device on a GPU, elsewhere of the process, with all models of the run. Plain's text: greedy answers that are "
        "plain `generate`'s. Near-ties: tokens at which the two best were closer than passes of different widths "
        "round. "
        "Repeated: share of the 8-grams of an answer that stood in it before."
    )
    for summary in summarise(records, baseline):
        rows = [cells(line, summary.tasks) for line in summary.lines]
        names = heads(summary)
        kept = [at for at in range(len(names)) if any(row[at] not in ("", "-") for row in rows)]
        lines = [_row([names[at] for at in kept]), _row(["---"] * len(kept))]
        lines += [_row([row[at] for at in kept]) for row in rows]
        parts += [f"## {summary.setting}", "\n".join(lines)]
        if said := slower(summary):
            parts.append("\n".join(f"- {text}" for text in said))
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def _row(entries: Sequence[str]) -> str:
    # A bar or a line end within an entry would end it.
    safe = (entry.replace("|", "\\|").replace("\n", " ") for entry in entries)
    return "| " + " | ".join(safe) + " |"
