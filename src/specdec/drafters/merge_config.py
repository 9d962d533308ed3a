"""Config of the drafter `merge`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import DrafterField, StrategyConfig

__all__ = ["MergeConfig"]


class MergeConfig(StrategyConfig):
    """Which drafters put their candidates into one tree."""

    type: Literal["merge"] = Field(default="merge", description="Name of the strategy.")
    drafters: tuple[DrafterField, ...] = Field(
        min_length=1,
        description="Drafters, each a name or a config; those that often have no guess first, as what one leaves of "
        "the budget goes to the next.",
    )
