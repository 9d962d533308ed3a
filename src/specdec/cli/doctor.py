"""`specdec doctor`: whether a checkpoint is read as it was trained, by how often it is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["doctor"]

_PROMPTS = (
    "Explain how a sundial tells the time.",
    "Write a short letter to a neighbour about a lost cat.",
    "Which tools does a carpenter use most, and for what?",
    "Describe a walk through a harbour town in autumn.",
)
_MARGIN = 0.05  # by which another reading has to be better


def doctor(
    target: str = typer.Argument(help="Hub id, folder or alias of the target."),
    checkpoint: str = typer.Argument(help="Folder or hub id of the published head."),
    tokens: int = typer.Option(48, min=4, help="Tokens that the target writes for each text."),
    texts: int = typer.Option(4, min=1, max=len(_PROMPTS), help="Texts that the target writes."),
    dtype: str | None = typer.Option(None, help="Number type of the target's weights, such as bfloat16."),
    seed: int = typer.Option(0, help="Seed of the texts."),
) -> None:
    """Measure a head on texts of its target, under every way to read its layer ids, norms and vocabulary."""
    import specdec
    from specdec.heads.formats.doctor import diagnose

    model, tokenizer = specdec.load_model(target, dtype=dtype)
    written_texts, starts = _written(model, tokenizer, texts, tokens, seed)
    found = diagnose(model, checkpoint, written_texts, starts)
    typer.echo(f"{texts} texts, {tokens} tokens each; share of guesses that are the target's:")
    width = max(len(reading.label) for reading in found)
    for reading in found:
        said = reading.problem or f"first {reading.first:.3f}   second {reading.second:.3f}"
        typer.echo(f"  {reading.label:{width}}  {said}")
    written = next(reading for reading in found if reading.label == "as written")
    best = found[0]
    if best.problem:
        typer.echo("no reading is possible: this is not a head for this target")
        raise typer.Exit(1)
    if written.problem or best.first - written.first > _MARGIN or best.second - written.second > _MARGIN:
        options = _options(best.conventions)
        typer.echo(f"best: {best.label}. Write it so: specdec export {checkpoint} OUT --target {target} {options}")
        raise typer.Exit(1)
    typer.echo("best: as written")


def _written(model: Any, tokenizer: Any, texts: int, tokens: int, seed: int) -> tuple[list[Tensor], list[int]]:
    """Texts `[tokens]` that the model wrote, and where each begins to be its own."""
    import torch

    if tokenizer is None:
        chance = torch.Generator().manual_seed(seed)
        prompts = torch.randint(0, model.get_output_embeddings().weight.shape[0], (texts, 4), generator=chance).tolist()
    else:
        prompts = [_encoded(tokenizer, prompt) for prompt in _PROMPTS[:texts]]
    written = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for prompt in prompts:
            ids = torch.tensor([prompt], device=model.device)
            options = {"do_sample": True, "temperature": 0.7, "max_new_tokens": tokens, "min_new_tokens": tokens}
            written.append(model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0])
    return written, [len(prompt) for prompt in prompts]


def _encoded(tokenizer: Any, prompt: str) -> list[int]:
    if getattr(tokenizer, "chat_template", None):
        said = [{"role": "user", "content": prompt}]
        return list(tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=True)["input_ids"])
    return list(tokenizer(prompt).input_ids)


def _options(conventions: Any) -> str:
    options = []
    if conventions.layers != "auto":
        options.append(f"--layers {conventions.layers}")
    if conventions.layer_ids is not None:
        options.append(f"--layer-ids {','.join(map(str, conventions.layer_ids))}")
    if conventions.vocabulary != "auto":
        options.append(f"--vocabulary {conventions.vocabulary}")
    for name in ("norm_before_residual", "norm_output", "final_norm"):
        value = getattr(conventions, name)
        if value is not None:
            options.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
    return " ".join(options)
