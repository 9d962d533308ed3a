"""Config of EAGLE-3 heads. Imports neither torch nor transformers."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from specdec.heads.config import TargetFacts
from specdec.heads.eagle_config import DecoderHeadConfig

__all__ = ["Eagle3HeadConfig", "default_taps"]


def default_taps(layers: int) -> tuple[str, ...]:
    """A low, a middle and a high state of a target with so many layers, as the published heads take them.

    Raises ValueError for targets of fewer than 7 layers, where these are not three: name the taps then.
    """
    # What enters layers 2, n // 2 and n - 3 is what the layers before them put out.
    below = (1, layers // 2 - 1, layers - 4)
    if len(set(below)) < 3 or min(below) < 0:
        raise ValueError(
            f"a target of {layers} layers has no three states 'low, middle, high' of its own; "
            "name the taps, for example taps=('layer:0', 'layer:1')"
        )
    return tuple(f"layer:{index}" for index in below)


class Eagle3HeadConfig(DecoderHeadConfig):
    """What an EAGLE-3 head is. The flags name the places of norms, in which published heads differ."""

    kind: Literal["eagle3"] = Field(default="eagle3", description="Kind of the head.")
    taps: tuple[str, ...] = Field(
        min_length=1, description="The target's states that are fused, in order: 'layer:2' is what layer 2 puts out."
    )
    hidden_size: int | None = Field(default=None, ge=1, description="Width of the head; null: that of the target.")
    norm_before_fc: bool = Field(default=False, description="One norm over all taps side by side before `fc`.")
    fc_norm: bool = Field(default=False, description="A norm of its own for each tap before `fc`.")
    norm_before_residual: bool = Field(default=False, description="The first residual starts from the normed state.")
    norm_output: bool = Field(default=False, description="The normed state, not the raw one, is the next step's.")
    final_norm: bool = Field(default=True, description="Whether a norm stands before the LM head.")

    @property
    def width(self) -> int:
        return self.hidden_size or self.target_hidden_size

    @field_validator("taps")
    @classmethod
    def _check_taps(cls, taps: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [tap for tap in taps if not re.fullmatch(r"layer:\d+|embed|final", tap)]:
            raise ValueError(f"there is no state {wrong[0]!r}; expected 'layer:2' and the like, 'embed' or 'final'")
        if len(set(taps)) < len(taps):
            raise ValueError(f"taps {', '.join(taps)}: each state can be fused once")
        return taps

    @model_validator(mode="after")
    def _check_norms(self) -> Eagle3HeadConfig:
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other: one norm over all taps, or one a tap")
        if self.norm_output and not self.final_norm:
            raise ValueError("norm_output needs final_norm: there is no norm whose output could be carried on")
        if self.width != self.target_hidden_size and not (self.own_embed and self.own_lm_head):
            raise ValueError(
                f"a head of width {self.width} cannot use embeddings and LM head of a target of width "
                f"{self.target_hidden_size}: it needs own_embed and own_lm_head"
            )
        return self

    def fit_problems(self, target: TargetFacts) -> list[str]:
        found = super().fit_problems(target)
        highest = max((int(tap[6:]) for tap in self.taps if tap.startswith("layer:")), default=-1)
        if highest >= target.layers and not any("number of layers" in problem for problem in found):
            found.append(
                f"the eagle3 head reads layer {highest}, but {target.name} has {target.layers} layers; use a head that "
                "was trained for this model"
            )
        return found
