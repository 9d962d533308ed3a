"""A tiny target that has learnt one sequence by heart, and shards of what it says."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.shards import Dialogue, ShardWriter

VOCAB, ALPHABET, PERIOD = 40, 10, 30


class Tokenizer:
    """What training asks of a tokenizer: its vocabulary."""

    def __init__(self, word: str = "t") -> None:
        self.word = word

    def get_vocab(self) -> dict[str, int]:
        return {f"{self.word}{i}": i for i in range(VOCAB)}

    def save_pretrained(self, folder: Path) -> None:
        """Nothing of it is read again."""


def circle() -> list[int]:
    """The sequence, which goes on in a circle: of so few tokens that the next one depends on more than the last."""
    chance = torch.Generator().manual_seed(5)
    return torch.randint(VOCAB - ALPHABET, VOCAB, (PERIOD,), generator=chance).tolist()


@lru_cache(maxsize=1)
def target() -> Any:
    """A Llama of 3 layers in float32 that goes on with the circle from any 6 tokens of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        ring = torch.tensor(circle() * 3)
        for _ in range(120):
            starts = torch.randint(0, PERIOD, (16,))
            ids = torch.stack([ring[start : start + 24] for start in starts.tolist()])
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.eval()


def write_shards(folder: Path, shards: int = 2, size: int = 24, tokenizer: Any = None) -> Path:
    """Shards of dialogues: a prompt of 6 to 9 tokens of the circle, and the answer that goes on from there."""

    about = {
        "model": "memorised",
        "tokenizer": tokenizer_fingerprint(tokenizer or Tokenizer()),
        "vocab_size": VOCAB,
        "settings": {},
    }
    writer = ShardWriter(folder, about)
    ring, number = circle() * 4, 0
    for _ in range(shards):
        dialogues = []
        for _ in range(size):
            start, prompt = (number * 7) % PERIOD, 6 + number % 4
            length = prompt + 10 + number % 8
            dialogues.append(
                Dialogue(number, "circle", tuple(ring[start : start + length]), ((prompt, length),), greedy=True)
            )
            number += 1
        writer.write(dialogues, {})
    return folder
