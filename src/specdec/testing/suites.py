"""The conformance kit as pytest classes: subclass one, say how to make the part, and every check is a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from specdec.testing.checks import CHECKS, as_expected, checks_for

__all__ = ["DrafterSuite", "SchedulerSuite", "TargetSuite", "VerifierSuite"]


class _Suite:
    """What the suites share.

    expected_failures: check name to the reason why it is known to fail; one that passes all the same fails.
    max_examples, time_limit, shrink_seconds: as of `check`.
    """

    role: ClassVar[str]
    expected_failures: ClassVar[Mapping[str, str]] = {}
    max_examples: ClassVar[int] = 100
    time_limit: ClassVar[float] = 60.0
    shrink_seconds: ClassVar[float] = 2.0

    def make(self, vocab_size: int) -> Any:
        """The part under check, for a vocabulary of that size; called many times."""
        raise NotImplementedError(f"{type(self).__name__} needs a method make(self, vocab_size)")

    def _check(self, name: str) -> None:
        if unknown := sorted(set(self.expected_failures) - set(CHECKS[self.role])):
            pytest.fail(f"expected_failures names {', '.join(unknown)}, which {self.role}s have no check for")
        checks = {one.name: one for one in checks_for(self.make)}
        one = checks.get("build") or checks.get(name)
        if one is None:
            found = next(iter(checks.values())).subject
            pytest.fail(f"make() returned a {found.role if found else 'part'}; expected a {self.role}", pytrace=False)
        raw = one.run(self.max_examples, self.time_limit, self.shrink_seconds)
        result = as_expected(raw, self.expected_failures.get(name))
        if result.status == "not-applicable":
            pytest.skip(result.reason)
        if result.status == "expected-failure":
            pytest.xfail(result.reason)
        if result.status == "failed":
            pytest.fail(str(result), pytrace=False)


class DrafterSuite(_Suite):
    """Every check of drafters as one test: `class TestMine(DrafterSuite): def make(self, vocab_size): ...`."""

    role = "drafter"

    @pytest.mark.parametrize("name", CHECKS["drafter"])
    def test_conforms(self, name: str) -> None:
        """Run one check."""
        self._check(name)


class VerifierSuite(_Suite):
    """Every check of verifiers as one test."""

    role = "verifier"

    @pytest.mark.parametrize("name", CHECKS["verifier"])
    def test_conforms(self, name: str) -> None:
        """Run one check."""
        self._check(name)


class SchedulerSuite(_Suite):
    """Every check of schedulers as one test."""

    role = "scheduler"

    @pytest.mark.parametrize("name", CHECKS["scheduler"])
    def test_conforms(self, name: str) -> None:
        """Run one check."""
        self._check(name)


class TargetSuite(_Suite):
    """Every check of targets as one test."""

    role = "target"

    @pytest.mark.parametrize("name", CHECKS["target"])
    def test_conforms(self, name: str) -> None:
        """Run one check."""
        self._check(name)
