"""What a run of the conformance kit found: one record a check, and the report that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal, get_args

__all__ = ["CheckResult", "Report", "Status"]

Status = Literal["passed", "failed", "expected-failure", "not-applicable"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found. `reason` says what was shown, what is wrong, or why the check does not apply.

    counterexample: the smallest example found on which the check fails, as text; empty where there is none.
    """

    name: str
    status: Status
    reason: str
    seconds: float = 0.0
    counterexample: str = ""

    def __str__(self) -> str:
        lines = [f"{self.status:<16} {self.name} ({self.seconds:.1f} s)"]
        if self.reason:
            lines.extend("    " + line for line in self.reason.splitlines())
        if self.counterexample:
            lines.append("    smallest counterexample found:")
            lines.extend("      " + line for line in self.counterexample.splitlines())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one part, under the plugin API number that the kit belongs to."""

    part: str
    api: int
    results: tuple[CheckResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if something ran and nothing failed; a report in which nothing ran shows nothing."""
        ran = [result for result in self.results if result.status != "not-applicable"]
        return bool(ran) and all(result.status != "failed" for result in ran)

    def count(self, status: Status) -> int:
        """How many checks ended with `status`."""
        return sum(result.status == status for result in self.results)

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that failed, in order."""
        return tuple(result for result in self.results if result.status == "failed")

    def result(self, name: str) -> CheckResult:
        """The result of the check called `name`; raises KeyError where there is none."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(f"the report has no check {name!r}; it has {', '.join(r.name for r in self.results)}")

    def to_json(self) -> str:
        """The report as JSON: part, api, ok, counts, notes and results."""
        data = {
            "part": self.part,
            "api": self.api,
            "ok": self.ok,
            "counts": {status: self.count(status) for status in _STATUSES},
            "notes": list(self.notes),
            "results": [asdict(result) for result in self.results],
        }
        return json.dumps(data, indent=2)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        yield f"{self.part}, plugin API {self.api}"
        yield from (f"note: {note}" for note in self.notes)
        yield from (str(result) for result in self.results)
        yield ", ".join(f"{self.count(status)} {status}" for status in _STATUSES)
        if self.ok:
            yield "ok"
        elif self.failed:
            yield f"FAILED: {', '.join(result.name for result in self.failed)}"
        else:
            yield "FAILED: no check ran, so nothing was shown"


_STATUSES: tuple[Status, ...] = get_args(Status)
