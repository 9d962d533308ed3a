"""`specdec certify`: what a decoder's text is worth on one's own model and prompts."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from specdec.cli.decoding import parse_drafter
from specdec.core.config import TargetConfig
from specdec.core.errors import InvalidPromptError
from specdec.plugins.manager import discover

__all__ = ["certify"]

_PROMPTS = (
    "Write one sentence about the sea.",
    "Correct the spelling: The cat sleeps undr the table and the dog sleeps undr the bench.",
    "List three fruits, then list them again in reverse order.",
    "What is twelve times eleven? Explain in one sentence.",
)


def certify(
    model: str = typer.Argument(help="Hub id, folder, .gguf file or alias of the target."),
    drafter: str = typer.Option("prompt-lookup", metavar="NAME[:ARG]", help="Drafter, with its model or checkpoint."),
    prompts: Path | None = typer.Option(None, help="A prompt a line, or JSON lines with `turns` or `prompt`."),
    max_new_tokens: int = typer.Option(48, min=2, help="Most tokens to generate for a prompt."),
    dtype: str | None = typer.Option(None, help="Number type of the weights, such as bfloat16."),
    exactness: str = typer.Option("algorithmic", help="Exactness mode of the decoder."),
    seed: int = typer.Option(7, help="Seed of the sampling."),
    chat: bool = typer.Option(True, "--chat/--no-chat", help="Use the tokenizer's chat template, if any."),
    out: Path | None = typer.Option(None, help="Write the report as JSON here, too."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compare decoding with a drafter to plain decoding on prompts; status 1 if the claim fails."""
    texts = _read(prompts) if prompts is not None else list(_PROMPTS)
    manager = discover()
    config = manager.registry.get("drafter", parse_drafter(drafter)["type"]).load_config()(**parse_drafter(drafter))

    # Imported here because the command line starts without torch.
    from rich.console import Console

    from specdec import load_model
    from specdec.testing.certify import certify as run

    target = TargetConfig(model=model, dtype=dtype)
    network, tokenizer = load_model(target.model, dtype=target.dtype)
    encoded = []
    for text in texts:
        if chat and getattr(tokenizer, "chat_template", None):
            turn = [{"role": "user", "content": text}]
            ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        else:
            ids = tokenizer(text, return_tensors="pt")
        encoded.append(ids["input_ids"].to(network.device))
    with Console(stderr=True).status("certifying") as status:
        certificate = run(
            network,
            manager.create("drafter", config),
            encoded,
            max_new_tokens=max_new_tokens,
            seed=seed,
            exactness=exactness,
            name=model,
            progress=lambda text: status.update(text),
        )
    typer.echo(certificate.to_json() if as_json else str(certificate))
    if out is not None:
        out.write_text(certificate.to_json() + "\n", encoding="utf-8")
    if not certificate.ok:
        raise typer.Exit(1)


def _read(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise InvalidPromptError(f"--prompts {path}: {error.strerror}") from error
    if not lines:
        raise InvalidPromptError(f"--prompts {path}: the file holds no prompt")
    if not lines[0].lstrip().startswith("{"):
        return lines
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            found.append(str(entry["turns"][0] if "turns" in entry else entry["prompt"]))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InvalidPromptError(
                f"--prompts {path}, line {number}: expected a JSON object with `prompt` or `turns`"
            ) from error
    return found
