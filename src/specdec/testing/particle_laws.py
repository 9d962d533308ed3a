"""The check of laws for verifiers that weigh particles: their weights are right on average, whatever is resampled."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

from specdec.core.contracts import Exactness
from specdec.schedulers.fixed import Fixed
from specdec.testing.enumeration import enumerate_law, total_variation
from specdec.testing.harness import difference, finish, generation_of, step_of
from specdec.testing.honest import TableDrafter
from specdec.testing.laws import LawCase, sampling_for, tables
from specdec.testing.subject import Subject
from specdec.testing.tabular import TabularTarget, sequence_law
from specdec.testing.trial import Failure, NotApplicable, Trial, applies, hypothesis

__all__ = ["estimator_identity", "weighed_law"]

_LIMIT = 6000
_EQUAL = 1e-7
# Children by depth, particles, tokens and end tokens that can be enumerated, resampling between rounds included.
_SIZES: tuple[tuple[tuple[int, ...], int, int, tuple[int, ...]], ...] = (
    ((1,), 2, 3, ()),
    ((1,), 2, 4, ()),
    ((1, 1), 2, 4, ()),
    ((1,), 3, 3, ()),
    ((1,), 2, 4, (1,)),
    ((1,), 1, 4, ()),
)


def _consistent(subject: Subject) -> None:
    if subject.sample.exactness is not Exactness.CONSISTENT:
        label = subject.sample.exactness.label
        raise NotApplicable(f"it declares {label}; weights belong to a law that is right in a limit only")


@applies(_consistent)
def estimator_identity(subject: Subject, trial: Trial) -> str:
    """A consistent verifier's weights give E[w f] = E_p[f], every random branch counted."""
    kinds = {kind.value for kind in subject.sample.judges}
    styles = [style for style in ("iid", "no-replace", "point") if style in kinds]
    counted = [0, 0, 0]  # cases, those in which particles were resampled, those with too many branches

    def body(case: LawCase) -> None:
        try:
            got, resampled = weighed_law(subject, case)
        except RuntimeError as error:
            if "random branches" not in str(error):
                raise
            counted[2] += 1
            return
        step = step_of(TabularTarget(case.p, case.p.vocab_size), sampling_for(case))
        want = sequence_law(step, case.prompt, case.nodes, case.eos)
        distance = total_variation(got, want)
        if not distance < _EQUAL:
            raise Failure(
                f"what the weights sum to on average is not the target's law: distance {distance:.3g}; "
                f"{difference(got, want)}"
            )
        counted[0] += 1
        counted[1] += resampled

    trial.search(_cases(styles), body)
    if not counted[0]:
        raise Failure("no case could be enumerated: each has more random branches than can be run")
    skipped = f"; {counted[2]} with too many branches left out" if counted[2] else ""
    return f"{counted[0]} cases, in {counted[1]} of which particles were resampled{skipped}"


def weighed_law(subject: Subject, case: LawCase) -> tuple[dict[Hashable, float], bool]:
    """E of the unnormalised weight of each text, and whether any branch resampled.

    `case.nodes` is the number of tokens, `case.rounds` that of particles and `case.rule` the style of the drafts.
    """
    assert case.q is not None
    vocab, resampled = case.p.vocab_size, False

    def run(rng: Any) -> Hashable:
        nonlocal resampled
        drafter = TableDrafter(case.q, case.rule, case.shape)  # type: ignore[arg-type]
        generation = generation_of(
            TabularTarget(case.p, vocab), drafter, subject.make(vocab), Fixed(case.depth, 64), [case.prompt],
            case.nodes, rng, sampling=sampling_for(case), eos=case.eos, particles=case.rounds,
        )  # fmt: skip
        finish(generation)
        ensembles = generation.population.ensembles(generation.rows)
        if ensembles is None:
            raise Failure("gather() returned a population without ensembles; expected particles with weights")
        (one,) = ensembles
        resampled = resampled or any(one.resampled)
        return tuple(
            (tokens, math.exp(one.log_z) * share) for tokens, share in zip(one.tokens, one.weights, strict=True)
        )

    law: dict[Hashable, float] = {}
    for particles, chance in enumerate_law(run, _LIMIT).items():
        for tokens, weight in particles:  # type: ignore[attr-defined]
            law[tokens] = law.get(tokens, 0.0) + chance * weight
    return law, resampled


def _cases(styles: Sequence[str]) -> Any:
    st = hypothesis().strategies

    @st.composite
    def case(draw: Any) -> LawCase:
        shape, particles, tokens, eos = draw(st.sampled_from(_SIZES))
        return LawCase(
            draw(tables(2)).opening((1, 0), draw(st.integers(0, 1))),
            draw(tables(2)),
            (1, 0),
            shape,
            depth=len(shape),
            nodes=tokens,
            rounds=particles,
            temperature=draw(st.sampled_from([1.0, 0.5])),
            penalty=draw(st.booleans()),
            eos=eos,
            rule=draw(st.sampled_from(list(styles))),
        )

    return case()
