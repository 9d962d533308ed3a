"""Config of the drafter `medusa`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specdec.core.config import StrategyConfig

__all__ = ["MedusaConfig"]


class MedusaConfig(StrategyConfig):
    """Which trained heads draft, and on which tree their guesses are placed."""

    type: Literal["medusa"] = Field(default="medusa", description="Name of the strategy.")
    checkpoint: str = Field(min_length=1, description="Folder or hub id of the heads.")
    tree: str | tuple[tuple[int, ...], ...] | None = Field(
        default=None,
        description="Name of a published tree, a JSON file, or paths of ranks; null: the checkpoint's own.",
    )
    revision: str | None = Field(default=None, description="Branch, tag or commit on the hub.")
