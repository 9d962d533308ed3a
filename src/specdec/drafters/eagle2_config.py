"""Config of the drafter `eagle2`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.drafters.eagle_config import HeadDrafterConfig

__all__ = ["Eagle2Config"]


class Eagle2Config(HeadDrafterConfig):
    """An EAGLE head that drafts dynamic trees."""

    type: Literal["eagle2"] = Field(default="eagle2", description="Name of the strategy.")
    top_k: int = Field(default=8, ge=1, description="Nodes that are expanded at each depth, and children of each.")
    nodes: int = Field(default=60, ge=1, description="Most nodes of a tree, if the budget allows them.")
    sampled: bool = Field(default=False, description="Draw trees without replacement where the target samples.")
