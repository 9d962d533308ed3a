"""Schedulers: what decides how much is drafted each round. Each is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.schedulers.adaptive import Adaptive
    from specdec.schedulers.fixed import Fixed

__all__ = ["Adaptive", "Fixed"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {"Adaptive": "specdec.schedulers.adaptive", "Fixed": "specdec.schedulers.fixed"},
)
