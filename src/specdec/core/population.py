"""Rows that stand for one output together: how they are weighed, which of them go on, and which one is the text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from specdec.core.state import Outcome, Row


class Population:
    """One generation's rule for which rows go on after a round; here every row does, and each is an output.

    A verifier whose rows are particles gives a rule of its own (`Verifier.gather`). The engine tells it what each
    round added to the rows' weights and asks, before the next one, which row goes on from which; whoever reads the
    result asks which rows are the outputs.
    """

    def weigh(self, outcomes: Sequence[Outcome], gains: Sequence[float]) -> None:
        """Take note of a round: `gains[i]` is the log weight that the tokens of `outcomes[i]` add to its row."""

    def ancestors(self, live: Sequence[Row]) -> Mapping[int, int]:
        """Index of a row to the index of the row whose text it goes on from; rows that are not named stay."""
        return {}

    def outputs(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The row that is the text of each output, in order."""
        return rows

    def ensembles(self, rows: Sequence[Row]) -> tuple[Ensemble, ...] | None:
        """What is known of each output's particles, or None where rows are not weighed."""
        return None


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The particles of one output, weighed.

    tokens: new tokens of each particle. log_weights: since the last resampling, up to one constant; weights: the
        same, normalised: the chance of each to be the text. chosen: which of them is.
    ess: effective sample size after each round, the pass over the prompt first. resampled: whether it was followed
        by resampling.
    log_z: log of an unbiased estimate of the mass of the law that was aimed at; of 1 for the target's own law.
    survivors: how many of the first particles have descendants among the last ones.
    """

    tokens: tuple[tuple[int, ...], ...]
    log_weights: tuple[float, ...]
    weights: tuple[float, ...]
    chosen: int
    ess: tuple[float, ...]
    resampled: tuple[bool, ...]
    log_z: float
    survivors: int


def spread(rows: Iterable[Row], particles: int) -> tuple[Row, ...]:
    """Rows of which each is one output, as so many particles each; the particles share the prompt's slots."""
    if particles == 1:
        return tuple(rows)
    spread_out = [
        replace(row, copy=row.copy * particles + number, output=row.index)
        for row in rows
        for number in range(particles)
    ]
    return tuple(replace(row, index=index) for index, row in enumerate(spread_out))
