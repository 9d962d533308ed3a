"""Config of the verifier `greedy`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["GreedyConfig"]


class GreedyConfig(StrategyConfig):
    """Options of the rule for temperature 0: none."""

    type: Literal["greedy"] = Field(default="greedy", description="Name of the strategy.")
