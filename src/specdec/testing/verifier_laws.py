"""Checks of laws for verifiers: every kind and shape of draft that they judge, at the edges and with processors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specdec.core.contracts import Exactness
from specdec.core.draft import Kind
from specdec.drafters.none import NoDraft
from specdec.testing.drafter_laws import compare
from specdec.testing.harness import FULL
from specdec.testing.honest import Style, TableDrafter
from specdec.testing.laws import HashTable, LawCase, tables
from specdec.testing.particle_laws import estimator_identity
from specdec.testing.subject import Subject
from specdec.testing.tabular import TabularTarget
from specdec.testing.trial import Failure, NotApplicable, Trial, applies, hypothesis, reason_of

__all__ = ["KINDS", "LAWS", "TIES", "exact_sampling"]

_LIMIT = 6000
CHAINS = ((1,), (1, 1), (1, 1, 1))
TREES: dict[str, tuple[tuple[int, ...], ...]] = {
    "point": ((2, 1), (2, 2), (3,), (1, 2, 1)),
    "iid": ((2,), (2, 1), (1, 2)),
    "no-replace": ((2,), (2, 1), (3,), (1, 2)),
    "mixed": ((2,), (3,), (2, 1)),
}
# Large forests are enumerated over two tokens only.
_HARD = {((1, 1, 1), "iid"), ((2, 1), "iid"), ((1, 2), "iid"), ((2, 1), "mixed"), ((1, 1, 1), "no-replace")}
KINDS: dict[str, frozenset[Kind]] = {
    "point": frozenset({Kind.POINT}),
    "iid": frozenset({Kind.IID}),
    "no-replace": frozenset({Kind.NO_REPLACE}),
    "mixed": frozenset({Kind.IID, Kind.POINT}),
}


TIES = HashTable(((3, 5, 5), (4, 1, 4), (2, 2, 2), (1, 6, 2)))


def exact_sampling(subject: Subject) -> None:
    """Raise NotApplicable unless the verifier declares the target's law at every temperature."""
    verifier = subject.sample
    if verifier.exactness is Exactness.EXACT_SAMPLING:
        return
    note = f": {verifier.bias_note}" if verifier.bias_note else ""
    raise NotApplicable(f"it declares {verifier.exactness.label}{note}")


def judged(subject: Subject, style: str) -> tuple[tuple[int, ...], ...]:
    """Shapes of this style that the verifier can judge; raises NotApplicable where there are none."""
    verifier = subject.sample
    if not KINDS[style] <= verifier.judges:
        names = ", ".join(sorted(kind.name for kind in verifier.judges))
        raise NotApplicable(f"it judges {names} candidates only")
    if style == "mixed" and not verifier.branching:
        raise NotApplicable("it judges chains only, and siblings are needed to mix kinds")
    chains = () if style == "mixed" else CHAINS
    return (*chains, *TREES[style]) if verifier.branching else chains


def _some_shape(subject: Subject, style: str) -> None:
    judged(subject, style)


def law_check(style: Style) -> Callable[[Subject, Trial], str]:
    """The check of the output's law over random drafts of one style."""

    @applies(exact_sampling, lambda subject: _some_shape(subject, style))
    def output_law(subject: Subject, trial: Trial) -> str:
        """The output has the target's law, for drafts of this kind in every shape that the verifier judges."""
        shapes = judged(subject, style)
        counted = [0, 0]

        def body(case: LawCase) -> None:
            assert case.q is not None
            target = TabularTarget(case.p, case.p.vocab_size)
            verifier = subject.make(case.p.vocab_size)
            try:
                compare(case, target, TableDrafter(case.q, style, case.shape), verifier, _LIMIT)
            except RuntimeError as error:
                if "random branches" not in str(error):
                    raise
                counted[1] += 1
                return
            counted[0] += 1

        trial.search(_cases(shapes, style), body)
        if not counted[0]:
            raise Failure("no case could be enumerated: each has more random branches than can be run")
        skipped = f"; {counted[1]} with too many branches left out" if counted[1] else ""
        return f"{counted[0]} cases over the shapes {', '.join(map(str, shapes))}{skipped}"

    return output_law


def _cases(shapes: Sequence[tuple[int, ...]], style: str) -> Any:
    st = hypothesis().strategies

    @st.composite
    def case(draw: Any) -> LawCase:
        shape = draw(st.sampled_from(list(shapes)))
        vocab = 2 if (shape, style) in _HARD else draw(st.sampled_from([3, 2]))
        p = draw(tables(vocab))
        relation = draw(st.sampled_from(["unrelated", "unrelated", "unrelated", "equal", "disjoint"]))
        q = p if relation == "equal" else draw(tables(vocab))
        if relation == "disjoint":
            p, q = _cut(p, 0), _cut(q, 1)
        prompt = draw(st.sampled_from([(1, 0), (0,)]))
        return LawCase(
            p.opening(prompt, draw(st.integers(0, 1))),
            q,
            prompt,
            shape,
            depth=len(shape),
            nodes=64,
            rounds=2 if shape == (1,) else 1,
            temperature=draw(st.sampled_from([1.0, 1.0, 0.5, 2.0])),
            penalty=draw(st.booleans()),
            eos=draw(st.sampled_from([(), (), (vocab - 1,)])),
        )

    return case()


def _cut(table: HashTable, side: int) -> HashTable:
    """The table on every other token, so that two sides have disjoint supports."""
    return HashTable(
        tuple(tuple((weight or 1) * (token % 2 == side) for token, weight in enumerate(e)) for e in table.entries)
    )


EDGES: dict[str, tuple[HashTable, HashTable]] = {
    "full support": (FULL, HashTable(((1, 3, 4), (4, 2, 2), (3, 5, 1), (1, 1, 6)))),
    "p = q": (FULL, FULL),
    "disjoint supports": (HashTable(((3, 0, 2), (1, 0, 4))), HashTable(((0, 1, 0),))),
    "one-hot p": (HashTable(((0, 0, 1), (1, 0, 0))), FULL),
    "one-hot q": (FULL, HashTable(((0, 0, 1), (1, 0, 0)))),
    "near-degenerate p": (HashTable(((10**9, 1, 1), (1, 1, 10**9))), FULL),
    "near-degenerate q": (FULL, HashTable(((10**9, 1, 1), (1, 1, 10**9)))),
    "zeros in p": (HashTable(((0, 2, 3), (4, 0, 1))), FULL),
    # A prefix of weight below 1 whose residual has several tokens: where rules for blocks differ.
    "block": (HashTable(((4, 6, 0), (5, 3, 2))), HashTable(((5, 5, 0), (1, 3, 6), (2, 1, 5)))),
}


@applies(exact_sampling)
def edge_laws(subject: Subject, trial: Trial) -> str:
    """The law holds for chains of two and for siblings at the edges: disjoint supports, p = q, certainties, zeros."""
    count = 0
    shapes = ((1, 1), (3,)) if subject.sample.branching else ((1, 1),)
    for style, shape in itertools.product(("iid", "no-replace", "point"), shapes):
        if not KINDS[style] <= subject.sample.judges:
            continue
        for name, (p, q) in EDGES.items():
            for first in (0, 1):
                case = LawCase(p.opening((1, 0), first), q, (1, 0), shape, depth=len(shape), nodes=64)
                drafter = TableDrafter(q, style, shape)  # type: ignore[arg-type]
                try:
                    compare(case, TabularTarget(case.p, 3), drafter, subject.make(3), _LIMIT)
                except Exception as error:
                    raise Failure(f"{name}, {style} candidates: {reason_of(error)}", repr(case)) from error
                count += 1
    return f"{count} cases: {', '.join(EDGES)}"


def _approximate(subject: Subject) -> None:
    if subject.sample.exactness is not Exactness.APPROXIMATE:
        label = subject.sample.exactness.label
        raise NotApplicable(f"it declares {label}, which the checks of the law hold it to")


@applies(_approximate)
def same_as_plain(subject: Subject, trial: Trial) -> str:
    """An approximate verifier says how its law differs; without drafts it decodes plainly."""
    verifier = subject.sample
    if not verifier.bias_note.strip():
        raise Failure("it declares approximate, but bias_note is empty; expected how its law differs")
    case = LawCase(FULL.opening((1, 0), 1), prompt=(1, 0), depth=1, nodes=1, rounds=2)
    compare(case, TabularTarget(case.p, 3), NoDraft(), subject.make(3), _LIMIT)
    return f"approximate: {verifier.bias_note}"


@applies(exact_sampling)
def with_processor(subject: Subject, trial: Trial) -> str:
    """Processors see each node's own prefix: the law holds with one that looks at the last two tokens."""
    base = LawCase(FULL.opening((1, 0), 1), TIES, (1, 0), (1, 1), depth=2, nodes=64, penalty=True)
    styles = [style for style in ("point", "iid", "no-replace") if KINDS[style] <= subject.sample.judges]
    for style in styles:
        shapes = ((1, 1), (2, 1)) if subject.sample.branching and style == "point" else ((1, 1),)
        for shape in shapes:
            case = replace(base, shape=shape)
            drafter = TableDrafter(TIES, style, shape)  # type: ignore[arg-type]
            try:
                compare(case, TabularTarget(case.p, 3), drafter, subject.make(3), _LIMIT)
            except Exception as error:
                raise Failure(f"{style} candidates: {reason_of(error)}", repr(case)) from error
    return f"{', '.join(styles)} candidates"


LAWS: dict[str, Callable[[Subject, Trial], str]] = {
    "output-law-point": law_check("point"),
    "output-law-iid": law_check("iid"),
    "output-law-no-replace": law_check("no-replace"),
    "output-law-mixed": law_check("mixed"),
    "edge-laws": edge_laws,
    "prefix-processor": with_processor,
    "approximation-declared": same_as_plain,
    "estimator-identity": estimator_identity,
}
