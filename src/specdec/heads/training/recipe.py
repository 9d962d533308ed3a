"""Recipe: every number that decides what a training run does. Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["KINDS", "Kind", "Recipe"]

Kind = Literal["medusa", "eagle", "eagle3", "draft-model"]
KINDS: tuple[Kind, ...] = ("medusa", "eagle", "eagle3", "draft-model")


class Recipe(BaseModel):
    """How one head is trained. Defaults fit a head of a few million weights and 0.3 to 3 million tokens of answers.

    A run ends at the first of `steps`, `epochs` and `minutes` that it reaches; the learning rate falls until then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = Field(description="What is trained: medusa, eagle, eagle3 or draft-model.")
    steps: int | None = Field(default=None, ge=1, description="Most optimiser steps.")
    epochs: float | None = Field(default=None, gt=0, description="Most passes over the training data.")
    minutes: float | None = Field(
        default=None, gt=0, description="Most time spent on steps, in minutes; measuring and saving do not count."
    )
    batch_tokens: int = Field(default=2048, ge=16, description="Tokens of a batch, padding included, per device.")
    max_length: int = Field(default=2048, ge=8, description="Longer dialogues are cut at this many tokens.")
    seed: int = Field(default=0, ge=0, description="Seed of initial weights, order of batches and noise.")

    lr: float = Field(default=2e-3, gt=0, description="Highest learning rate of AdamW.")
    lr_end: float = Field(default=0.02, ge=0, le=1, description="Learning rate at the end, as a share of `lr`.")
    warmup: float = Field(default=0.02, ge=0, lt=1, description="Share of the run in which the learning rate rises.")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="Decay of AdamW's two moments.")
    weight_decay: float = Field(default=0.01, ge=0, description="Weight decay of AdamW; norms and biases have none.")
    clip: float = Field(default=1.0, gt=0, description="Largest norm of a gradient.")
    bf16: bool = Field(default=True, description="Multiply matrices in bfloat16; the weights are trained in float32.")

    labels: Literal["soft", "hard"] = Field(
        default="soft",
        description="What the token loss compares with: the target's law over the draft vocabulary, or the text.",
    )
    draft_vocab: int | None = Field(
        default=None, ge=2, description="Tokens that the head can propose, the most frequent of the data; null: all."
    )
    feature_weight: float = Field(default=1.0, ge=0, description="eagle: weight of the loss of predicted features.")
    token_weight: float = Field(default=0.1, ge=0, description="eagle: weight of the loss of predicted tokens.")
    noise: float = Field(
        default=0.1, ge=0, description="eagle: features are moved by uniform noise up to this share of their size."
    )
    unroll: int | None = Field(
        default=None,
        ge=1,
        le=8,
        description="eagle, eagle3: steps of a draft that are trained, each on the states of the one before; "
        "null: 1 for eagle, 3 for eagle3.",
    )
    unroll_from: float = Field(
        default=0.65, ge=0, le=1, description="Share of the run after which steps past the first are trained, too."
    )
    unroll_decay: float = Field(default=0.8, gt=0, description="Weight of each further step, by the one before.")
    head_decay: float = Field(default=0.8, gt=0, description="medusa: weight of each further head, by the one before.")

    held_out_tokens: int = Field(
        default=8192, ge=0, description="Tokens of held-out answers on which a run is measured as it goes."
    )
    measure_every: float = Field(default=0.2, gt=0, le=1, description="Share of the run between two measurements.")
    save_every: float = Field(default=0.2, gt=0, le=1, description="Share of the run between two checkpoints.")
    depth: int = Field(default=4, ge=1, le=16, description="Length of the drafts that measurements make.")

    @model_validator(mode="after")
    def _ends(self) -> Recipe:
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ValueError("a run needs an end: give steps, epochs or minutes")
        return self

    @property
    def unrolled(self) -> int:
        """Steps of a draft that are trained."""
        return self.unroll if self.unroll is not None else {"eagle3": 3}.get(self.kind, 1)

    def digest(self) -> str:
        """A short hash of what a resumed run must not change; it may go on for longer and be measured differently."""
        free = {"steps", "epochs", "minutes", "held_out_tokens", "measure_every", "save_every", "depth"}
        return hashlib.sha256(self.model_dump_json(exclude=free).encode()).hexdigest()[:16]
