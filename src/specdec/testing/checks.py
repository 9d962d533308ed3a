"""The conformance kit's entry: the checks of a part, and the report of running them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from specdec.core.contracts import Exactness
from specdec.plugins.strategy import PLUGIN_API
from specdec.testing.drafter_checks import CONTRACT
from specdec.testing.drafter_laws import LAWS
from specdec.testing.drafter_runs import RUNS
from specdec.testing.report import CheckResult, Report
from specdec.testing.scheduler_checks import SCHEDULER
from specdec.testing.shared_checks import SHARED
from specdec.testing.subject import Subject
from specdec.testing.target_checks import TARGET
from specdec.testing.trial import Failure, NotApplicable, Trial, reason_of, run_limited
from specdec.testing.verifier_checks import VERIFIER
from specdec.testing.verifier_laws import LAWS as VERIFIER_LAWS

__all__ = ["CHECKS", "Check", "check", "checks_for"]

Body = Callable[[Subject, Trial], str]

CHECKS: dict[str, dict[str, Body]] = {
    "drafter": {**CONTRACT, **LAWS, **RUNS, **SHARED},
    "verifier": {**VERIFIER, **VERIFIER_LAWS, **SHARED},
    "scheduler": {**SCHEDULER, **SHARED},
    "target": {**TARGET, **SHARED},
}
"""Checks of each role by name, in the order in which they run."""

_SHRINK_SECONDS = 2.0


@dataclass(frozen=True)
class Check:
    """One named check of one part; `run` gives its result and raises nothing.

    summary: what the check holds the part to.
    """

    name: str
    summary: str
    subject: Subject | None
    body: Body

    @property
    def why_not(self) -> str:
        """Why the check does not apply to the part as it declares itself; empty if it does."""
        try:
            for condition in getattr(self.body, "conditions", ()):
                condition(self.subject)
        except NotApplicable as reason:
            return str(reason)
        except Exception:
            return ""  # a declaration that cannot be read is for the check itself to complain about
        return ""

    def run(
        self, max_examples: int = 100, time_limit: float = 60.0, shrink_seconds: float = _SHRINK_SECONDS
    ) -> CheckResult:
        """Run in a daemon thread of its own, which is stopped and reported as failed after `time_limit` seconds."""
        started = perf_counter()
        if reason := self.why_not:
            return CheckResult(self.name, "not-applicable", reason)
        trial = Trial(max_examples, time_limit, shrink_seconds)
        try:
            shown = run_limited(lambda: self.body(self.subject, trial), time_limit)  # type: ignore[arg-type]
            status, reason, example = "passed", str(shown), ""
        except NotApplicable as error:
            status, reason, example = "not-applicable", str(error), ""
        except Failure as error:
            status, reason, example = "failed", error.reason, error.counterexample
        except TimeoutError as error:
            found = trial.found
            status = "failed"
            reason, example = (found.reason, found.counterexample) if found else (str(error), "")
        except Exception as error:
            status, reason, example = "failed", reason_of(error), ""
        return CheckResult(self.name, status, reason, perf_counter() - started, example)  # type: ignore[arg-type]


def checks_for(part: Any, *, strategy: Any = None) -> Iterator[Check]:
    """The checks of a part, given as an instance or as a factory `make(vocab_size)`.

    Where it cannot be built or plays no role, the one check `build` says so.
    """
    try:
        subject = run_limited(lambda: Subject.of(part, strategy), 60.0)
    except Exception as error:
        yield _cannot_build(error)
        return
    for name, body in CHECKS[subject.role].items():
        yield Check(name, (body.__doc__ or "").strip().partition("\n")[0], subject, body)


def _cannot_build(error: Exception) -> Check:
    def build(subject: Subject, trial: Trial) -> str:
        raise error if isinstance(error, Failure) else Failure(f"cannot build: {reason_of(error)}")

    return Check("build", "The part can be built and plays a role.", None, build)


def check(
    part: Any,
    *,
    expected_failures: Mapping[str, str] | None = None,
    max_examples: int = 100,
    time_limit: float = 60.0,
    shrink_seconds: float = _SHRINK_SECONDS,
    only: Collection[str] | None = None,
    strategy: Any = None,
) -> Report:
    """Hold a part, an instance or a factory `make(vocab_size)`, to every check of its role.

    expected_failures: check name to the reason why it is known to fail; one that passes all the same fails.
    max_examples: examples that each law check tries. time_limit: seconds after which a check is stopped; once one
        has been, the others are not run. shrink_seconds: time for making each counterexample smaller.
    only: names of checks; the others are left out.
    """
    expected = dict(expected_failures or {})
    results: list[CheckResult] = []
    hung = ""
    checks = list(checks_for(part, strategy=strategy))
    names = {one.name for one in checks}
    for one in checks:
        if only is not None and one.name not in only and one.name != "build":
            continue
        if hung:
            reason = f"not run, because {hung} was stopped by the time limit"
            results.append(CheckResult(one.name, "not-applicable", reason))
            continue
        result = one.run(max_examples, time_limit, shrink_seconds)
        if "still running after the time limit" in result.reason:
            hung = one.name
        results.append(as_expected(result, expected.get(one.name)))
    for name in sorted({*expected, *(only or ())} - names - ({*expected} if "build" in names else set())):
        known = ", ".join(sorted(names))
        results.append(CheckResult(name, "failed", f"there is no check of that name; the part has {known}"))
    subject = checks[0].subject
    return Report(subject.label if subject else _name_of(part), PLUGIN_API, tuple(results), _notes(subject))


def as_expected(result: CheckResult, reason: str | None) -> CheckResult:
    """The result as it counts where the check is expected to fail for `reason`; None: it is not."""
    if reason is None or result.status == "not-applicable":
        return result
    if not reason.strip():
        return CheckResult(result.name, "failed", "it is expected to fail, but no reason is given", result.seconds)
    if result.status == "passed":
        told = f"it is expected to fail ({reason}), but it passes: take it out of expected_failures"
        return CheckResult(result.name, "failed", told, result.seconds)
    told = f"{reason}; found: {result.reason}"
    return CheckResult(result.name, "expected-failure", told, result.seconds, result.counterexample)


def _notes(subject: Subject | None) -> tuple[str, ...]:
    if subject is None or subject.role != "verifier":
        return ()
    exactness = getattr(subject.sample, "exactness", None)
    if exactness is Exactness.APPROXIMATE:
        return (f"approximate: {subject.sample.bias_note}",)
    return (f"declares {exactness.label}",) if isinstance(exactness, Exactness) else ()


def _name_of(part: Any) -> str:
    return str(getattr(part, "__name__", type(part).__name__))
