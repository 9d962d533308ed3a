"""Tiny models whose text is known, a tokenizer of single characters, and the drafters that most tests go through."""

from __future__ import annotations

import copy
import string
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.core.interfaces import Drafter, StatelessDrafter
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row
from specdec.drafters import DraftModel, NoDraft, PromptLookup
from specdec.schedulers import Adaptive, Fixed

VOCAB = 64
PROMPT = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
RAGGED = torch.tensor(
    [[0, 0, 0, 1, 2, 3], [0, 0, 0, 0, 5, 6], [9, 8, 7, 6, 5, 4], [0, 0, 0, 0, 0, 11], [0, 1, 2, 3, 1, 2]]
)
RAGGED_MASK = torch.tensor(
    [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1]]
)


def llama(seed: int, layers: int = 2, vocab: int = VOCAB, spread: float = 0.2, **options: Any) -> Any:
    """A random Llama in float32 without special ids, so that its text never ends of itself."""
    given = {"max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, **options}
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=spread,
        **given,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def noisy(model: Any, amount: float = 0.02) -> Any:
    """A copy that agrees with `model` on most tokens, not on all."""
    other = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for weights in other.parameters():
            weights += torch.randn_like(weights) * amount
    return other


@lru_cache
def target() -> Any:
    """The target of most tests; nobody may change it."""
    return llama(0)


@lru_cache
def draft(kind: str) -> Any:
    """A draft model of `target()`: "foreign", "noisy" or the target "self"."""
    if kind == "self":
        return target()
    return llama(1, layers=1) if kind == "foreign" else noisy(target())


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDraft,
    "prompt-lookup": PromptLookup,
    "foreign": lambda: DraftModel(draft("foreign")),
    "noisy": lambda: DraftModel(draft("noisy")),
    "self": lambda: DraftModel(draft("self")),
}
SCHEDULERS: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "fixed-0": lambda: Fixed(0),
    "fixed-1": lambda: Fixed(1),
    "fixed-5": lambda: Fixed(5),
    "adaptive": Adaptive,
}


def markov(successor: Sequence[int], **options: Any) -> Any:
    """A Llama without attention whose greedy text follows `successor`: token i is followed by `successor[i]`."""
    size = len(successor)
    # Without a pad id: plain `generate` would take it for padding inside a prompt.
    given = {
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **options,
    }
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=False,
        **given,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        model.model.norm.weight.fill_(1.0)
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight[torch.tensor(successor), torch.arange(size)] = 1.0
    return model


LETTERS = string.ascii_lowercase + " .!?AB"


@lru_cache
def tokenizer(rotated: int = 0, extra: int = 0) -> Any:
    """One token a character of `LETTERS`, ids rotated by `rotated`; `extra` adds tokens behind."""
    order = LETTERS[rotated:] + LETTERS[:rotated]
    vocabulary = {letter: index for index, letter in enumerate(order)}
    vocabulary |= {f"<extra{number}>": len(order) + number for number in range(extra)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


def encode(text: str) -> torch.Tensor:
    """`[1, length]` ids of `text` for `tokenizer()`."""
    return torch.tensor([[LETTERS.index(letter) for letter in text]])


@lru_cache
def cyclic() -> Any:
    """A model that spells the letters a to l over and over; every other letter leads to "a"."""
    return markov([(index + 1) % 12 if index < 12 else 0 for index in range(len(LETTERS))])


class Saying(StatelessDrafter):
    """Drafts what `say(row, budget)` returns: ids, or a Draft."""

    name = "saying"

    def __init__(self, say: Callable[[Row, Budget], Any]) -> None:
        self.say = say

    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        said = self.say(row, budget)
        return said if isinstance(said, Draft) or said is None else Draft.point(list(said)[: budget.depth])


class RandomDraft(StatelessDrafter):
    """Drafts random ids from its own stream."""

    name = "random"

    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        uniform = torch.ones(budget.depth, context.vocab_size) / context.vocab_size
        return Draft.point(rng.categorical(uniform)) if budget.depth else Draft.empty()


def oracle(texts: torch.Tensor, wrong_every: int = 0) -> Saying:
    """Drafts the true continuation found in `texts` `[rows, length]`, each `wrong_every`-th token off by one."""

    def say(row: Row, budget: Budget) -> list[int]:
        text = texts[row.index, -(texts.shape[1] - len(row.padding)) :].tolist()
        ahead = text[len(row.tokens) : len(row.tokens) + budget.depth]
        if wrong_every:
            at = len(row.tokens)
            ahead = [(t + 1) % VOCAB if (at + i) % wrong_every == 0 else t for i, t in enumerate(ahead)]
        return ahead

    return Saying(say)


def decoder(
    drafter: str | Drafter = "noisy", scheduler: str | Any = "fixed-5", model: Any = None, **options: Any
) -> Decoder:
    """A decoder for `target()` from the names of `DRAFTERS` and `SCHEDULERS`."""
    made = DRAFTERS[drafter]() if isinstance(drafter, str) else drafter
    effort = SCHEDULERS[scheduler]() if isinstance(scheduler, str) else scheduler
    return Decoder(target() if model is None else model, made, scheduler=effort, **options)


def plain(ids: torch.Tensor = PROMPT, model: Any = None, **kwargs: Any) -> Any:
    """What plain `generate` returns; greedy unless `do_sample` says otherwise."""
    return (target() if model is None else model).generate(ids, **{"do_sample": False, **kwargs})
