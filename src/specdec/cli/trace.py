"""`specdec trace`: a page on which a decode can be watched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from specdec.cli.decoding import (
    Chat,
    ConfigFile,
    DrafterName,
    Dtype,
    Model,
    Prompt,
    Seed,
    Temperature,
    TopK,
    TopP,
    composed,
    decoder_config,
    prompt_text,
    sampling_options,
)
from specdec.core.config import TargetConfig
from specdec.core.errors import DataError

__all__ = ["trace"]


def trace(
    out: Path = typer.Option(..., help="The HTML file to write; needs nothing else to be opened."),
    model: Model = None,
    drafter: DrafterName = None,
    config: ConfigFile = None,
    prompt: Prompt = None,
    max_new_tokens: int = typer.Option(96, min=1, help="Most tokens to generate."),
    depth: int | None = typer.Option(
        None, min=0, help="Draft so deep in every round; by default as the config or the default scheduler says."
    ),
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    seed: Seed = None,
    chat: Chat = True,
    dtype: Dtype = None,
) -> None:
    """Decode a prompt and write a page that shows every round: draft, verdict, and the text as it grows."""
    whole = decoder_config(model, drafter, config, dtype)
    text = prompt_text(prompt)
    if not out.parent.is_dir():
        raise DataError(f"--out {out}: there is no folder {out.parent}")
    call: dict[str, Any] = {"max_new_tokens": max_new_tokens, **sampling_options(temperature, top_p, top_k, seed)}
    if depth is not None:
        from specdec.schedulers.fixed_config import FixedConfig

        whole = whole.model_copy(update={"scheduler": FixedConfig(depth=depth)})

    # Imported here, after everything that can be wrong without them: they take seconds.
    import specdec
    from specdec.trace import explorers, page, record

    target = whole.target
    assert isinstance(target, TargetConfig)
    decoder, tokenizer, inputs = composed(whole, text, chat)
    found = record(decoder, tokenizer, inputs, **call)
    found["facts"] = {"model": target.model, **found["facts"], "specdec": specdec.__version__}
    _write(out, page(found, explorers(), f"{target.model} with {decoder.drafter.name}"))
    facts = found["facts"]
    typer.echo(f"{facts['tokens per pass']:.2f} tokens per pass in {len(found['rounds'])} rounds: {out}", err=True)


def _write(out: Path, text: str) -> None:
    """Write the page whole or not at all; raises DataError, and then an earlier one is as it was."""
    place = out.resolve()  # where a link leads
    try:
        if place.exists() and not place.is_file():
            place.write_text(text, encoding="utf-8")  # a device or a pipe, which nothing may take the place of
            return
        part = place.with_name(f".{place.name}.{os.getpid()}.tmp")
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, place)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"--out {out}: cannot be written: {error.strerror}; make room, or choose another file"
        ) from error
