"""Config of the drafter `draft-model`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specdec.core.config import Dtype, StrategyConfig

__all__ = ["DraftModelConfig"]


class DraftModelConfig(StrategyConfig):
    """Which smaller model drafts, and with which sampling."""

    type: Literal["draft-model"] = Field(default="draft-model", description="Name of the strategy.")
    model: str = Field(min_length=1, description="Hub id, folder, .gguf file or alias of the draft model.")
    dtype: Dtype | None = Field(default=None, description="Number type of the weights; null: as stored.")
    tree: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        default=None, min_length=1, description="Most children of a node by depth, as in [3, 2, 1]; null: a chain."
    )
    expand: int | None = Field(
        default=None,
        ge=1,
        description="Nodes expanded at each depth, and children of each, of trees that follow the "
        "draft model's confidence; null: none of these.",
    )
    temperature: float | None = Field(
        default=None, ge=0, description="Temperature of the draft model; null: that of the target."
    )
    top_k: int | None = Field(
        default=None, ge=1, description="Draft from the k most probable tokens; null: as the target samples."
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Draft from this much probability; null: as the target samples."
    )
    trust_remote_code: bool = Field(default=False, description="Run model code that comes with the weights.")
    revision: str | None = Field(default=None, description="Branch, tag or commit on the hub.")

    @model_validator(mode="after")
    def _check_shape(self) -> DraftModelConfig:
        if self.tree is not None and self.expand is not None:
            raise ValueError("tree and expand exclude each other: trees of draws, or trees of the likeliest tokens")
        return self
