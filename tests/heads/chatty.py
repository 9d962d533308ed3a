"""A tokenizer of bytes with a chat template, and tiny random targets that talk in it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.distill import Distiller
from specdec.heads.shards import Dialogue, ShardReader, ShardWriter

TEMPLATE = (
    "{% for message in messages %}<|s|>{{ message['role'] }}\n{{ message['content'] }}<|e|>{% endfor %}"
    "{% if add_generation_prompt %}<|s|>assistant\n{% endif %}"
)
SPECIAL = ("<|e|>", "<|s|>")  # ids 0 and 1


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    """One token a byte, and two special ones."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(BPE({word: index for index, word in enumerate((*SPECIAL, *letters))}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|e|>", bos_token="<|s|>", pad_token="<|e|>")
    made.chat_template = TEMPLATE
    return made


def target(**options: Any) -> Any:
    """A random model in float32 with grouped key heads; a new one each time, since making data may change it."""
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    kind, made = (MistralConfig, MistralForCausalLM) if "sliding_window" in options else (LlamaConfig, LlamaForCausalLM)
    config = kind(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=1,
        eos_token_id=0,
        pad_token_id=0,
        **{"initializer_range": 0.25, **options},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return made(config).eval()


def save(folder: Path) -> Path:
    """The target and its tokenizer in a folder, as `load_model` takes it."""
    target().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def writer(folder: Path) -> ShardWriter:
    about = {
        "model": "chatty",
        "tokenizer": tokenizer_fingerprint(tokenizer()),
        "vocab_size": len(tokenizer()),
        "settings": {},
    }
    return ShardWriter(folder, about)


def distiller(folder: Path, recipe: Any, slots: int, model: Any = None, **options: Any) -> Distiller:
    options = {"longest": 400, "shard_tokens": 200, **options}
    return Distiller.of(model or target(), tokenizer(), recipe, writer(folder), slots=slots, **options)


def made(folder: Path) -> dict[int, Dialogue]:
    """All dialogues of a folder by number; each is there once."""
    dialogues = list(ShardReader(folder))
    by_number = {dialogue.number: dialogue for dialogue in dialogues}
    assert len(by_number) == len(dialogues)
    return by_number
