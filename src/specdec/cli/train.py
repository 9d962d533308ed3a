"""`specdec train`: a head for one's own model, trained on the model's own answers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import ValidationError

from specdec.core.config import TargetConfig
from specdec.core.errors import ConfigError
from specdec.heads.training.recipe import KINDS, Recipe

__all__ = ["train"]


def train(
    kind: str = typer.Argument(metavar="KIND", help=f"What to train: {', '.join(KINDS)}."),
    target: str = typer.Option(..., help="Hub id, folder, .gguf file or alias of the target."),
    data: list[Path] = typer.Option(..., help="Folder of shards that `specdec distill` wrote; may be repeated."),
    out: Path = typer.Option(..., help="Folder for the head and the checkpoints of the run."),
    steps: int | None = typer.Option(None, help="Most optimiser steps."),
    epochs: float | None = typer.Option(None, help="Most passes over the data; 1 if no end is given."),
    minutes: float | None = typer.Option(None, help="Most minutes spent on steps."),
    batch_tokens: int | None = typer.Option(None, help="Tokens of a batch."),
    lr: float | None = typer.Option(None, help="Highest learning rate."),
    draft_vocab: int | None = typer.Option(None, help="Propose the so many most frequent tokens only."),
    unroll: int | None = typer.Option(None, help="Steps of a draft that are trained (eagle, eagle3)."),
    seed: int | None = typer.Option(None, help="Seed of the run."),
    recipe: Path | None = typer.Option(None, help="YAML or JSON file of a recipe; options given here go before it."),
    set_: list[str] = typer.Option([], "--set", metavar="NAME=VALUE", help="Another number of the recipe."),
    option: list[str] = typer.Option([], metavar="NAME=VALUE", help="A field of the head's own config, as heads=5."),
    start: str | None = typer.Option(None, help="A trained head to begin with."),
    store: Path | None = typer.Option(None, help="Folder of the target's features, computed once for several runs."),
    store_only: bool = typer.Option(False, "--store-only", help="Fill --store and stop."),
    resume: bool = typer.Option(False, "--resume", help="Go on from the last checkpoint in --out."),
    dtype: str | None = typer.Option(None, help="Number type of the target's weights, such as bfloat16."),
    name: str = typer.Option("", help="Name of the target in the head's config; by default its hub id or alias."),
) -> None:
    """Train a draft head for a model on the answers that the model itself wrote."""
    given = {
        "steps": steps, "epochs": epochs, "minutes": minutes, "batch_tokens": batch_tokens, "lr": lr,
        "draft_vocab": draft_vocab, "unroll": unroll, "seed": seed,
    }  # fmt: skip
    numbers = {**_read(recipe), **_pairs("--set", set_), **{k: v for k, v in given.items() if v is not None}}
    made = _recipe(kind, numbers)
    if store_only and store is None:
        raise ConfigError("--store-only: give the folder to fill by --store")

    # Imported here because the command line starts without torch.
    from rich.console import Console

    from specdec import load_model
    from specdec.heads.training.run import store_features
    from specdec.heads.training.run import train as run

    console = Console(stderr=True)

    def say(text: str) -> None:
        if os.environ.get("RANK", "0") == "0":  # one process speaks for all that a launcher started
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    config = TargetConfig(model=target, dtype=dtype)
    network, tokenizer = load_model(config.model, dtype=config.dtype, device=_device())
    options = _pairs("--option", option)
    if store_only:
        assert store is not None
        tokens = store_features(network, tokenizer, data, store, made, options=options, say=say)
        typer.echo(f"{store}: features of {tokens} tokens")
        return
    from specdec.heads.training.bar import Bar

    report = run(
        network,
        tokenizer,
        data,
        out,
        made,
        name=name or (target if not Path(target).exists() else ""),
        options=options,
        start=start,
        store=store,
        resume=resume,
        callbacks=[Bar(console, kind)],
        say=say,
    )
    last = report.measured[-1] if report.measured else {}
    figures = ", ".join(f"{key} {value}" for key, value in last.items() if key != "step")
    typer.echo(f"{out}: {kind}, {report.steps} steps in {report.seconds:.0f} s; held out: {figures}")
    if not report.finished:
        typer.echo(f"stopped before its end; the same command with --resume goes on from step {report.steps}", err=True)
        raise typer.Exit(130)


def _recipe(kind: str, numbers: dict[str, Any]) -> Recipe:
    if numbers.get("kind", kind) != kind:
        raise ConfigError(f"the recipe is one of {numbers['kind']!r}, but {kind!r} was asked for")
    if not {"steps", "epochs", "minutes"} & set(numbers):
        numbers = {**numbers, "epochs": 1}
    try:
        return Recipe.model_validate({**numbers, "kind": kind})
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'])) or 'recipe'}: {item['msg']}" for item in error.errors()]
        raise ConfigError("the recipe is wrong: " + "; ".join(lines)) from None


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--recipe {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--recipe {path} is neither YAML nor JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"--recipe {path}: expected a mapping, found a {type(found).__name__}")
    return found


def _pairs(what: str, given: list[str]) -> dict[str, Any]:
    found = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise ConfigError(f"{what} {pair}: expected NAME=VALUE")
        found[name] = yaml.safe_load(value)
    return found


def _device() -> str | None:
    """The device of this process where a launcher started several; else that of the machine."""
    import torch

    if not torch.cuda.is_available():
        return None
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
