"""What the commands that decode one prompt share: their options, and the decoder and inputs that these stand for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec.core.config import DecoderConfig, StrategyConfig, TargetConfig, load_config
from specdec.core.errors import ConfigError, InvalidPromptError
from specdec.plugins.manager import discover

__all__ = [
    "Chat",
    "ConfigFile",
    "DrafterName",
    "Dtype",
    "Model",
    "Prompt",
    "Seed",
    "Temperature",
    "TopK",
    "TopP",
    "composed",
    "decoder_config",
    "parse_drafter",
    "prompt_text",
    "sampling_options",
]

Model = Annotated[str | None, typer.Option(help="Hub id, folder, .gguf file or alias of the target.")]
DrafterName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:ARG]", help="Drafter, with its model, checkpoint or drafters; prompt-lookup if not given."
    ),
]
ConfigFile = Annotated[Path | None, typer.Option(help="Decoder config, YAML or JSON, instead of --drafter.")]
Prompt = Annotated[str | None, typer.Option(help="The prompt; read from standard input if not given.")]
Temperature = Annotated[float | None, typer.Option(min=0.0, help="Sample at this temperature; 0 is greedy.")]
TopP = Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Sample from this much probability.")]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling.")]
Dtype = Annotated[str | None, typer.Option(help="Number type of the weights, such as bfloat16.")]
Chat = Annotated[bool, typer.Option("--chat/--no-chat", help="Use the tokenizer's chat template, if any.")]

# Options that `NAME:ARG` can mean, in this order.
_ARGUMENTS = ("model", "checkpoint")
_REVISION = re.compile(r"([\w.-]+/[\w.-]+)@([\w./-]+)")


def parse_drafter(text: str) -> dict[str, Any]:
    """The config that `NAME[:ARG]` stands for.

    ARG is the model or checkpoint of the drafter, or the drafters that it wraps: `merge:prompt-lookup,draft-model:ID`.
    Of a hub id a revision can be named, as in `eagle3:owner/name@main`.
    """
    name, colon, argument = text.partition(":")
    if not colon:
        return {"type": name}
    fields = discover().registry.get("drafter", name).load_config().model_fields
    if "drafters" in fields:
        return {"type": name, "drafters": [parse_drafter(part.strip()) for part in argument.split(",")]}
    option = next((option for option in _ARGUMENTS if option in fields), None)
    if option is None:
        raise ConfigError(
            f"--drafter {text}: drafter {name!r} takes neither a model nor a checkpoint; "
            f"write --drafter {name}, or give its options in a file by --config"
        )
    pinned = _REVISION.fullmatch(argument)
    if pinned and "revision" in fields and not Path(argument).exists():
        return {"type": name, option: pinned[1], "revision": pinned[2]}
    return {"type": name, option: argument}


def decoder_config(model: str | None, drafter: str | None, config: Path | None, dtype: str | None) -> DecoderConfig:
    """The config that these options of a command stand for; raises ConfigError where they do not fit together."""
    if config is not None and drafter is not None:
        raise ConfigError("--drafter and --config both name the drafter; give one of them")
    if config is None:
        if model is None:
            raise ConfigError("no target: give --model with a hub id, folder or alias, or --config with a target")
        return load_config(
            {"target": {"model": model, "dtype": dtype}, "drafter": parse_drafter(drafter or "prompt-lookup")}
        )
    whole = load_config(config)
    target: StrategyConfig | None = whole.target
    if model is not None:
        target = load_config({"target": {"model": model, "dtype": dtype}, "drafter": "none"}).target
    elif dtype is not None and isinstance(target, TargetConfig):
        target = TargetConfig.model_validate({**target.model_dump(), "dtype": dtype})
    if not isinstance(target, TargetConfig):
        raise ConfigError(f"{config}: the config has no target of type 'hf'; add one or give --model")
    return whole.model_copy(update={"target": target})


def prompt_text(prompt: str | None) -> str:
    """The prompt, from standard input where none is given; raises InvalidPromptError where it is empty."""
    if prompt is None:
        if sys.stdin.isatty():
            raise InvalidPromptError("no prompt: give --prompt, or write it to standard input")
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise InvalidPromptError("the prompt is empty; give --prompt with a text, or write one to standard input")
    return prompt


def sampling_options(
    temperature: float | None, top_p: float | None, top_k: int | None, seed: int | None
) -> dict[str, Any]:
    """Options of `generate`; without any of these decoding is greedy."""
    given = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    if temperature == 0 or all(value is None for value in given.values()):
        return {"do_sample": False}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if seed is not None:
        options["seed"] = seed
    return {"do_sample": True, **options}


def composed(whole: DecoderConfig, text: str, chat: bool) -> tuple[Any, Any, dict[str, Any]]:
    """Load what the config names: the decoder, its tokenizer, and the prompt as inputs on the model's device.

    whole: of `decoder_config`. Raises ConfigError where the target has no tokenizer.
    """
    import specdec

    assert isinstance(whole.target, TargetConfig)
    network, tokenizer = _load(whole.target)
    decoder = specdec.Decoder.from_config(whole, target=network)
    inputs = {key: value.to(network.device) for key, value in _encode(tokenizer, text, chat).items()}
    return decoder, tokenizer, inputs


def _load(target: TargetConfig) -> tuple[Any, Any]:
    """Model and tokenizer; raises ConfigError where there is no tokenizer."""
    import specdec

    more: dict[str, Any] = {}
    if target.trust_remote_code:
        more["trust_remote_code"] = True
    if target.revision is not None:
        more["revision"] = target.revision
    network, tokenizer = specdec.load_model(target.model, dtype=target.dtype, **more)
    if tokenizer is None:
        raise ConfigError(f"{target.model}: the model has no tokenizer, which generating text needs")
    return network, tokenizer


def _encode(tokenizer: Any, text: str, chat: bool) -> dict[str, Any]:
    """A prompt as inputs of `generate`, in the tokenizer's chat template where there is one and it is wanted."""
    if chat and getattr(tokenizer, "chat_template", None):
        encoded = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
    else:
        encoded = tokenizer(text, return_tensors="pt")
    return {key: encoded[key] for key in ("input_ids", "attention_mask")}
