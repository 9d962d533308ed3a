"""Config of the scheduler `adaptive`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["AdaptiveConfig"]


class AdaptiveConfig(StrategyConfig):
    """Limits of the effort, and how much slower than plain decoding it may ever be."""

    type: Literal["adaptive"] = Field(default="adaptive", description="Name of the strategy.")
    max_depth: int = Field(default=16, ge=0, description="Longest path that is ever drafted.")
    max_nodes: int = Field(default=64, ge=0, description="Most nodes that a draft ever has.")
    margin: float = Field(
        default=0.02, ge=0, lt=1, description="Share of plain decoding's time that drafting may cost."
    )
