"""Configs of draft heads: what a head is and which model it was made for. Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["FORMAT", "HeadConfig", "TargetFacts", "tokenizer_fingerprint"]

FORMAT = 1
"""Version of the layout of a saved head; a reader refuses one that it does not know."""

_ADDED = 1024  # tokens that fine-tuning may have added to the target's vocabulary since


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The sizes of a model that a head has to fit.

    hidden_size: width of the state that the LM head reads. layers: number of decoder layers.
    """

    name: str
    hidden_size: int
    vocab_size: int
    layers: int


class HeadConfig(BaseModel):
    """What every kind of head says of itself; a subclass narrows `kind` to a `Literal` and adds its own sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str = Field(description="Kind of the head, which decides the class that reads it.")
    format_version: Literal[1] = Field(default=1, description="Version of this layout.")
    target: str = Field(default="", description="Name of the model that the head was made for.")
    target_hidden_size: int = Field(ge=1, description="Width of the state that the target's LM head reads.")
    target_vocab_size: int = Field(ge=1, description="Rows of the target's LM head.")
    target_layers: int = Field(ge=1, description="Number of the target's decoder layers.")
    draft_vocab_size: int | None = Field(
        default=None, ge=1, description="Tokens that the head can propose, stored as `draft_ids`; null: all."
    )
    tokenizer: str | None = Field(
        default=None, description="Fingerprint of the tokenizer of the training data; null: not known."
    )

    def fit_problems(self, target: TargetFacts) -> list[str]:
        """Reasons why a head of this config cannot serve `target`, each with what was expected and what was found.

        Tokens that were added to the target's vocabulary after the head was made are allowed: it never guesses them.
        """
        made = f" (made for {self.target})" if self.target else ""
        pairs = [
            ("a hidden size of", self.target_hidden_size, target.hidden_size),
            ("a number of layers of", self.target_layers, target.layers),
        ]
        added = target.vocab_size - self.target_vocab_size
        if not 0 <= added <= min(_ADDED, self.target_vocab_size // 20):
            pairs.insert(1, ("a vocabulary of", self.target_vocab_size, target.vocab_size))
        return [
            f"the {self.kind} head{made} expects {what} {expected}, but {target.name} has {found}; use a head that was "
            "trained for this model"
            for what, expected, found in pairs
            if expected != found
        ]

    def tokenizer_problems(self, tokenizer: Any) -> list[str]:
        """Why token ids mean something else to this tokenizer; empty if they do not, or where nothing is known."""
        if tokenizer is None or self.tokenizer is None or (found := tokenizer_fingerprint(tokenizer)) == self.tokenizer:
            return []
        return [
            f"the {self.kind} head was trained on ids of a tokenizer with fingerprint {self.tokenizer}, but the "
            f"target's has {found}: the same id is another token. Use a head trained for this tokenizer"
        ]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of a tokenizer's vocabulary, that of shards of its ids: equal where ids mean the same tokens."""
    vocabulary = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:32]


def checked_ids(ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Target ids of a trimmed draft vocabulary, sorted; raises ValueError for repeats and ids that do not exist."""
    kept = tuple(sorted(ids))
    if not kept:
        raise ValueError("a draft vocabulary needs at least one token, found none")
    if kept[0] < 0 or kept[-1] >= vocab_size:
        bad = kept[0] if kept[0] < 0 else kept[-1]
        raise ValueError(f"draft id {bad} is outside the target's vocabulary of {vocab_size}")
    if len(set(kept)) < len(kept):
        bad = next(a for a, b in pairwise(kept) if a == b)
        raise ValueError(f"draft id {bad} occurs twice: every token of a draft vocabulary stands for one id")
    return kept
