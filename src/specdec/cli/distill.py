"""`specdec distill`: training data for draft heads, written by the target itself."""

from __future__ import annotations

import hashlib
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specdec.core.errors import ConfigError

if TYPE_CHECKING:
    from specdec.heads.distill import Progress as Made

__all__ = ["distill"]

SMALL = 60  # dialogues of the first wave where few are wanted


def distill(
    model: str = typer.Argument(help="Hub id, folder, .gguf file or alias of the target."),
    out: Path = typer.Option(..., help="Folder of the shards."),
    tokens: int = typer.Option(1_000_000, min=1, help="Answer tokens that the folder shall hold."),
    prompts: Path | None = typer.Option(None, help="Prompts: .jsonl with prompt, turns or messages, or text lines."),
    only_self: bool = typer.Option(False, "--self", help="Let the target write all user turns; no templates."),
    held_out: bool = typer.Option(False, "--held-out", help="Only the templates and topics kept for evaluation."),
    passages: Path | None = typer.Option(None, help="Text file whose paragraphs are passages for templates too."),
    slots: int = typer.Option(128, min=1, help="Dialogues at a time."),
    max_new_tokens: int = typer.Option(256, min=8, help="Most tokens of an answer; a half get three quarters of it."),
    max_length: int = typer.Option(640, min=64, help="Most tokens of a dialogue."),
    greedy_share: float = typer.Option(0.5, min=0.0, max=1.0, help="Share of dialogues with greedy answers."),
    temperature: float = typer.Option(0.7, min=0.01, help="Temperature of the other answers."),
    seed: int = typer.Option(0, help="Seed of prompts and sampling."),
    dtype: str | None = typer.Option(None, help="Number type of the weights, such as bfloat16."),
    resume: bool = typer.Option(False, "--resume", help="Go on with a folder that holds data."),
) -> None:
    """Let a model answer many prompts at once and keep the token ids, for `specdec train`.

    Prompts are templates over passages that the model writes first, mixed with dialogues whose user turns it writes
    too. Ctrl-C keeps what is finished; the same command with --resume goes on. Several processes can share the work:
    give each a --seed and a folder of its own below one folder, which is then read as one.
    """
    if only_self and held_out:
        raise ConfigError("--self has no templates to hold out; leave out --held-out")
    if (out / "index.json").exists() and not resume:
        raise ConfigError(f"{out} holds data already; give --resume to go on with it, or another --out")
    if prompts is not None and (only_self or held_out or passages is not None):
        raise ConfigError("--prompts takes the place of the templates; leave out --self, --held-out and --passages")

    import specdec
    from specdec.heads import distill as heads
    from specdec.heads.config import tokenizer_fingerprint
    from specdec.heads.prompts import FilePrompts, Passage, Recipe
    from specdec.heads.shards import ShardWriter
    from specdec.heads.template_prompts import MIX, TemplatePrompts

    network, tokenizer = specdec.load_model(model, dtype=dtype)
    if tokenizer is None:
        raise ConfigError(f"{model}: the model has no tokenizer, which prompts need")
    limits = (max_new_tokens, max_new_tokens * 3 // 4)
    recipe: Recipe
    if prompts is not None:
        recipe = FilePrompts(prompts, seed, greedy_share, limits)
    else:
        options: dict[str, Any] = {"first": SMALL} if held_out else {}
        if only_self:
            options = {"mix": {"self": 1.0}, "first": 0}
        elif not getattr(tokenizer, "chat_template", None):
            options["mix"] = {task: share for task, share in MIX.items() if task != "self"}
        given = [Passage("", text) for text in _paragraphs(passages)] if passages else []
        recipe = TemplatePrompts(seed, greedy_share, limits, given=given, held_out=held_out, **options)
    settings = {
        "prompts": _mark(prompts) if prompts else "self" if only_self else "held-out" if held_out else "templates",
        **({"passages": _mark(passages)} if passages else {}),
        "seed": seed,
        "greedy_share": greedy_share,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "max_length": max_length,
        "dtype": str(network.dtype).removeprefix("torch."),
    }
    about = {
        "model": model,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "vocab_size": network.config.get_text_config(decoder=True).vocab_size,
        "settings": settings,
    }
    writer = ShardWriter(out, about)
    maker = heads.Distiller.of(
        network, tokenizer, recipe, writer, slots=slots, temperature=temperature, seed=seed, longest=max_length
    )
    held = sum(entry["answer_tokens"] for entry in writer.index["shards"])
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _Report(tokens, held) as report:
            maker.run(tokens=tokens, report=report)
    except KeyboardInterrupt:
        typer.echo(f"stopped; what is finished is in {out}, and the same command with --resume goes on", err=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    typer.echo(_line(maker.progress))


def _mark(path: Path) -> str:
    """A file's name and what it holds: a run that goes on has to ask the same."""
    try:
        return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _paragraphs(path: Path) -> list[str]:
    try:
        parts = path.read_text(encoding="utf-8").split("\n\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--passages {path}: cannot be read: {error}") from error
    return [" ".join(part.split()) for part in parts if len(part.split()) >= 40]


class _Report:
    """A bar on a terminal, a line every half minute elsewhere."""

    def __init__(self, target: int, held: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar: Progress | None = None
        self._held, self._last = held, time.monotonic()
        if console.is_terminal:
            columns = (BarColumn(30), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=target, completed=held)

    def __enter__(self) -> _Report:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Made) -> None:
        now = time.monotonic()
        if now - self._last < (0.5 if self._bar is not None else 30.0):
            return
        self._last = now
        if self._bar is None:
            typer.echo(_line(progress), err=True)
        else:
            done = self._held + progress.answer_tokens
            self._bar.update(self._task, completed=done, description=_line(progress))


def _line(progress: Made) -> str:
    tokens, rate = max(1, progress.answer_tokens), progress.answer_tokens / max(progress.seconds, 1e-9)
    tried = max(1, progress.dialogues + progress.dropped.total())
    shares = _shares(progress.sources, tokens)
    ends, dropped = _shares(progress.ends, max(1, progress.dialogues)), _shares(progress.dropped, tried)
    return (
        f"{progress.answer_tokens} answer tokens, {rate:.0f}/s; {progress.dialogues} dialogues ({ends}); "
        f"dropped: {dropped or 'none'}; {shares}"
    )


def _shares(counts: Counter[str], total: int) -> str:
    return ", ".join(f"{name} {count / total:.0%}" for name, count in counts.most_common())
