"""Config of the drafter `eagle3`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.drafters.eagle_config import HeadDrafterConfig

__all__ = ["Eagle3Config"]


class Eagle3Config(HeadDrafterConfig):
    """An EAGLE-3 head that drafts dynamic trees or chains."""

    type: Literal["eagle3"] = Field(default="eagle3", description="Name of the strategy.")
    shape: Literal["tree", "chain"] = Field(default="tree", description="What is drafted: dynamic trees, or chains.")
    top_k: int = Field(default=8, ge=1, description="Trees: nodes expanded at each depth, and children of each.")
    nodes: int = Field(default=60, ge=1, description="Trees: most nodes, if the budget allows them.")
    sampled: bool = Field(default=False, description="Trees: draw trees without replacement where the target samples.")
