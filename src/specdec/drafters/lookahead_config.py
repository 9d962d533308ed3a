"""Config of the drafter `lookahead`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["LookaheadConfig"]


class LookaheadConfig(StrategyConfig):
    """Where n-grams come from, how long they are, and how many are tried at a time."""

    type: Literal["lookahead"] = Field(default="lookahead", description="Name of the strategy.")
    form: Literal["window", "simple"] = Field(
        default="window",
        description="window: n-grams from Jacobi iterations in a window that is scored beside the guesses, and from "
        "what was written. simple: n-grams of prompt and text alone, in front of a Jacobi block.",
    )
    window: int = Field(default=7, ge=1, le=256, description="W: positions that the window looks ahead; form window.")
    ngram: int = Field(default=5, ge=2, le=64, description="N: tokens of an n-gram, the one it is found by included.")
    guesses: int = Field(default=7, ge=1, le=256, description="G: n-grams kept and tried for a token; form window.")
    prompt: bool = Field(
        default=False, description="Begin with the n-grams of the prompt; form window, the simple form always does."
    )
    block_size: int = Field(
        default=5,
        ge=1,
        le=256,
        description="Tokens that a pass can settle, one fewer is drafted; 1 is plain decoding; form simple.",
    )
    fill: Literal["last", "prompt"] | Annotated[int, Field(ge=0)] = Field(
        default="last",
        description="First guess of a place of the block: the last token, tokens of the prompt, or the token of this "
        "id; form simple. The window begins with tokens of the prompt.",
    )
