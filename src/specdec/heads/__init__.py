"""Heads: trainable modules that guess from the target's own hidden states. Each is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.heads.base import Head
    from specdec.heads.config import HeadConfig
    from specdec.heads.load import load_head
    from specdec.heads.medusa import MedusaHead

__all__ = ["Head", "HeadConfig", "MedusaHead", "load_head"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Head": "specdec.heads.base",
        "HeadConfig": "specdec.heads.config",
        "MedusaHead": "specdec.heads.medusa",
        "load_head": "specdec.heads.load",
    },
)
