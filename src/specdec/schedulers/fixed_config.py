"""Config of the scheduler `fixed`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["FixedConfig"]


class FixedConfig(StrategyConfig):
    """The same limits every round."""

    type: Literal["fixed"] = Field(default="fixed", description="Name of the strategy.")
    depth: int = Field(default=5, ge=0, description="Longest path that is drafted; 0 is plain decoding.")
    nodes: int | None = Field(
        default=None, ge=0, description="Most nodes of a draft; null: 64, or `depth` if that is more."
    )
