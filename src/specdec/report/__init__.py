"""What `specdec bench` measured, as tables, Markdown and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.report.document import markdown
    from specdec.report.figures import plots
    from specdec.report.summary import Line, Summary, summarise

__all__ = ["Line", "Summary", "markdown", "plots", "summarise"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Line": "specdec.report.summary",
        "Summary": "specdec.report.summary",
        "markdown": "specdec.report.document",
        "plots": "specdec.report.figures",
        "summarise": "specdec.report.summary",
    },
)
