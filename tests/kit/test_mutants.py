"""Every fault is found by the check that names it. A proof that cannot fail proves nothing."""

from __future__ import annotations

import pytest

from specdec.plugins import PLUGIN_API, Strategy
from specdec.testing import check
from tests.kit import mutants as m
from tests.kit import part_mutants as p
from tests.kit import verifier_mutants as v

DRAFTERS = {
    m.ArgmaxSaidIid: ("reported-law", "output-law"),
    m.DroppedAfterLook: ("reported-law", "output-law"),
    m.WrongQ: ("reported-law", "output-law"),
    m.QOfTheWrongPosition: ("reported-law", "output-law"),
    m.SortedSiblings: ("reported-law", "output-law"),
    m.PrunedSiblings: ("reported-law", "output-law"),
    m.LeaksBetweenGenerations: ("no-leak",),
    m.IgnoresBudget: ("budget",),
    m.IgnoresEmptyBudget: ("budget",),
    m.MutatesRow: ("rows-untouched",),
    m.CountsRounds: ("rows-untouched",),
    m.IdOutOfRange: ("ids",),
    m.ChildBeforeParent: ("parents",),
    m.UndeclaredTree: ("parents",),
    m.UndeclaredKind: ("kinds",),
    m.UnseededRandomness: ("same-seed-same-draft",),
    m.PythonRandomness: ("same-seed-same-draft",),
    m.SharesTheVerifiersStream: ("separate-randomness",),
    m.RowsMixedUp: ("batch-equals-single", "row-order"),
    m.ByPlaceInBatch: ("row-order",),
    m.BreaksWhenLeft: ("usable-after-exception",),
    m.ReturnsNoList: ("interface",),
    m.HalfPrecisionQ: ("reported-law", "output-law"),
    m.UnnormalisedQ: ("kinds",),
    m.SharedNoise: ("reported-law", "output-law"),
    m.ForgetsAnOption: ("config-round-trip",),
    m.ForgetsEndedRows: ("particles",),
}
VERIFIERS = {
    v.SwappedResidual: ("output-law-iid", "edge-laws"),
    v.ResidualIsTheTarget: ("output-law-iid", "edge-laws"),
    v.AcceptsTheEdge: ("impossible-tokens",),
    v.UncappedBlock: ("output-law-iid", "edge-laws"),
    v.WrongBlockResidual: ("edge-laws",),
    v.ForgetsTheWeightAbove: ("output-law-iid", "output-law-no-replace", "edge-laws"),
    v.KeepsTheWeight: ("output-law-iid", "output-law-no-replace", "edge-laws"),
    v.WrongTraversalResidual: ("edge-laws",),
    v.SiblingsAsIfReplaced: ("edge-laws",),
    v.LastWins: ("greedy-limit",),
    v.AcceptsScratch: ("scratch",),
    v.ContinuesAfterEos: ("end-token",),
    v.NoNodePrefix: ("prefix-processor", "output-law-point"),
    v.LeafOfTheLongest: ("root-path",),
    v.RowsShareACoin: ("row-independence",),
    v.SilentlyApproximate: ("approximation-declared",),
    v.ReturnsNone: ("interface",),
    v.WeightsForgotten: ("estimator-identity",),
    v.RatiosAlone: ("estimator-identity",),
    v.KeepsOldWeights: ("estimator-identity",),
}
SCHEDULERS = {
    p.NegativeBudget: ("budgets",),
    p.FractionalBudget: ("budgets",),
    p.UnboundedBudget: ("bounded",),
    p.RandomBudget: ("sees-no-draws",),
    p.RemembersGenerations: ("no-leak", "sees-no-draws"),
    p.Peeks: ("output-law",),
    p.ReturnsInt: ("interface",),
}
TARGETS = {
    p.SiblingsSeeEachOther: ("tree-equals-sequential",),
    p.ForgetsToRollBack: ("commit-equals-prefill",),
    p.RowsOfTheBatchSwapped: ("ragged-batch-equals-singles",),
    p.WrongPositions: ("chain-equals-sequential",),
    p.ChangesTheModel: ("nothing-changed",),
    p.ChangesTheWeights: ("nothing-changed",),
    p.FeaturesOfTheNextNode: ("features",),
}
# What each of them keeps, so that a check which fails on everything would show.
INNOCENT = {
    m.ArgmaxSaidIid: ("interface", "budget", "ids", "no-leak", "same-seed-same-draft"),
    m.LeaksBetweenGenerations: ("interface", "budget", "ids", "kinds", "rows-untouched"),
    m.UnseededRandomness: ("interface", "budget", "ids", "parents"),
    v.ResidualIsTheTarget: ("interface", "greedy-limit", "row-independence", "impossible-tokens"),
    v.AcceptsScratch: ("interface", "output-law-point", "greedy-limit", "end-token"),
    v.SiblingsAsIfReplaced: ("interface", "output-law-point", "output-law-iid", "output-law-mixed"),
    v.NoNodePrefix: ("interface", "scratch", "greedy-limit"),
    p.RandomBudget: ("interface", "budgets", "bounded", "terminates"),
    p.SiblingsSeeEachOther: ("interface", "chain-equals-sequential"),
}
ALL = {**DRAFTERS, **VERIFIERS, **SCHEDULERS, **TARGETS}


def made(mutant):
    if mutant in VERIFIERS:
        return lambda vocab: mutant()
    return (lambda vocab: mutant()) if mutant in SCHEDULERS else mutant


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.__name__)
def test_mutant_dies_by_the_check_that_names_its_fault(mutant):
    report = check(made(mutant), only=ALL[mutant], max_examples=25, shrink_seconds=0)
    assert not report.ok
    assert {result.name for result in report.failed} == set(ALL[mutant]), str(report)
    assert all(result.reason for result in report.failed)


@pytest.mark.parametrize("mutant", INNOCENT, ids=lambda mutant: mutant.__name__)
def test_mutant_passes_the_checks_of_what_it_keeps(mutant):
    report = check(made(mutant), only=INNOCENT[mutant], max_examples=5, shrink_seconds=0)
    assert report.ok, str(report)
    assert report.count("passed") == len(INNOCENT[mutant])


def test_a_strategy_whose_config_module_imports_torch():
    strategy = Strategy(
        role="drafter", name="heavy", api=PLUGIN_API, config="tests.kit.heavy_config:HeavyConfig",
        build="tests.kit.mutants:Point",
    )  # fmt: skip
    result = check(m.Point, only=["light-hook-module"], strategy=strategy).result("light-hook-module")
    assert result.status == "failed" and "loads torch" in result.reason


def test_there_are_enough_of_them():
    assert len(ALL) >= 20 and len(DRAFTERS) >= 8 and len(VERIFIERS) >= 8


def test_a_law_check_shows_the_smallest_counterexample_found():
    loose = check(m.ArgmaxSaidIid, only=["output-law"], max_examples=25, shrink_seconds=0).result("output-law")
    tight = check(m.ArgmaxSaidIid, only=["output-law"], max_examples=25, shrink_seconds=3).result("output-law")
    assert "total variation" in tight.reason and "p=(" in tight.counterexample
    assert len(tight.counterexample) <= len(loose.counterexample)
    assert all(line in str(tight) for line in tight.counterexample.splitlines())


def test_a_part_that_hangs_is_stopped_and_named():
    report = check(m.Hangs, time_limit=1.0)
    assert not report.ok
    first, *others = report.results
    assert (
        first.status == "failed" and "time limit of 1 s" in first.reason and "propose() at mutants.py" in first.reason
    )
    assert first.seconds < 10
    assert {other.status for other in others} == {"not-applicable"}
    assert all("was stopped by the time limit" in other.reason for other in others)
