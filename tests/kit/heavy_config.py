"""The config of a plugin that imports torch where it should only declare."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from specdec.plugins import StrategyConfig


class HeavyConfig(StrategyConfig):
    """A config in a heavy module."""

    type: Literal["heavy"] = Field(default="heavy", description="Name of the strategy.")
    fill: float = Field(default=float(torch.ones(())), description="Any number.")
