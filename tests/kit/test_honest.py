"""Honest parts pass every check: all shipped ones, drafters of every style, and a verifier written by hand."""

from __future__ import annotations

import pytest

from specdec.core.contracts import Exactness
from specdec.core.draft import Draft, Kind
from specdec.drafters import First, Merge, PromptLookup
from specdec.plugins.manager import discover
from specdec.testing import DrafterSuite, SchedulerSuite, TargetSuite, VerifierSuite, check
from specdec.testing.honest import TableDrafter
from specdec.testing.scripted import Forests
from specdec.testing.tabular import TabularTarget
from specdec.testing.tiny import TinyTarget
from specdec.verifiers.greedy import Greedy
from tests.kit import mutants as m
from tests.kit import verifier_mutants as v

SHIPPED = [strategy for strategy in discover().registry if strategy.example is not None]


@pytest.mark.parametrize("strategy", SHIPPED, ids=lambda strategy: strategy.key)
def test_shipped_part_passes(strategy):
    report = check(strategy.load_example(), max_examples=8, strategy=strategy)
    assert report.ok, str(report)
    assert report.count("passed") >= 7


class Sampled(m.Sampled):
    """A chain drawn from a table."""


class Stopping(TableDrafter):
    """Stops after a token of low confidence, which stays in the draft: a stopping time."""

    def propose(self, row, budget, rng, context):
        draft = super().propose(row, budget, rng, context)
        for node in range(len(draft)):
            if float(draft.q[node][draft.tokens[node]]) < 0.4:
                return Draft(draft.tokens[: node + 1], draft.parents[: node + 1], draft.kinds[: node + 1], draft.q)
        return draft


class PrunedSaidPoint(m.PrunedSiblings):
    """Prunes after the draw and declares POINT, which promises nothing."""

    def __init__(self, vocab):
        super().__init__(vocab)
        self.emits = frozenset({Kind.POINT})

    def propose(self, row, budget, rng, context):
        draft = super().propose(row, budget, rng, context)
        return Draft.point(draft.tokens, draft.parents)


HONEST = {
    "table point chain": lambda vocab: TableDrafter(m.table(vocab), "point", (1, 1, 1)),
    "table point tree": lambda vocab: TableDrafter(m.table(vocab), "point", (2, 2)),
    "table iid chain": lambda vocab: TableDrafter(m.table(vocab), "iid", (1, 1, 1)),
    "table iid tree": lambda vocab: TableDrafter(m.table(vocab), "iid", (2, 1)),
    "table no-replace tree": lambda vocab: TableDrafter(m.table(vocab), "no-replace", (2, 1)),
    "table mixed tree": lambda vocab: TableDrafter(m.table(vocab), "mixed", (2, 1)),
    "stopping time": lambda vocab: Stopping(m.table(vocab), "iid", (1, 1, 1)),
    "pruned, declared point": PrunedSaidPoint,
    "forest with scratch": lambda vocab: Forests(m.table(vocab), (-1, -1, 0, 0, 1), (1, 4)),
    "the base of the mutants": m.Point,
    "merge of two that draw": lambda vocab: Merge(
        TableDrafter(m.table(vocab), "iid", (1, 1)), TableDrafter(m.table(vocab), "no-replace", (2,))
    ),
    "first that draws": lambda vocab: First(PromptLookup(min_ngram=2), TableDrafter(m.table(vocab), "iid", (1, 1))),
    "merge with scratch": lambda vocab: Merge(
        Forests(m.table(vocab), (-1, -1, 0, 0, 1), (1, 4)), TableDrafter(m.table(vocab), "point", (1, 1, 1))
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_drafter_passes(name):
    report = check(HONEST[name], max_examples=6)
    assert report.ok, str(report)
    ran = {result.name for result in report.results if result.status == "passed"}
    assert {"interface", "output-law", "budget", "batch-equals-single"} <= ran
    sampled = any(kind.sampled for kind in HONEST[name](3).emits)
    assert ("reported-law" in ran) == sampled
    assert ("scratch-never-accepted" in ran) == ("scratch" in name)


def test_honest_verifier_by_hand_passes():
    report = check(lambda vocab: v.HonestByHand(), max_examples=8)
    assert report.ok, str(report)
    assert report.result("output-law-iid").status == "passed"
    assert report.result("output-law-point").status == "not-applicable"


def test_approximate_verifier_is_reported_as_approximate():
    class Declared(Greedy):
        exactness, bias_note = Exactness.APPROXIMATE, "argmax at every temperature"

    report = check(lambda vocab: Declared(), only=["output-law-point", "greedy-limit"], max_examples=3)
    assert report.notes == ("approximate: argmax at every temperature",)
    assert report.result("output-law-point").reason.startswith("it declares approximate: argmax")
    assert report.result("greedy-limit").status == "passed" and report.ok


class TestPoint(DrafterSuite):
    max_examples = 3

    def make(self, vocab_size):
        return m.Point(vocab_size)


class TestLeaks(DrafterSuite):
    max_examples = 3
    # A drafter that remembers is no function of the random choices either, which the law checks find.
    expected_failures = {  # noqa: RUF012 - as a plugin's author would write it
        name: "it remembers its last generation"
        for name in (
            "output-law", "output-law-with-end", "no-leak", "batch-equals-single", "row-order",
        )
    }  # fmt: skip

    def make(self, vocab_size):
        return m.LeaksBetweenGenerations(vocab_size)


class TestHonestByHand(VerifierSuite):
    max_examples = 3

    def make(self, vocab_size):
        return v.HonestByHand()


class TestTabular(TargetSuite):
    def make(self, vocab_size):
        return TabularTarget(m.table(vocab_size), vocab_size)


class TestTinyModel(TargetSuite):
    def make(self, vocab_size):
        return TinyTarget(vocab_size)


class TestFixed(SchedulerSuite):
    def make(self, vocab_size):
        from specdec.schedulers.fixed import Fixed

        return Fixed(depth=vocab_size)
