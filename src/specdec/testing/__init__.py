"""Tools that prove a part keeps the target's law: a tabular target, enumeration of every random branch, and the
conformance kit, whose parts are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.testing.checks import Check, check, checks_for
    from specdec.testing.report import CheckResult, Report
    from specdec.testing.suites import DrafterSuite, SchedulerSuite, TargetSuite, VerifierSuite

__all__ = [
    "Check",
    "CheckResult",
    "DrafterSuite",
    "Report",
    "SchedulerSuite",
    "TargetSuite",
    "VerifierSuite",
    "check",
    "checks_for",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Check": "specdec.testing.checks",
        "CheckResult": "specdec.testing.report",
        "DrafterSuite": "specdec.testing.suites",
        "Report": "specdec.testing.report",
        "SchedulerSuite": "specdec.testing.suites",
        "TargetSuite": "specdec.testing.suites",
        "VerifierSuite": "specdec.testing.suites",
        "check": "specdec.testing.checks",
        "checks_for": "specdec.testing.checks",
    },
)
