"""`specdec autotune`: the fastest decoder for one's own model and prompts, written to a config file."""

from __future__ import annotations

from pathlib import Path

import typer
import yaml

from specdec.bench.candidates import candidates
from specdec.bench.prompts import built_in, read_prompts
from specdec.bench.setting import COMPILE, settings
from specdec.core.config import TargetConfig, load_config
from specdec.core.errors import ConfigError, DataError

__all__ = ["autotune"]


def autotune(
    model: str = typer.Argument(help="Hub id, folder, .gguf file or alias of the target."),
    out: Path = typer.Option(..., help="Config file to write, .yaml or .json; Decoder.from_config reads it."),
    prompts: Path | None = typer.Option(None, help="Sample prompts: JSON lines, or lines of text; else built in."),
    drafter: list[str] = typer.Option(
        [], "--drafter", "-d", metavar="[NAME=]SPEC", help="Candidate with a model or checkpoint, as eagle2:FOLDER."
    ),
    only_given: bool = typer.Option(False, "--only-given", help="Leave out those that need no checkpoint."),
    minutes: float = typer.Option(10.0, min=0.01, help="Time to measure in, loading included."),
    tokens: int = typer.Option(96, min=1, help="Most new tokens of an answer."),
    batch: int = typer.Option(1, min=1, help="Prompts decoded together."),
    temperature: float = typer.Option(0.0, min=0.0, help="0 is greedy."),
    dtype: str | None = typer.Option(None, help="Number type of the weights, such as bfloat16."),
    exactness: str = typer.Option("algorithmic", help="Exactness mode that the decoder must have."),
    allow: str | None = typer.Option(None, help="Weakest law that is accepted, such as approximate; else exact."),
    compile: str = typer.Option("no", help="Compiled passes: no, yes; weights: packed weights only."),
    skip_broken: bool = typer.Option(False, "--skip-broken", help="Leave out lines of --prompts that cannot be read."),
    threads: int | None = typer.Option(None, min=1, help="Threads of torch."),
    seed: int = typer.Option(7, help="Seed of the sampling."),
    chat: bool = typer.Option(True, "--chat/--no-chat", help="Use the tokenizer's chat template, if any."),
) -> None:
    """Measure strategies on a model, the slower half leaving each round, and write the fastest as a config.

    After Ctrl-C the fastest of what was measured is written, with status 130.
    """
    if out.suffix not in (".yaml", ".yml", ".json"):
        raise ConfigError(f"--out {out}: expected a .yaml or .json file")
    if out.exists():
        raise ConfigError(f"--out {out}: there is such a file; give another name")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    if compile not in COMPILE:
        raise ConfigError(f"--compile {compile}: expected one of {', '.join(COMPILE)}")
    name = TargetConfig(model=model, dtype=dtype).dtype
    tried = candidates(drafter, exactness=exactness, allow=allow, compile=COMPILE[compile], free=not only_given)
    texts = built_in()
    if prompts is not None:
        texts = read_prompts(prompts, skip_broken=skip_broken, say=lambda text: typer.echo(text, err=True))
    (setting,) = settings([batch], [temperature], [name], [COMPILE[compile]], [exactness])

    # Imported here because the command line starts without torch.
    import torch
    from rich.console import Console

    from specdec.bench.autotune import autotune as run

    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(stderr=True)
    with console.status(f"measuring for at most {minutes:g} minutes"):
        choice = run(
            model, tried, texts, minutes=minutes, setting=setting, tokens=tokens, seed=seed, chat=chat,
            say=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
        )  # fmt: skip
    typer.echo(choice.claim)
    if choice.config is None:
        raise typer.Exit(1)
    plain = choice.config.model_dump(mode="json", exclude_none=True, exclude_defaults=False)
    if out.suffix == ".json":
        text = choice.config.model_dump_json(exclude_none=True, indent=1) + "\n"
    else:
        text = "".join(f"# {line}\n" for line in choice.claim.split("; ")) + yaml.safe_dump(plain, sort_keys=False)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written: {error.strerror}; the config is:\n{text}") from error
    load_config(out)
    typer.echo(f"written to {out}", err=True)
    if choice.outcome.interrupted:
        raise typer.Exit(130)
