"""Config of the verifier `typical`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["TypicalConfig"]


class TypicalConfig(StrategyConfig):
    """How probable a drafted token must be to the target to be kept."""

    type: Literal["typical"] = Field(default="typical", description="Name of the strategy.")
    epsilon: float = Field(
        default=0.09, ge=0, lt=1, description="A token of more than this probability is kept whatever the entropy."
    )
    delta: float = Field(
        default=0.3, ge=0, lt=1, description="Where the target is unsure, this times exp(-entropy) is enough."
    )
    bonus: Literal["draw", "argmax"] = Field(
        default="draw",
        description="The token after the kept ones: drawn from the target's law, or its most probable one, "
        "which is faster and further from that law.",
    )
