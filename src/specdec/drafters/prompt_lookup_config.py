"""Config of the drafter `prompt-lookup`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from specdec.core.config import StrategyConfig

__all__ = ["PromptLookupConfig"]


class PromptLookupConfig(StrategyConfig):
    """How the last tokens are looked up in the text so far, and how much of what followed is copied."""

    type: Literal["prompt-lookup"] = Field(default="prompt-lookup", description="Name of the strategy.")
    max_ngram: int = Field(default=3, ge=1, description="Longest run of last tokens that is looked up.")
    min_ngram: int = Field(default=1, ge=1, description="Shortest run of last tokens that is looked up.")
    match: Literal["recent", "first"] = Field(
        default="recent", description="Which earlier occurrence is copied from, where there are several."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="Most tokens copied in a round; null: what the scheduler allows."
    )

    @model_validator(mode="after")
    def _ordered(self) -> PromptLookupConfig:
        if self.min_ngram > self.max_ngram:
            raise ValueError(
                f"min_ngram is {self.min_ngram} and max_ngram is {self.max_ngram}; "
                "expected min_ngram to be at most max_ngram"
            )
        return self
