"""The particles of each output: their weights, when they are resampled, and which one is the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from specdec.core import host
from specdec.core.population import Ensemble, Population
from specdec.core.rng import Rng
from specdec.core.state import Outcome, Row
from specdec.verifiers.resampling import RESAMPLERS, effective_sample_size, in_place, log_mean_exp, normalised

_RESAMPLE, _PICK = 21, 22


@dataclass(eq=False)
class _Group:
    """The particles of one output. log_weights: since the last resampling. log_z: of the resamplings before."""

    rows: list[Row]
    log_weights: list[float]
    first: list[int]  # of each particle, the one of the beginning that it descends from
    log_z: float = 0.0
    ess: list[float] = field(default_factory=list)
    resampled: list[bool] = field(default_factory=list)

    @property
    def copy(self) -> int:
        return self.rows[0].copy  # names the group's draws


class Particles(Population):
    """Sequential Monte Carlo over rows: weights in float64 on the host, adaptive resampling, a final weighted pick.

    threshold: share of the particles below which the effective sample size makes a group be resampled. Particles that
    have ended keep their weight and stand for resampling as the others do.
    """

    def __init__(self, rows: Sequence[Row], rng: Rng, threshold: float, resampling: str) -> None:
        self._threshold, self._resample = threshold, RESAMPLERS[resampling]
        self._rng = rng
        members: dict[int, list[Row]] = {}
        for row in rows:
            members.setdefault(row.output, []).append(row)
        self._groups = {
            output: _Group(rows, [0.0] * len(rows), list(range(len(rows)))) for output, rows in members.items()
        }
        self._place = {row.index: place for group in self._groups.values() for place, row in enumerate(group.rows)}

    def weigh(self, outcomes: Sequence[Outcome], gains: Sequence[float]) -> None:
        touched: dict[int, _Group] = {}
        for outcome, gain in zip(outcomes, gains, strict=True):
            group = touched[outcome.row.output] = self._groups[outcome.row.output]
            group.log_weights[self._place[outcome.row.index]] += gain
        for group in touched.values():
            group.ess.append(effective_sample_size(normalised(group.log_weights)))
            group.resampled.append(False)

    def ancestors(self, live: Sequence[Row]) -> Mapping[int, int]:
        moves: dict[int, int] = {}
        for output in dict.fromkeys(row.output for row in live):
            group = self._groups[output]
            count = len(group.rows)
            if not group.ess[-1] < self._threshold * count:
                continue
            key = (group.copy, len(group.ess))
            found = in_place(self._resample(normalised(group.log_weights), self._rng.fold(_RESAMPLE), key))
            group.log_z += log_mean_exp(group.log_weights)
            group.log_weights, group.resampled[-1] = [0.0] * count, True
            group.first = [group.first[found.get(place, place)] for place in range(count)]
            moves |= {group.rows[place].index: group.rows[source].index for place, source in found.items()}
        return moves

    def outputs(self, rows: Sequence[Row]) -> Sequence[Row]:
        return [group.rows[self._pick(group)] for group in self._groups.values()]

    def ensembles(self, rows: Sequence[Row]) -> tuple[Ensemble, ...]:
        return tuple(
            Ensemble(
                tokens=tuple(tuple(row.new_tokens) for row in group.rows),
                log_weights=tuple(group.log_weights),
                weights=tuple(normalised(group.log_weights)),
                chosen=self._pick(group),
                ess=tuple(group.ess),
                resampled=tuple(group.resampled),
                log_z=group.log_z + log_mean_exp(group.log_weights),
                survivors=len(set(group.first)),
            )
            for group in self._groups.values()
        )

    def _pick(self, group: _Group) -> int:
        """The particle that is the text, drawn in proportion to weight: the heaviest one would not converge."""
        weights = torch.tensor([normalised(group.log_weights)], dtype=torch.float64)
        key = (group.copy, len(group.ess))
        ((chosen,),) = host.read(self._rng.fold(_PICK).categorical(weights, at=[key], ahead=True))
        return int(chosen)
