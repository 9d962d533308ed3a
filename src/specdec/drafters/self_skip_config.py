"""Config of the drafter `self-skip`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from specdec.core.config import StrategyConfig

__all__ = ["SelfSkipConfig"]


class SelfSkipConfig(StrategyConfig):
    """Which of the target's own layers draft, and with which sampling."""

    type: Literal["self-skip"] = Field(default="self-skip", description="Name of the strategy.")
    exit_layer: int | None = Field(
        default=None,
        ge=1,
        description="Leave the target after so many layers; null: after half of them; with `skip`, at the end.",
    )
    skip: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(), description="Layers that are left out, the first one being 0."
    )
    draw: bool = Field(
        default=False,
        description="Draw guesses from the skipping model's law at temperature > 0; false: guess its most probable "
        "tokens, so that the text of a seed is the target's own.",
    )
    temperature: float | None = Field(
        default=None, ge=0, description="Temperature of drawn guesses; null: that of the target."
    )
    top_k: int | None = Field(
        default=None, ge=1, description="Draw from the k most probable tokens; null: as the target samples."
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Draw from this much probability; null: as the target samples."
    )

    @model_validator(mode="after")
    def _drawn_options_need_draws(self) -> SelfSkipConfig:
        given = [name for name in ("temperature", "top_k", "top_p") if getattr(self, name) is not None]
        if given and not self.draw:
            raise ValueError(f"{', '.join(given)}: these are about drawn guesses; add draw=True")
        if len(set(self.skip)) < len(self.skip):
            raise ValueError(f"skip names a layer twice: {list(self.skip)}")
        return self
