"""Config of the drafter `eagle`, and the options that all drafters with an EAGLE head share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["EagleConfig", "HeadDrafterConfig"]


class HeadDrafterConfig(StrategyConfig):
    """Which trained head drafts, and how deep."""

    checkpoint: str = Field(min_length=1, description="Folder or hub id of the head.")
    depth: int = Field(default=6, ge=1, description="Longest path that is drafted, if the budget allows it.")
    revision: str | None = Field(default=None, description="Branch, tag or commit on the hub.")


class EagleConfig(HeadDrafterConfig):
    """An EAGLE head that drafts chains."""

    type: Literal["eagle"] = Field(default="eagle", description="Name of the strategy.")
