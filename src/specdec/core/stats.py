"""What a generation did, counted after stops and limits: tokens that were not emitted are not accepted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.state import Round


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and times of one generation.

    rounds: rounds run, the pass over the prompts included. target_passes: passes in which a row took part, summed
        over rows. emitted: new tokens. judged, accepted: drafted tokens judged and kept.
    accepted_by_depth, judged_by_depth: index 0 is depth 1; a chain's node counts as judged at its depth.
    accepted_lengths: how many rounds accepted 0, 1, 2, ... drafted tokens.
    seconds_*: wall clock in drafting, target passes, verification and everything.
    smallest_margin: smallest difference between the two largest processed scores at an emitted token, greedy
        only. near_ties: emitted tokens whose margin lay within `drift`, the measured difference between wide and
        narrow passes; None where that was not measured.
    """

    rounds: int = 0
    target_passes: int = 0
    emitted: int = 0
    nodes_scored: int = 0
    judged: int = 0
    accepted: int = 0
    accepted_by_depth: tuple[int, ...] = ()
    judged_by_depth: tuple[int, ...] = ()
    accepted_lengths: tuple[int, ...] = ()
    seconds_draft: float = 0.0
    seconds_target: float = 0.0
    seconds_verify: float = 0.0
    seconds_total: float = 0.0
    smallest_margin: float | None = None
    near_ties: int | None = None
    drift: float | None = None

    @property
    def tokens_per_pass(self) -> float:
        """Emitted tokens a target pass, bonus tokens and the pass over the prompt included; 1.0 is plain decoding."""
        return self.emitted / self.target_passes if self.target_passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / judged drafted tokens; 0.0 where nothing was judged."""
        return self.accepted / self.judged if self.judged else 0.0

    @property
    def mean_accepted(self) -> float:
        """Drafted tokens kept a target pass."""
        return self.accepted / self.target_passes if self.target_passes else 0.0


@dataclass(eq=False)
class Tally:
    """The engine's running counts; `stats` gives them as one frozen record."""

    drift: float | None = None
    rounds: int = 0
    passes: int = 0
    emitted: int = 0
    nodes: int = 0
    judged: int = 0
    accepted: int = 0
    by_depth: list[int] = field(default_factory=list)
    judged_by_depth: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])
    margins: list[Tensor] = field(default_factory=list)

    def add(self, event: Round, told: Round) -> None:
        self.rounds += 1
        self.passes += len(event.rows)
        for outcome in event.rows:
            self.emitted += len(outcome.tokens)
            self.nodes += 1 + len(outcome.draft)
        for outcome in told.rows:
            shape = outcome.draft.topology
            self.judged += shape.judged
            self.accepted += outcome.accepted
            _bump(self.lengths, outcome.accepted)
            for depth in range(outcome.accepted):
                _bump(self.by_depth, depth)
            for node, depth in enumerate(shape.depths[1:]):
                if node not in shape.scratch:
                    _bump(self.judged_by_depth, depth - 1)
        times = (event.times.draft, event.times.target, event.times.verify, event.times.total)
        self.seconds = [old + new for old, new in zip(self.seconds, times, strict=True)]

    def add_margins(self, scores: Iterable[Tensor]) -> None:
        """Remember top-2 margins of emitted tokens; they stay on the device until `stats`."""
        top = torch.stack(list(scores)).topk(2, dim=-1).values
        self.margins.append(top[:, 0] - top[:, 1])

    def stats(self) -> Stats:
        smallest = near = None
        if self.margins:
            (flat,) = host.read(torch.cat(self.margins).double())
            smallest = float(min(flat))
            near = sum(value <= self.drift for value in flat) if self.drift is not None else None
        return Stats(
            rounds=self.rounds,
            target_passes=self.passes,
            emitted=self.emitted,
            nodes_scored=self.nodes,
            judged=self.judged,
            accepted=self.accepted,
            accepted_by_depth=tuple(self.by_depth),
            judged_by_depth=tuple(self.judged_by_depth),
            accepted_lengths=tuple(self.lengths),
            seconds_draft=self.seconds[0],
            seconds_target=self.seconds[1],
            seconds_verify=self.seconds[2],
            seconds_total=self.seconds[3],
            smallest_margin=smallest,
            near_ties=near,
            drift=self.drift,
        )


def _bump(counts: list[int], index: int) -> None:
    counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1
