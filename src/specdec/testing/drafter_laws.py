"""Checks of laws: what the engine emits with a drafter, and what the drafter says it draws from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from specdec.core.draft import Draft, Kind
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.schedulers.fixed import Fixed
from specdec.testing.enumeration import enumerate_law, total_variation
from specdec.testing.harness import (
    FULL,
    RULES,
    Spy,
    difference,
    first_rounds,
    generation_of,
    law_of_rounds,
    rules_for,
    signature,
    step_of,
    target_for,
)
from specdec.testing.laws import LawCase, drafter_cases, sampling_for
from specdec.testing.subject import Subject
from specdec.testing.tabular import sequence_law
from specdec.testing.trial import Failure, NotApplicable, Trial, applies, reason_of

__all__ = ["LAWS"]

HEAVY_RUNS = 100
_LIMIT = 4000
_EQUAL = 1e-7  # total variation; laws are computed in float64

# Small enough for a drafter that runs a model: at most 100 engine runs a case.
HEAVY = (
    LawCase(FULL.opening((1, 0), 1), prompt=(1, 0), depth=1, nodes=1),
    LawCase(FULL.opening((0, 1, 0), 1), prompt=(0, 1, 0), depth=2, nodes=2, temperature=0.5),
    LawCase(FULL.opening((0, 1), 0), prompt=(0, 1), depth=2, nodes=2, penalty=True),
    LawCase(FULL.opening((1,), 2), prompt=(1,), depth=2, nodes=3),
)


def output_law(subject: Subject, trial: Trial) -> str:
    """The engine's output with this drafter has the target's law, every random branch counted."""
    return _output_law(subject, trial, ends=False)


def output_law_with_end(subject: Subject, trial: Trial) -> str:
    """The same where a token may end the row inside a block."""
    return _output_law(subject, trial, ends=True)


def _output_law(subject: Subject, trial: Trial, ends: bool) -> str:
    rules = rules_for(subject.sample)
    totals = [0, 0, 0]  # cases, drafted nodes, cases with too many branches

    def body(case: LawCase) -> None:
        target = target_for(subject, case.p)
        drafter = Spy(subject.make(case.p.vocab_size), lenient=False)
        limit = HEAVY_RUNS if subject.heavy else _LIMIT
        try:
            compare(case, target, drafter, RULES[case.rule](), limit)
        except RuntimeError as error:
            if "random branches" not in str(error):
                raise
            totals[2] += 1
            return
        finally:
            totals[1] += drafter.nodes
        totals[0] += 1

    if subject.heavy:
        for case in HEAVY:
            case = replace(case, rule=rules[0], eos=(2,) if ends else ())
            try:
                body(case)
            except Exception as error:
                raise Failure(reason_of(error), repr(case)) from error
    else:
        trial.search(drafter_cases(rules, ends), body)
    if not totals[0]:
        raise Failure("no case could be enumerated: each has more random branches than can be run")
    if not totals[1]:
        raise NotApplicable(f"it drafted nothing in {totals[0]} cases, so nothing was shown")
    skipped = f"; {totals[2]} with too many branches left out" if totals[2] else ""
    return f"{totals[0]} cases, {totals[1]} nodes drafted, verifiers {', '.join(rules)}{skipped}"


def compare(case: LawCase, target: Any, drafter: Any, verifier: Any, limit: int, scheduler: Any = None) -> None:
    """Fail where the law of the first tokens, with these parts, is not the target's."""
    sampling = sampling_for(case)
    step = step_of(target, sampling)
    scheduler = scheduler or Fixed(case.depth, case.nodes)
    room = 2 + case.rounds * (case.depth + 1)

    def start(rng: Rng) -> Any:
        return generation_of(
            target, drafter, verifier, scheduler, [case.prompt], room, rng, sampling=sampling, eos=case.eos
        )

    got = law_of_rounds(start, step, case.prompt, case.rounds, case.length, case.eos, limit)
    want = sequence_law(step, case.prompt, case.length, case.eos)
    distance = total_variation(got, want)
    if not distance < _EQUAL:
        raise Failure(f"the output's law is not the target's: total variation {distance:.3g}; {difference(got, want)}")


class _Captured(Exception):
    def __init__(self, prefix: tuple[int, ...], draft: Draft) -> None:
        self.prefix, self.draft = prefix, draft


class _Capture(Drafter):
    """Breaks the generation off with the draft of one round."""

    def __init__(self, inner: Any, at: int) -> None:
        self.inner, self.at = inner, at
        self.name = inner.name  # type: ignore[misc]
        self.emits, self.branching = inner.emits, inner.branching
        self.drafts, self.needs = inner.drafts, inner.needs

    def begin(self, context: Context) -> DraftSession:
        return _CaptureSession(self, self.inner.begin(context))


class _CaptureSession(DraftSession):
    def __init__(self, capture: _Capture, session: DraftSession) -> None:
        self._capture, self._session = capture, session

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        drafts = self._session.propose(rows, budgets, rng)
        if rows[0].rounds == self._capture.at:
            raise _Captured(tuple(rows[0].tokens), drafts[0])
        return drafts

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._session.observe(outcomes)


def _reported_cases(heavy: bool) -> Iterator[LawCase]:
    """Cases of one or two rounds; the draft of the last one is looked at."""
    sizes = ((2, 2, 1), (3, 3, 1), (1, 1, 2)) if heavy else ((1, 3, 1), (2, 2, 1), (2, 3, 1), (3, 3, 1), (1, 1, 2))
    prompts: tuple[tuple[int, ...], ...] = ((1, 0),) if heavy else ((1, 0), (0, 1, 1), (2,))
    for depth, nodes, rounds in sizes:
        for prompt in prompts:
            for temperature in (1.0,) if heavy else (1.0, 0.5):
                yield LawCase(
                    FULL.opening(prompt, 1), prompt=prompt, depth=depth, nodes=nodes, rounds=rounds,
                    temperature=temperature,
                )  # fmt: skip


def _draws(subject: Subject) -> None:
    if not any(kind.sampled for kind in subject.sample.emits):
        raise NotApplicable("it emits POINT candidates only, which report no law")


@applies(_draws)
def reported_law(subject: Subject, trial: Trial) -> str:
    """Every sampled candidate is drawn from the law q that the draft reports for it, given what was drawn before."""
    shown = 0
    for case in _reported_cases(subject.heavy):
        shown += _reported(subject, case)
    if not shown:
        raise NotApplicable("it drew no candidates, so nothing was shown")
    return f"{shown} laws of candidates"


def _reported(subject: Subject, case: LawCase) -> int:
    """Compare the laws of one case; returns how many there were."""
    target, drafter = target_for(subject, case.p), _Capture(subject.make(3), case.rounds)
    rule, sampling = rules_for(drafter)[0], sampling_for(case)
    seen: dict[Hashable, tuple[tuple[int, ...], Draft]] = {}

    def run(rng: Any) -> Hashable:
        generation = generation_of(
            target, drafter, RULES[rule](), Fixed(case.depth, case.nodes), [case.prompt], 12, rng, sampling=sampling
        )
        try:
            first_rounds(generation, case.rounds)
        except _Captured as captured:
            q = captured.draft.q
            law = () if q is None else tuple(round(value, 9) for value in q.double().flatten().tolist())
            key = (captured.prefix, signature(captured.draft), law)
            seen[key] = (captured.prefix, captured.draft)
            return key
        return None

    try:
        weights = enumerate_law(run, HEAVY_RUNS if subject.heavy else _LIMIT)
    except RuntimeError as error:
        if "random branches" not in str(error):
            raise
        return 0
    groups: dict[Hashable, tuple[dict[int, float], list[float], str]] = {}
    for key, (prefix, draft) in seen.items():
        for group, token, law, words in _drawn(prefix, draft):
            observed, _, _ = groups.setdefault(group, ({}, law, words))
            observed[token] = observed.get(token, 0.0) + weights[key]
    for observed, law, words in groups.values():
        total = sum(observed.values())
        got = [observed.get(token, 0.0) / total for token in range(len(law))]
        if max(abs(one - other) for one, other in zip(got, law, strict=True)) > 1e-6:
            shown = [round(value, 6) for value in got]
            raise Failure(
                f"a candidate is drawn with the law {shown}, but its q says {[round(v, 6) for v in law]}",
                f"{words}\ndepth={case.depth}\nnodes={case.nodes}\ntemperature={case.temperature}",
            )
    return len(groups)


def _drawn(prefix: tuple[int, ...], draft: Draft) -> Iterator[tuple[Hashable, int, list[float], str]]:
    """Every sampled candidacy: what came before it, its token, the law it must have had, and where it is, in words.

    What came before: the prefix, the path to its parent with the elder siblings along it, and its own elder
    siblings. Whether a candidate is drawn at all may depend on that, and never on its own token.
    """
    tokens, shape = signature(draft)[0], draft.topology
    spines: dict[int, tuple[Any, ...]] = {0: ()}
    for parent, candidates in enumerate(shape.candidates):
        spine = spines.get(parent)
        if spine is None:
            continue  # below scratch
        elder: tuple[int, ...] = ()
        left = None if draft.q is None or parent >= len(draft.q) else draft.q[parent].double().clone()
        for candidate in candidates:
            token = tokens[candidate.node - 1]
            spines.setdefault(candidate.node, (*spine, (elder, token)))
            if not candidate.kind.sampled:
                continue
            if left is None or not float(left.sum()) > 0:
                raise Failure(f"a candidate was drawn at node {parent - 1} where q has no mass left", str(draft))
            law = (left / left.sum()).tolist()
            words = f"prefix={prefix}\npath and elder siblings along it={spine}\nelder siblings={elder}"
            yield (prefix, spine, elder, tuple(round(value, 9) for value in law)), token, law, words
            elder = (*elder, token)
            if candidate.kind is Kind.NO_REPLACE:
                left = torch.where(torch.arange(len(left)) == token, torch.zeros_like(left), left)


LAWS: dict[str, Callable[[Subject, Trial], str]] = {
    "output-law": output_law,
    "output-law-with-end": output_law_with_end,
    "reported-law": reported_law,
}
