"""Config of the drafter `token-recycling`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["TokenRecyclingConfig"]


class TokenRecyclingConfig(StrategyConfig):
    """How many successors of a token are kept, how large a tree of them is drafted, and for how long they are kept."""

    type: Literal["token-recycling"] = Field(default="token-recycling", description="Name of the strategy.")
    successors: int = Field(default=8, ge=1, le=64, description="Most probable successors kept for a token.")
    max_nodes: int = Field(default=60, ge=1, le=512, description="Most nodes drafted in a round.")
    max_depth: int = Field(default=8, ge=1, le=32, description="Most tokens guessed one after another.")
    prompt: bool = Field(
        default=True, description="Begin with what follows each token in the prompt; else with nothing."
    )
    remember: bool = Field(
        default=False,
        description="Keep what was learnt from row to row and call to call. Drafts, and so speed, then depend on what "
        "was decoded before; the text never does.",
    )
