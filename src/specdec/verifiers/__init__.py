"""Verifiers: the rules that keep a prefix of the guesses. Each is imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.verifiers.block import Block
    from specdec.verifiers.greedy import Greedy
    from specdec.verifiers.smc import SMC
    from specdec.verifiers.token import Token
    from specdec.verifiers.traversal import Traversal
    from specdec.verifiers.typical import Typical
    from specdec.verifiers.walk import Walk

__all__ = ["SMC", "Block", "Greedy", "Token", "Traversal", "Typical", "Walk"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "SMC": "specdec.verifiers.smc",
        "Block": "specdec.verifiers.block",
        "Greedy": "specdec.verifiers.greedy",
        "Token": "specdec.verifiers.token",
        "Traversal": "specdec.verifiers.traversal",
        "Typical": "specdec.verifiers.typical",
        "Walk": "specdec.verifiers.walk",
    },
)
