"""What a report says, and what the kit says to parts that cannot be built or do not follow the interface."""

from __future__ import annotations

import json
import sys
import threading

import pytest

from specdec.drafters.none import NoDraft
from specdec.drafters.prompt_lookup import PromptLookup
from specdec.plugins import PLUGIN_API
from specdec.testing import CheckResult, DrafterSuite, Report, VerifierSuite, check, checks_for
from specdec.testing.checks import CHECKS
from specdec.testing.trial import run_limited
from tests.kit import mutants as m
from tests.kit import part_mutants as p
from tests.kit import verifier_mutants as v

CONTRACT = ("interface", "budget", "ids", "parents", "kinds")


def test_a_report_in_which_nothing_ran_is_not_ok():
    skipped = CheckResult("a", "not-applicable", "no need")
    assert not Report("p", 1, ()).ok and not Report("p", 1, (skipped,)).ok
    assert "nothing was shown" in str(Report("p", 1, (skipped,)))
    assert Report("p", 1, (skipped, CheckResult("b", "passed", "3 cases"))).ok
    assert Report("p", 1, (CheckResult("b", "expected-failure", "known"),)).ok
    assert not Report("p", 1, (CheckResult("b", "passed", ""), CheckResult("c", "failed", "wrong"))).ok


def test_a_report_as_text_and_json():
    report = check(PromptLookup(), only=CONTRACT)
    assert report.ok and report.api == PLUGIN_API and report.part == "drafter 'prompt-lookup'"
    data = json.loads(report.to_json())
    assert data["ok"] is True and data["api"] == PLUGIN_API and data["counts"]["passed"] == len(CONTRACT)
    assert [result["name"] for result in data["results"]] == [r.name for r in report.results]
    assert set(data["results"][0]) == {"name", "status", "reason", "seconds", "counterexample"}
    assert "5 passed, 0 failed" in str(report) and str(report).endswith("ok")


def test_a_failure_shows_its_counterexample():
    report = check(m.IdOutOfRange, only=["ids"])
    (failed,) = report.failed
    assert failed.reason == "token id 3 is outside the vocabulary of 3"
    assert "tokens=(3,)" in failed.counterexample and "FAILED: ids" in str(report)


def test_instances_and_factories_have_the_same_checks():
    for part in (NoDraft(), lambda vocab: NoDraft()):
        assert [one.name for one in checks_for(part)] == list(CHECKS["drafter"])
        assert all(one.summary for one in checks_for(part))


class Nameless(m.Point):
    name = None


def test_checks_know_whether_they_apply_before_they_run():
    why = {one.name: one.why_not for one in checks_for(NoDraft())}
    assert why["reported-law"] == "it emits POINT candidates only, which report no law"
    assert why["budget"] == "" and why["light-hook-module"] == ""
    assert check(NoDraft(), only=["reported-law"]).result("reported-law").reason == why["reported-law"]


def test_without_hypothesis_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    report = check(PromptLookup(), only=["output-law", "budget"])
    assert report.result("budget").status == "passed"
    assert "pip install 'specdec-hf[test]'" in report.result("output-law").reason and not report.ok


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (lambda vocab: 1 / 0, "cannot build the part for a vocabulary of 3: ZeroDivisionError"),
        (lambda vocab: "text", "the factory returned str; expected a Drafter"),
        (7, "found int; expected a Drafter"),
        (lambda vocab: None, "the factory returned NoneType"),
        (lambda vocab: Nameless(vocab), "Nameless.name is None; expected a text"),
    ],
)
def test_what_cannot_be_built_is_a_failed_check(part, words):
    report = check(part)
    (result,) = report.results
    assert result.name == "build" and result.status == "failed" and words in result.reason
    assert not report.ok


class Raises(m.Point):
    def propose(self, row, budget, rng, context):
        raise KeyError("no such n-gram")


class BadBegin(m.Point):
    def begin(self, context):
        return None


class OneTooFew(m.ReturnsNoList):
    def begin(self, context):
        session = super().begin(context)
        session.propose = lambda rows, budgets, rng: []
        return session


class Fractions(m.Point):
    def propose(self, row, budget, rng, context):
        return [0.5]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (m.ReturnsNoList, "propose() returned Draft; expected a list of Draft, one a row"),
        (Raises, "propose() raised KeyError: 'no such n-gram'"),
        (BadBegin, "begin() returned NoneType; expected a DraftSession"),
        (OneTooFew, "propose() returned 0 drafts; expected 3, one a row"),
        (Fractions, "propose() returned list for a row; expected a Draft"),
        (lambda vocab: v.ReturnsNone(), "verify() returned NoneType; expected a Verdict"),
        (lambda vocab: p.ReturnsInt(), "plan() returned int; expected a Budget"),
    ],
)
def test_a_part_that_does_not_follow_the_interface_is_told_which_method(part, words):
    result = check(part, only=["interface"]).result("interface")
    assert result.status == "failed" and words in result.reason, result


def test_expected_failures_need_a_reason_and_must_fail():
    known = check(m.IdOutOfRange, only=["ids"], expected_failures={"ids": "off by one, see our tracker"})
    assert known.ok and known.result("ids").status == "expected-failure"
    assert known.result("ids").reason.startswith("off by one, see our tracker; found: token id 3")
    assert not check(m.IdOutOfRange, only=["ids"], expected_failures={"ids": " "}).ok
    fixed = check(m.Point, only=["ids"], expected_failures={"ids": "off by one"})
    assert not fixed.ok and "take it out of expected_failures" in fixed.result("ids").reason
    unknown = check(m.Point, only=["ids"], expected_failures={"idz": "a slip"})
    assert not unknown.ok and "there is no check of that name" in unknown.result("idz").reason


def test_a_time_limit_stops_what_runs_in_python():
    stopped = threading.Event()

    def forever():
        try:
            while True:
                pass
        finally:
            stopped.set()

    with pytest.raises(TimeoutError, match=r"time limit of 0.2 s; it was in forever\(\) at test_report.py"):
        run_limited(forever, 0.2)
    assert stopped.wait(5)
    assert run_limited(lambda: 3, 5.0) == 3
    with pytest.raises(KeyError):
        run_limited(lambda: {}[1], 5.0)


class Faulty(DrafterSuite):
    def make(self, vocab_size):
        return m.IdOutOfRange(vocab_size)


def test_a_suite_fails_skips_and_expects_as_the_report_says():
    assert Faulty()._check("budget") is None
    with pytest.raises(pytest.fail.Exception, match="token id 3 is outside the vocabulary of 3"):
        Faulty()._check("ids")
    with pytest.raises(pytest.skip.Exception, match="it emits POINT candidates only"):
        Faulty()._check("reported-law")

    class Known(Faulty):
        expected_failures = {"ids": "off by one"}  # noqa: RUF012 - as a plugin's author would write it

    with pytest.raises(pytest.xfail.Exception, match="off by one; found: token id 3"):
        Known()._check("ids")

    class Slip(Faulty):
        expected_failures = {"idz": "off by one"}  # noqa: RUF012

    with pytest.raises(pytest.fail.Exception, match="expected_failures names idz"):
        Slip()._check("ids")


def test_a_suite_of_another_role_or_without_a_part_says_so():
    class Mistaken(VerifierSuite):
        def make(self, vocab_size):
            return NoDraft()

    with pytest.raises(pytest.fail.Exception, match="make\\(\\) returned a drafter; expected a verifier"):
        Mistaken()._check("edge-laws")
    with pytest.raises(pytest.fail.Exception, match="needs a method make"):
        DrafterSuite()._check("ids")
