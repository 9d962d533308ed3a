"""Heads that others have published: which format a folder has, and how it becomes one of our heads and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.heads.formats.conventions import Conventions
    from specdec.heads.formats.detector import detect
    from specdec.heads.formats.format import FORMATS, Format
    from specdec.heads.formats.published import Published, read_published

__all__ = ["FORMATS", "Conventions", "Format", "Published", "detect", "read_published"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "FORMATS": "specdec.heads.formats.format",
        "Conventions": "specdec.heads.formats.conventions",
        "Format": "specdec.heads.formats.format",
        "Published": "specdec.heads.formats.published",
        "detect": "specdec.heads.formats.detector",
        "read_published": "specdec.heads.formats.published",
    },
)
