"""Config of the drafter `jacobi`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["JacobiConfig"]


class JacobiConfig(StrategyConfig):
    """How long a block is solved at a time, and with what it begins."""

    type: Literal["jacobi"] = Field(default="jacobi", description="Name of the strategy.")
    block_size: int = Field(
        default=5, ge=1, description="Tokens that a pass can settle: one fewer is drafted; 1 is plain decoding."
    )
    fill: Literal["last", "prompt"] | Annotated[int, Field(ge=0)] = Field(
        default="last",
        description="First guess of a place: the last token, tokens of the prompt, or the token of this id.",
    )
