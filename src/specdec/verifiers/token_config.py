"""Config of the verifier `token`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["TokenConfig"]


class TokenConfig(StrategyConfig):
    """Options of the rule that judges sampled tokens one at a time: none."""

    type: Literal["token"] = Field(default="token", description="Name of the strategy.")
