"""The one loop. It asks parts what they can do, never who they are; plain decoding is the loop without guesses."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.clock import Clock
from specdec.core.contracts import validate, validate_count, validate_ids
from specdec.core.draft import Draft
from specdec.core.errors import InvalidLogitsError
from specdec.core.forest import Forest
from specdec.core.interfaces import Drafter, DraftSession, Part, Scheduler, Target, TargetSession, Verifier
from specdec.core.population import Population
from specdec.core.recorder import Recorder
from specdec.core.rng import Rng
from specdec.core.sampling import Laws, top
from specdec.core.standing import Standing
from specdec.core.state import Budget, Context, Outcome, Round, Row, Scores
from specdec.core.verdict import Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The composed parts of one decoder."""

    target: Target
    drafter: Drafter
    verifier: Verifier
    scheduler: Scheduler


@dataclass(eq=False)
class Generation:
    """One generation of a few rows; the only owner of its rows. Iterate over `rounds()` once.

    standing: which of a round's decisions may be emitted.

    Drafter and verifier draw from separate streams, so that no guess can depend on the coins that judge it.
    """

    parts: Parts
    rows: tuple[Row, ...]
    draft_rng: Rng
    verify_rng: Rng
    recorder: Recorder = field(default_factory=Recorder)
    session: TargetSession | None = None
    standing: Standing = field(default_factory=Standing)
    drafting: DraftSession | None = None

    @cached_property
    def population(self) -> Population:
        """What the rows are to each other; the verifier says."""
        with blame(self.parts.verifier, "gather", 0):
            return self.parts.verifier.gather(self.rows, self.verify_rng)

    @torch.inference_mode()
    def rounds(self) -> Iterator[Round]:
        """Run to the end; yields one event a round, round 0 being the pass over the prompts."""
        target, drafter = self.parts.target, self.parts.drafter
        verifier, scheduler, standing = self.parts.verifier, self.parts.scheduler, self.standing
        number, live, clock = 0, list(self.rows), Clock()
        with blame(target, "prefill", number):
            session = self.session = target.begin(live, drafter.needs)
            scores = session.prefill()
        clock.lap("target")
        with blame(drafter, "begin", number):
            shared, limit = _shared(self.parts), target.context_length
            context = Context(
                self.rows, target.vocab_size, target.device, scores, shared, limit, target.compiles, session.lend,
                session.widths,
            )  # fmt: skip
            drafting = self.drafting = drafter.begin(context)
        with blame(scheduler, "begin", number):
            schedule = scheduler.begin(context, drafter.drafts)
        forest = Forest.pack(live, [Draft.empty()] * len(live), target.device)
        clock.lap("draft")
        while True:
            with blame(verifier, "verify", number):
                laws = Laws(scores, forest)
                verdict = verifier.verify(forest, laws, self.verify_rng)
                choices = _choices(drafter, verifier, laws, self.verify_rng)
            outcomes = self._commit(laws, verdict, choices, scores)
            live = [row for row in live if not row.done]
            with blame(target, "commit", number):
                session.commit(outcomes, live)
            clock.lap("verify")
            event = Round(number, tuple(outcomes), clock.times(), forest.width)
            told = standing.told(event)
            self.recorder.round(event, told)
            yield event
            if not live:
                return
            number, clock = number + 1, Clock()
            with blame(drafter, "observe", number):
                drafting.observe([outcome for outcome in told.rows if not outcome.done])
            live = self._resume(session, drafting, live, number)
            if not live:
                return  # all go on from rows that have ended
            with blame(scheduler, "plan", number):
                schedule.observe(told)
                budgets = standing.budgets(schedule.plan(live), live)
            with blame(drafter, "propose", number):
                drafts = drafting.propose(standing.seen(live), budgets, self.draft_rng)
                self._validate(drafts, live, budgets)
            forest = Forest.pack(live, standing.scored(live, drafts), context.device, target.vocab_size)
            clock.lap("draft")
            with blame(target, "score", number):
                scores = session.score(forest)
            clock.lap("target")

    def _resume(self, session: TargetSession, drafting: DraftSession, live: list[Row], number: int) -> list[Row]:
        """Let rows go on from other rows' text, as the population says; returns the rows that are live then."""
        ancestors = self.population.ancestors(live)
        if not ancestors:
            return live
        rows = {row.index: row for row in self.rows}
        sources = {index: copy.copy(rows[source]) for index, source in ancestors.items()}  # as they are now
        for index, source in sources.items():
            rows[index].take_over(source)
        live = [row for row in self.rows if not row.done]
        self.recorder.follow(ancestors)
        with blame(self.parts.target, "follow", number):
            session.follow(ancestors, live)
        with blame(self.parts.drafter, "follow", number):
            drafting.follow(ancestors)
        return live

    def _validate(self, drafts: Sequence[Draft], live: Sequence[Row], budgets: Sequence[Budget]) -> None:
        validate_count(drafts, len(live))
        for row, draft, budget in zip(live, drafts, budgets, strict=True):
            validate(draft, self.parts.drafter, budget, self.parts.target.vocab_size, row.index)

    def _commit(self, laws: Laws, verdict: Verdict, choices: dict[str, Tensor], scores: Scores) -> list[Outcome]:
        """Read the verdict, once, and append to each row what it emitted."""
        forest, outcomes = laws.forest, []
        weights, leaves, following, ids, *rest = _read(verdict, forest, choices)
        chosen, gains = dict(zip(choices, rest, strict=True)), []
        each = forest.depth + 1  # weights a row
        for index, (row, draft, shape) in enumerate(zip(forest.rows, forest.drafts, forest.shapes, strict=True)):
            start = index * forest.width + 1
            drafted = tuple(ids[start : start + len(draft)])
            with blame(self.parts.drafter, "propose", row.rounds):
                validate_ids(drafted, laws.vocab_size, row.index)
            path = shape.paths[leaves[index]]
            emitted = [drafted[node - 1] for node in path]
            if not (emitted and emitted[-1] in row.eos):
                if not 0 <= following[index] < laws.vocab_size:
                    raise InvalidLogitsError(
                        f"row {row.index}, token {len(row.tokens)}: the target's logits hold NaN or only -inf, so "
                        "no token can be drawn. Check the model's dtype and the logits processors"
                    )
                emitted.append(following[index])
            path, emitted = self.standing.settle(row, path, emitted)
            nodes = (0, *path)[: len(emitted)]
            seen = self.recorder.processed(index, nodes, laws)  # while the row has the text that processors are due
            count = row.extend(emitted, self.recorder.scores_of(row, seen), forest.device)
            self.recorder.emitted(row, index, nodes[:count], laws, seen)
            row.rounds += 1
            gains.append(sum(weights[index * each : index * each + count]))
            kept = tuple(emitted[:count])
            own = {name: _of_row(chosen[name], choices[name], index, len(draft) + 1) for name in chosen}
            outcomes.append(Outcome(row, draft, drafted, path[:count], kept, scores, index, row.done, choices=own))
        self.population.weigh(outcomes, gains)
        return outcomes


def _shared(parts: Parts) -> dict[str, torch.nn.Module]:
    """The target's modules that the drafter asked for; composition has checked that they are there."""
    found = {name: parts.target.shared(name) for name in parts.drafter.needs.shared}
    return {name: module for name, module in found.items() if module is not None}


def _choices(drafter: Drafter, verifier: Verifier, laws: Laws, rng: Rng) -> dict[str, Tensor]:
    """What the drafter wants to know of every node, `[rows, width]` or `[rows, width, k]`, still on the device."""
    found = {}
    for name in drafter.needs.choices:
        if name == "decided":
            found[name] = verifier.decided(laws.forest, laws, rng)
        else:
            count = int(name.removeprefix("top:"))
            found[name] = laws.likely[..., None] if count == 1 else top(laws.logits, count)
    return found


def _of_row(values: list[int], like: Tensor, row: int, nodes: int) -> tuple[Any, ...]:
    """One row's choices at its first `nodes` nodes: an id each, or a tuple of ids each."""
    width = like.shape[1]
    if like.ndim == 2:
        return tuple(values[row * width : row * width + nodes])
    each, start = like.shape[2], row * width * like.shape[2]
    return tuple(tuple(values[at : at + each]) for at in range(start, start + nodes * each, each))


def _read(verdict: Verdict, forest: Forest, choices: dict[str, Tensor]) -> list[Any]:
    """The round's one read: weights, if there are any, then leaves, next tokens, ids and choices."""
    more = [] if verdict.log_weights is None else [verdict.log_weights]
    read = host.read(verdict.leaf, verdict.next_token, forest.given, *choices.values(), *more)
    weights = read.pop() if verdict.log_weights is not None else []
    return [weights, *(list(map(int, part)) for part in read)]


class blame:
    """Let an exception keep its type and say in a note which part raised it, where, and in which round."""

    __slots__ = ("_method", "_number", "_part")

    def __init__(self, part: Part, method: str, number: int) -> None:
        self._part, self._method, self._number = part, method, number

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        note = f"while calling {self._method}() of {self._part.role} '{self._part.name}', round {self._number}"
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(note)
        else:
            vars(error).setdefault("__notes__", []).append(note)
