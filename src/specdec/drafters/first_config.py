"""Config of the drafter `first`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import DrafterField, StrategyConfig

__all__ = ["FirstConfig"]


class FirstConfig(StrategyConfig):
    """Which drafters are asked, and in which order."""

    type: Literal["first"] = Field(default="first", description="Name of the strategy.")
    drafters: tuple[DrafterField, ...] = Field(
        min_length=1, description="Drafters in the order in which they are asked; each a name or a config."
    )
