"""Config of the verifier `block`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["BlockConfig"]


class BlockConfig(StrategyConfig):
    """Options of the rule that judges a sampled chain as a whole: none."""

    type: Literal["block"] = Field(default="block", description="Name of the strategy.")
