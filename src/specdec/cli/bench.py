"""`specdec bench`: strategies compared on one's own model, in one interleaved run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specdec.bench.prompts import Prompt, built_in, first_of_each, read_prompts
from specdec.bench.setting import COMPILE, settings
from specdec.bench.strategies import contenders
from specdec.core.config import TargetConfig
from specdec.core.errors import ConfigError

if TYPE_CHECKING:
    from specdec.bench.record import Record

__all__ = ["bench"]

_COMPILE = {**{word: (how,) for word, how in COMPILE.items()}, "both": (False, True)}


def bench(
    model: str = typer.Argument(help="Hub id, folder, .gguf file or alias of the target."),
    strategy: list[str] = typer.Option(
        [],
        "--strategy",
        "-s",
        metavar="[NAME=]SPEC",
        help="A drafter with its model or checkpoint, a decoder config (file, or in braces), hf-prompt-lookup:TOKENS, "
        "hf-assisted:MODEL or call:FILE:FUNCTION; may be repeated. Plain generate is always measured. Without it: "
        "those that need no checkpoint.",
    ),
    prompts: Path | None = typer.Option(
        None, help="JSON lines with prompt or turns, or a prompt a line; else built in."
    ),
    per_task: int | None = typer.Option(None, min=1, help="Most prompts of a task."),
    skip_broken: bool = typer.Option(False, "--skip-broken", help="Leave out lines of --prompts that cannot be read."),
    tokens: int = typer.Option(96, min=1, help="Most new tokens."),
    repeats: int = typer.Option(1, min=1, help="How often each prompt is decoded by each strategy."),
    batch: list[int] = typer.Option([1], help="Prompts decoded together; may be repeated."),
    temperature: list[float] = typer.Option([0.0], help="0 is greedy; may be repeated."),
    dtype: list[str] = typer.Option([], help="Number type of the weights; may be repeated."),
    compile: str = typer.Option("no", help=f"Compiled passes: {', '.join(_COMPILE)}; weights: packed weights only."),
    exactness: list[str] = typer.Option(["algorithmic"], help="Exactness mode; may be repeated."),
    seed: int = typer.Option(7, help="Seed of the sampling."),
    threads: int | None = typer.Option(None, min=1, help="Threads of torch."),
    chat: bool = typer.Option(True, "--chat/--no-chat", help="Use the tokenizer's chat template, if any."),
    out: Path | None = typer.Option(None, help="File of JSON lines, for `specdec report`; grows as it is measured."),
    append: bool = typer.Option(False, "--append", help="Add to the results that --out holds."),
) -> None:
    """Compare strategies to plain generate: speed, tokens a pass, acceptance, times, memory, identity of the text.

    Ctrl-C keeps what was measured. Status 1 if a strategy failed on a prompt, 130 if interrupted.
    """
    if compile not in _COMPILE:
        raise ConfigError(f"--compile {compile}: expected one of {', '.join(_COMPILE)}")
    compared = contenders(strategy)
    dtypes = [TargetConfig(model=model, dtype=name).dtype for name in dtype] if dtype else [None]
    points = settings(batch, temperature, dtypes, _COMPILE[compile], exactness)
    for one in compared:
        for point in points if one.config is not None else ():
            one.with_setting(point.exactness, point.compile)
    texts = _prompts(prompts, per_task, skip_broken)

    # Imported here because the command line starts without torch.
    import torch
    from rich import progress as bars
    from rich.console import Console

    from specdec.bench.record import Results
    from specdec.bench.run import Bench
    from specdec.report.table import show

    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=True)
    run = Bench(
        model, compared, texts, points, tokens=tokens, repeats=repeats, seed=seed, chat=chat,
        say=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
    )  # fmt: skip
    results = Results(out, append, model)
    results.head(run.facts)
    records: list[Record] = []
    stopped = False
    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(30),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with bars.Progress(*columns, console=console, transient=True) as bar:
            work = bar.add_task("loading", total=len(run))
            for record in run.records():
                records.append(record)
                results.add(record)
                bar.update(work, advance=1, description=record.task or record.strategy)
    except KeyboardInterrupt:
        stopped = True
    finally:
        signal.signal(signal.SIGTERM, before)
        results.close()
        show(records, model)
    failed = sum(record.error is not None for record in records)
    if failed:
        typer.echo(f"{failed} of {len(records)} decodings failed; their records say why", err=True)
    if stopped:
        typer.echo(
            f"stopped after {len(records)} of {len(run)} decodings" + (f"; kept in {out}" if out else ""), err=True
        )
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def _prompts(path: Path | None, per_task: int | None, skip_broken: bool) -> list[Prompt]:
    if path is None:
        return first_of_each(built_in(), per_task)
    found = read_prompts(path, skip_broken=skip_broken, say=lambda text: typer.echo(text, err=True))
    return first_of_each(found, per_task)
