"""Config of the verifier `walk`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["WalkConfig"]


class WalkConfig(StrategyConfig):
    """Options of the rule that follows the target's own token through the draft: none."""

    type: Literal["walk"] = Field(default="walk", description="Name of the strategy.")
