"""`specdec export`: a head as a directory that other servers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from specdec.core.errors import ConfigError, IncompatibleError

__all__ = ["export"]


def export(
    head: str = typer.Argument(help="Folder or hub id of the head: one of specdec's own or a published one."),
    out: Path = typer.Argument(help="Folder to write."),
    format: str | None = typer.Option(
        None, help="speculators (EAGLE-3, served by vLLM as it is) or vllm (the raw layout of its kind)."
    ),
    target: str | None = typer.Option(None, help="Hub id, folder or alias of the target; its weights are read."),
    verifier: str | None = typer.Option(None, help="Name of the target to write, if not the one given."),
    tokens: int = typer.Option(3, min=1, help="Tokens that the server is to draft each round."),
    layers: str = typer.Option("auto", help="Meaning of its layer ids: auto, boundary or output."),
    layer_ids: str | None = typer.Option(None, help="Other layer ids, such as 2,16,29."),
    vocabulary: str = typer.Option("auto", help="What its d2t holds: auto, offset or absolute."),
    norm_before_residual: bool | None = typer.Option(None, help="Say where the first residual starts."),
    norm_output: bool | None = typer.Option(None, help="Say whether the normed state is carried on."),
    final_norm: bool | None = typer.Option(None, help="Say whether a norm stands before the LM head."),
) -> None:
    """Write a head for vLLM; with other readings than its own, where `specdec doctor` found one."""
    for name, value, allowed in (
        ("--format", format, (None, "speculators", "vllm")),
        ("--layers", layers, ("auto", "boundary", "output")),
        ("--vocabulary", vocabulary, ("auto", "offset", "absolute")),
    ):
        if value not in allowed:
            raise ConfigError(f"{name}: expected {', '.join(filter(None, allowed))}, found {value!r}")
    ids = _ids(layer_ids)

    # Imported here, after what can be wrong without them: they take seconds.
    import specdec
    from specdec.heads import files
    from specdec.heads.base import Head, facts_of, public_name
    from specdec.heads.formats.conventions import Conventions
    from specdec.heads.formats.published import read_published
    from specdec.heads.formats.write import export_head
    from specdec.heads.load import open_head

    model: Any = specdec.load_model(target)[0] if target is not None else None
    folder = files.locate(head)
    found: Any
    if "kind" in files.read_json(folder):
        given = {
            "--layers": layers != "auto", "--layer-ids": ids is not None, "--vocabulary": vocabulary != "auto",
            "--norm-before-residual": norm_before_residual is not None, "--norm-output": norm_output is not None,
            "--final-norm": final_norm is not None,
        }  # fmt: skip
        if wrong := [name for name, asked in given.items() if asked]:
            raise ConfigError(f"{', '.join(wrong)}: a head of specdec's own has one reading; leave this out")
        found = open_head(folder)
    else:
        readings = Conventions(layers, ids, vocabulary, norm_before_residual, norm_output, final_norm)  # type: ignore[arg-type]
        found = read_published(folder, head, readings)
        for remark in found.remarks:
            typer.echo(f"unusual: {remark}", err=True)
    if not isinstance(found, Head):
        if model is None:
            raise ConfigError("a published head does not say everything about its target: give --target")
        found = found.head(facts_of(model))
    names: tuple[str, ...] = ()
    if model is not None:
        if problems := found.fit_problems(facts_of(model)):
            raise IncompatibleError(problems)
        found.bind(model.get_input_embeddings(), model.get_output_embeddings())
        names = (type(model).__name__,)
    name = verifier or found.config.target
    if not name and model is not None and "/" in (public := public_name(model)):
        name = public
    try:
        export_head(found, out, format, verifier=name, architectures=names, speculative_tokens=tokens)  # type: ignore[arg-type]
    except RuntimeError as error:  # it borrows what has to be written
        raise ConfigError(f"{error}; give --target") from error
    typer.echo(f"wrote {out}")


def _ids(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--layer-ids: expected numbers with commas, such as 2,16,29, found {text!r}") from None
