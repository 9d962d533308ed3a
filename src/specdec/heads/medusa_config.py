"""Config of heads of the kind `medusa`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.heads.config import HeadConfig

__all__ = ["MedusaHeadConfig"]


class MedusaHeadConfig(HeadConfig):
    """How many tokens ahead, how deep each guess is computed, and whose LM head turns it into tokens."""

    kind: Literal["medusa"] = Field(default="medusa", description="Kind of the head.")
    heads: int = Field(ge=1, description="Number of tokens guessed after the target's own next one.")
    blocks: int = Field(default=1, ge=1, description="Residual blocks of each head.")
    own_lm_head: bool = Field(
        default=False, description="Each head has an LM head of its own, which begins as a copy of the target's."
    )
    lm_head_bias: bool = Field(default=False, description="The LM heads of its own have a bias, as the target's has.")
