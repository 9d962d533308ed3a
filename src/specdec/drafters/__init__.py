"""Drafters: what guesses the tokens. Each is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.drafters.draft_model import DraftModel
    from specdec.drafters.none import NoDraft
    from specdec.drafters.prompt_lookup import PromptLookup

__all__ = ["DraftModel", "NoDraft", "PromptLookup"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DraftModel": "specdec.drafters.draft_model",
        "NoDraft": "specdec.drafters.none",
        "PromptLookup": "specdec.drafters.prompt_lookup",
    },
)
