"""A small draft model for a target: an ordinary Llama of a few layers, to be distilled from it."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.errors import CheckpointError
from specdec.heads.base import facts_of

__all__ = ["new_draft_model", "save_draft_model"]

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def new_draft_model(
    target: nn.Module,
    *,
    layers: int = 3,
    hidden_size: int = 128,
    intermediate_size: int | None = None,
    attention_heads: int = 4,
    key_value_heads: int = 2,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Any:
    """An untrained LlamaForCausalLM with the tokens of `target`: same vocabulary, same context, one tied embedding.

    intermediate_size: of the MLPs, by default four times `hidden_size`. dtype: to train in. The embedding, most of the
    model, begins as the principal components of the target's LM head, so that even a token that training never shows
    lies near those like it; the layers begin at random, by `seed`.

    The defaults make 7.0 million weights, 14 MB in bfloat16, for the 49,152 tokens of SmolLM2.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    facts = facts_of(target)
    theirs: Any = target.config.get_text_config(decoder=True)  # type: ignore[union-attr,operator]
    config = LlamaConfig(
        vocab_size=facts.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size if intermediate_size is None else intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=attention_heads,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=getattr(theirs, "max_position_embeddings", None) or 2048,
        tie_word_embeddings=True,
        **{name: getattr(theirs, name, None) for name in _SPECIAL},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(dtype)
    rows: Tensor = target.get_output_embeddings().weight  # type: ignore[operator]
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        found = principal(rows.detach().float(), hidden_size)
        embedding[:, : found.shape[1]] = found.to(embedding)
    return model.eval()


def principal(rows: Tensor, size: int) -> Tensor:
    """`[n, d]` to `[n, up to size]`: the part of `rows` that keeps the most of their products with each other."""
    _, vectors = torch.linalg.eigh(rows.T @ rows)  # ascending
    return rows @ vectors[:, -size:].flip(1)


def save_draft_model(
    model: Any, folder: str | os.PathLike[str], tokenizer: Any, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write model and tokenizer as an ordinary Hugging Face folder, for `DraftModel` and `load_model`.

    dtype: of the weights in the file; the model stays as it is. An earlier save stays whole if writing fails.
    """
    path = Path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        stored = copy.deepcopy(model).to(dtype)
        stored.config.name_or_path = ""  # not the folder of whoever trained it
        stored.save_pretrained(made)
        tokenizer.save_pretrained(made)
        path.mkdir(exist_ok=True)
        for file in sorted(made.iterdir()):
            os.replace(file, path / file.name)
    except Exception as error:  # safetensors has no type of its own for a full disk
        raise CheckpointError(
            f"the draft model could not be saved to {path}: {error}. What was saved there before is unchanged"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
