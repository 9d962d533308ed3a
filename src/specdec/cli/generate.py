"""`specdec generate`: text from a model, streamed while it is generated."""

from __future__ import annotations

import time

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

__all__ = ["generate"]


def generate(
    model: Model = None,
    drafter: DrafterName = None,
    config: ConfigFile = None,
    prompt: Prompt = None,
    max_new_tokens: int = typer.Option(256, min=1, help="Most tokens to generate."),
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    seed: Seed = None,
    chat: Chat = True,
    dtype: Dtype = None,
    stats: bool = typer.Option(False, "--stats", help="Print acceptance, guarantee and speed too."),
) -> None:
    """Generate text; without sampling options the most probable token is taken each time."""
    whole = decoder_config(model, drafter, config, dtype)
    text = prompt_text(prompt)
    sampling = sampling_options(temperature, top_p, top_k, seed)

    # Imported here, after everything that can be wrong without them: they take seconds.
    from transformers import TextStreamer

    from specdec.result import DecoderOutput

    decoder, tokenizer, inputs = composed(whole, text, chat)
    start = time.perf_counter()
    result = decoder.generate(
        **inputs,
        tokenizer=tokenizer,  # held against the drafter's, too
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        return_dict_in_generate=True,
        max_new_tokens=max_new_tokens,
        **sampling,
    )
    seconds = time.perf_counter() - start
    assert isinstance(result, DecoderOutput) and result.stats is not None
    tokens = result.sequences.shape[1] - inputs["input_ids"].shape[1]
    typer.echo(f"{result.stats.tokens_per_pass:.2f} tokens per pass", err=True)
    if stats:
        typer.echo(f"{result.stats.acceptance_rate:.2f} acceptance rate", err=True)
        typer.echo(f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tokens a second", err=True)
        typer.echo(f"guarantee: {result.guarantee}", err=True)
