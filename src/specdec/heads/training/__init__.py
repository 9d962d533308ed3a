"""Training of heads on a target's own answers. Each module is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.heads.training.recipe import Recipe
    from specdec.heads.training.run import Report, store_features, train

__all__ = ["Recipe", "Report", "store_features", "train"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Recipe": "specdec.heads.training.recipe",
        "Report": "specdec.heads.training.run",
        "store_features": "specdec.heads.training.run",
        "train": "specdec.heads.training.run",
    },
)
