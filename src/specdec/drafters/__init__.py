"""Drafters: what guesses the tokens. Each is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.drafters.draft_model import DraftModel
    from specdec.drafters.eagle import Eagle
    from specdec.drafters.eagle2 import Eagle2
    from specdec.drafters.eagle3 import Eagle3
    from specdec.drafters.first import First
    from specdec.drafters.jacobi import Jacobi
    from specdec.drafters.lookahead import Lookahead
    from specdec.drafters.medusa import Medusa
    from specdec.drafters.merge import Merge
    from specdec.drafters.none import NoDraft
    from specdec.drafters.prompt_lookup import PromptLookup
    from specdec.drafters.self_skip import SelfSkip
    from specdec.drafters.token_recycling import TokenRecycling

__all__ = [
    "DraftModel",
    "Eagle",
    "Eagle2",
    "Eagle3",
    "First",
    "Jacobi",
    "Lookahead",
    "Medusa",
    "Merge",
    "NoDraft",
    "PromptLookup",
    "SelfSkip",
    "TokenRecycling",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DraftModel": "specdec.drafters.draft_model",
        "Eagle": "specdec.drafters.eagle",
        "Eagle2": "specdec.drafters.eagle2",
        "Eagle3": "specdec.drafters.eagle3",
        "First": "specdec.drafters.first",
        "Jacobi": "specdec.drafters.jacobi",
        "Lookahead": "specdec.drafters.lookahead",
        "Medusa": "specdec.drafters.medusa",
        "Merge": "specdec.drafters.merge",
        "NoDraft": "specdec.drafters.none",
        "PromptLookup": "specdec.drafters.prompt_lookup",
        "SelfSkip": "specdec.drafters.self_skip",
        "TokenRecycling": "specdec.drafters.token_recycling",
    },
)
