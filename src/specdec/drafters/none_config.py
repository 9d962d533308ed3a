"""Config of the drafter `none`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["NoDraftConfig"]


class NoDraftConfig(StrategyConfig):
    """Plain decoding; it has no options."""

    type: Literal["none"] = Field(default="none", description="Name of the strategy.")
