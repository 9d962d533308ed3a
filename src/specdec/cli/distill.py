"""`specdec distill`: training data for draft heads, written by the target itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specdec.core.errors import ConfigError

if TYPE_CHECKING:
    from specdec.heads.distill import Progress

__all__ = ["distill"]


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
    too. Ctrl-C keeps what is finished; the same command with --resume goes on.
    """
    if (out / "index.json").exists() and not resume:
        raise ConfigError(f"{out} holds data already; give --resume to go on with it, or another --out")
    if prompts is not None and (only_self or held_out or passages is not None):
        raise ConfigError("--prompts takes the place of the templates; leave out --self, --held-out and --passages")

    import specdec
    from specdec.heads import distill as heads
    from specdec.heads.prompts import FilePrompts, Passage, Recipe
    from specdec.heads.shards import ShardWriter, fingerprint
    from specdec.heads.template_prompts import TemplatePrompts

    limits = (max_new_tokens, max_new_tokens * 3 // 4)
    recipe: Recipe
    if prompts is not None:
        recipe = FilePrompts(prompts, seed, greedy_share, limits)
    else:
        given = [Passage("", text) for text in _paragraphs(passages)] if passages else []
        options: dict[str, Any] = {"mix": {"self": 1.0}, "first": 0} if only_self else {"first": 60} if held_out else {}
        recipe = TemplatePrompts(seed, greedy_share, limits, given=given, held_out=held_out, **options)
    network, tokenizer = specdec.load_model(model, dtype=dtype)
    if tokenizer is None:
        raise ConfigError(f"{model}: the model has no tokenizer, which prompts need")
    settings = {
        "prompts": prompts.name if prompts else "self" if only_self else "held-out" if held_out else "templates",
        "seed": seed,
        "greedy_share": greedy_share,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "max_length": max_length,
        "dtype": str(network.dtype).removeprefix("torch."),
    }
    about = {
        "model": model,
        "tokenizer": fingerprint(tokenizer),
        "vocab_size": network.config.get_text_config(decoder=True).vocab_size,
        "settings": settings,
    }
    writer = ShardWriter(out, about)
    maker = heads.Distiller.of(
        network, tokenizer, recipe, writer, slots=slots, temperature=temperature, seed=seed, longest=max_length
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        progress = maker.run(tokens=tokens, report=_Report())
    except KeyboardInterrupt:
        progress = maker.progress
        typer.echo("stopped; --resume goes on", err=True)
    typer.echo(_line(progress))


def _paragraphs(path: Path) -> list[str]:
    try:
        parts = path.read_text(encoding="utf-8").split("\n\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--passages {path}: cannot be read: {error}") from error
    return [" ".join(part.split()) for part in parts if len(part.split()) >= 40]


class _Report:
    """Prints a line now and then."""

    def __init__(self, every: float = 30.0) -> None:
        self._every, self._last = every, time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            typer.echo(_line(progress), err=True)


def _line(progress: Progress) -> str:
    seconds = max(progress.seconds, 1e-9)
    tokens = max(1, progress.answer_tokens)
    shares = " ".join(f"{task} {count / tokens:.0%}" for task, count in progress.sources.most_common())
    tried = max(1, progress.dialogues + progress.dropped.total())
    dropped = " ".join(f"{why} {count / tried:.1%}" for why, count in progress.dropped.items())
    ends = " ".join(f"{end} {count / max(1, progress.dialogues):.0%}" for end, count in progress.ends.items())
    return (
        f"{progress.answer_tokens} answer tokens, {tokens / seconds:.0f}/s; {progress.dialogues} dialogues ({ends}); "
        f"{progress.passes} passes; {progress.prompt_tokens} prompt tokens; dropped: {dropped or 'none'}; {shares}"
    )
