"""Conventions: what a checkpoint leaves open or may say wrongly, and how it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["AS_WRITTEN", "Conventions"]


@dataclass(frozen=True)
class Conventions:
    """How to read what formats disagree about; the defaults take each checkpoint at its word.

    layers: whether ids of target layers are boundaries (id k is what enters layer k) or outputs (what layer k puts
        out); "auto" by the rule of `boundaries`. layer_ids: other ids than those of the checkpoint.
    vocabulary: whether the map of a trimmed vocabulary holds offsets (`d2t`) or target ids.
    norm_before_residual, norm_output, final_norm: as in `Eagle3HeadConfig`; None: as the checkpoint says.
    """

    layers: Literal["auto", "boundary", "output"] = "auto"
    layer_ids: tuple[int, ...] | None = None
    vocabulary: Literal["auto", "offset", "absolute"] = "auto"
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    final_norm: bool | None = None


AS_WRITTEN = Conventions()
