"""Config of the verifier `smc`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["SMCConfig"]


class SMCConfig(StrategyConfig):
    """How many particles carry one text, and when and how they are resampled."""

    type: Literal["smc"] = Field(default="smc", description="Name of the strategy.")
    particles: int = Field(default=8, ge=1, le=1024, description="Texts that are drafted side by side and weighed.")
    threshold: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Resample when the effective number of particles falls below this share of them; 0: never.",
    )
    resampling: Literal["systematic", "stratified", "multinomial"] = Field(
        default="systematic", description="How ancestors are drawn; systematic draws vary least."
    )
    power: float = Field(
        default=1.0, gt=0, description="Aim at the target's law of whole texts to this power; 1 is the law itself."
    )
