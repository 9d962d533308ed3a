"""Config of the verifier `traversal`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["TraversalConfig"]


class TraversalConfig(StrategyConfig):
    """Options of the rule that judges a sampled tree from its leaves up: none."""

    type: Literal["traversal"] = Field(default="traversal", description="Name of the strategy.")
