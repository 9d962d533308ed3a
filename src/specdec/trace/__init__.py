"""A page on which a decode can be watched, round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.trace.exploring import explorers
    from specdec.trace.html import page
    from specdec.trace.recording import record

__all__ = ["explorers", "page", "record"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "explorers": "specdec.trace.exploring",
        "page": "specdec.trace.html",
        "record": "specdec.trace.recording",
    },
)
