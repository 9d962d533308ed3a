"""What every scheduler must keep: typed, bounded budgets that follow from events alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch

from specdec.core.interfaces import Scheduler, ScheduleSession
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Round, RoundTimes, Row
from specdec.drafters.none import NoDraft
from specdec.testing.drafter_laws import compare
from specdec.testing.drafter_runs import random_state
from specdec.testing.harness import FULL, finish, generation_of
from specdec.testing.honest import TableDrafter
from specdec.testing.laws import HashTable, LawCase
from specdec.testing.subject import Subject
from specdec.testing.tabular import TabularTarget
from specdec.testing.trial import Failure, NotApplicable, Trial, applies, reason_of
from specdec.verifiers.block import Block
from specdec.verifiers.walk import Walk

__all__ = ["SCHEDULER"]

PROMPTS: tuple[tuple[int, ...], ...] = ((1, 0), (2,), (0, 2, 1))
MOST = 1 << 16
OTHER = HashTable(((1, 3, 4), (4, 2, 2), (3, 5, 1), (1, 1, 6)))


class Watched(Scheduler):
    """Keeps the plans of another scheduler and the events that it was shown."""

    name = "watched"

    def __init__(self, inner: Any) -> None:
        self.inner, self.measures_time = inner, inner.measures_time
        self.sessions: list[_Watched] = []

    def begin(self, context: Context, drafts: bool) -> ScheduleSession:
        session = _Watched(self.inner.begin(context, drafts), drafts)
        self.sessions.append(session)
        return session

    @property
    def plans(self) -> list[Any]:
        """Every plan of every session, in order."""
        return [plan for session in self.sessions for plan in session.plans]


class _Watched(ScheduleSession):
    def __init__(self, session: Any, drafts: bool) -> None:
        self.session, self.drafts = session, drafts
        self.plans: list[Any] = []
        self.rows: list[tuple[tuple[int, ...], ...]] = []
        self.events: list[Round] = []

    def plan(self, rows: Sequence[Row]) -> Budget:
        before = [tuple(row.tokens) for row in rows]
        plan = self.session.plan(rows)
        if [tuple(row.tokens) for row in rows] != before:
            raise Failure("plan() changed the tokens of a row")
        self.plans.append(plan)
        self.rows.append(tuple(before))
        return _usable(plan)

    def observe(self, event: Round) -> None:
        self.events.append(event)
        self.session.observe(event)


def _usable(plan: Any) -> Budget:
    """The plan as far as the engine can use it, so that a run goes on and the plan itself is judged."""
    if not isinstance(plan, Budget):
        return Budget(1, 1)
    whole = all(isinstance(value, Integral) and 0 <= value <= 64 for value in (plan.depth, plan.nodes))
    return plan if whole else Budget(2, 4)


def runs(subject: Subject, tokens: int = 24) -> list[Watched]:
    """The scheduler in generations with good drafts, bad ones and none, alone and in a batch."""
    found = []
    for drafter in (TableDrafter(FULL, "point", (1,) * 8), TableDrafter(OTHER, "point", (1,) * 8), NoDraft()):
        for prompts in (PROMPTS, PROMPTS[:1]):
            watched = Watched(subject.make(3))
            sampling = Sampling(greedy=len(prompts) == 1)
            generation = generation_of(
                TabularTarget(FULL, 3), drafter, Walk(), watched, prompts, tokens, TorchRng(3), sampling=sampling
            )
            try:
                finish(generation)
            except Failure:
                raise
            except Exception as error:
                raise Failure(reason_of(error)) from error
            found.append(watched)
    return found


def interface(subject: Subject, trial: Trial) -> str:
    """begin() gives a ScheduleSession, plan() a Budget."""
    count = 0
    for watched in runs(subject):
        for session in watched.sessions:
            if not isinstance(session.session, ScheduleSession):
                raise Failure(f"begin() returned {type(session.session).__name__}; expected a ScheduleSession")
            for plan in session.plans:
                count += 1
                if not isinstance(plan, Budget):
                    raise Failure(f"plan() returned {type(plan).__name__}; expected a Budget")
    return f"{count} plans"


def _plans(subject: Subject) -> list[Budget]:
    plans = [plan for watched in runs(subject) for plan in watched.plans if isinstance(plan, Budget)]
    if not plans:
        raise Failure("plan() returned no Budget to look at")
    return plans


def budgets(subject: Subject, trial: Trial) -> str:
    """Depth and nodes are whole numbers of at least 0; cost can be asked and rate is a speed."""
    plans = _plans(subject)
    for plan in plans:
        for name in ("depth", "nodes"):
            value = getattr(plan, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise Failure(f"plan() returned {name}={value!r}; expected a whole number", repr(plan))
            if value < 0:
                raise Failure(f"plan() returned {name}={value}; expected at least 0", repr(plan))
        if plan.rate is not None and not plan.rate >= 0:
            raise Failure(f"plan() returned rate={plan.rate!r}; expected a speed of at least 0, or None", repr(plan))
        if plan.cost is not None:
            seconds = plan.cost(max(1, min(int(plan.nodes), 64)))
            if not 0 <= float(seconds) < float("inf"):
                raise Failure(f"the cost that plan() returned is {seconds!r} seconds", repr(plan))
    return f"{len(plans)} plans"


def bounded(subject: Subject, trial: Trial) -> str:
    """Budgets stay below 65536 nodes and that depth, over a generation of 200 tokens too."""
    watched = Watched(subject.make(3))
    finish(
        generation_of(
            TabularTarget(FULL, 3), TableDrafter(FULL, "point", (1,) * 8), Walk(), watched, PROMPTS[:1], 200,
            TorchRng(1),
        )
    )  # fmt: skip
    plans = [*_plans(subject), *(plan for plan in watched.plans if isinstance(plan, Budget))]
    for plan in plans:
        if not (plan.depth <= MOST and plan.nodes <= MOST):
            raise Failure(f"plan() returned a budget without bound; expected at most {MOST}", repr(plan))
    return f"{len(plans)} plans"


def terminates(subject: Subject, trial: Trial) -> str:
    """Every generation ends, with at most one round a token."""
    rounds = 0
    for watched in runs(subject):
        for session in watched.sessions:
            rounds += len(session.plans)
            if len(session.plans) > 24:
                raise Failure(f"{len(session.plans)} rounds for 24 tokens")
    return f"{rounds} rounds"


def zero_allowed(subject: Subject, trial: Trial) -> str:
    """It plans on where nothing was drafted, and for a drafter that never guesses."""
    count = 0
    for watched in runs(subject)[-2:]:
        for session in watched.sessions:
            for event in session.events:
                if any(len(outcome.draft) for outcome in event.rows):
                    raise Failure("a drafter that never guesses was made to guess")
            count += len(session.plans)
    if not count:
        raise Failure("nothing was planned")
    return f"{count} plans without a draft"


def _timeless(subject: Subject) -> None:
    if subject.sample.measures_time:
        raise NotApplicable("it measures time (measures_time=True), so budgets differ from run to run")


@applies(_timeless)
def sees_no_draws(subject: Subject, trial: Trial) -> str:
    """The same events give the same budgets: nothing else, chance or time or a former generation, decides."""
    count = 0
    for watched in runs(subject):
        (session,) = watched.sessions
        for seed in (1, 2):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                before = random_state()
                again = _replayed(subject, watched, session)
                if random_state() != before:
                    raise Failure("the scheduler drew from the global generator of Python or torch")
            for number, (old, new) in enumerate(zip(session.plans, again, strict=True)):
                count += 1
                if _limits(old) != _limits(new):
                    raise Failure(
                        f"the plan of round {number + 1} was {_limits(old)}; from the same events replayed it is "
                        f"{_limits(new)}"
                    )
    return f"{count} plans replayed"


def _replayed(subject: Subject, watched: Watched, session: _Watched) -> list[Any]:
    """What a new session of the same scheduler plans where it is shown the same events at other times."""
    sampling = Sampling(greedy=False)
    rows = tuple(
        Row(outcome.row.index, list(outcome.row.tokens[: outcome.row.prompt_length]), sampling, outcome.row.max_length)
        for outcome in session.events[0].rows
    )
    context = Context(rows, 3, torch.device("cpu"), session.events[0].rows[0].scores)
    fresh = watched.inner.begin(context, session.drafts)
    found = []
    for texts, event in zip(session.rows, session.events, strict=False):
        shown = Round(event.number, event.rows, RoundTimes(0.5, 0.25, 0.125, 0.875), event.width)
        fresh.observe(shown)
        live = [row for row in rows if any(text[: row.prompt_length] == tuple(row.tokens)[: row.prompt_length]
                                           for text in texts)]  # fmt: skip
        for row in live:
            text = next(text for text in texts if text[: row.prompt_length] == tuple(row.tokens)[: row.prompt_length])
            for token in text[len(row.tokens) :]:
                row.tokens.commit(token)  # type: ignore[attr-defined]
        found.append(fresh.plan(live))
    return found


def _limits(plan: Any) -> tuple[Any, ...]:
    return (plan.depth, plan.nodes) if isinstance(plan, Budget) else (plan,)


@applies(_timeless)
def no_leak(subject: Subject, trial: Trial) -> str:
    """Generations under one scheduler, interleaved or in sequence, have the budgets that they have alone."""

    def start(inner: Any, prompt: tuple[int, ...]) -> tuple[Any, Watched]:
        watched = Watched(inner)
        drafter = TableDrafter(OTHER, "point", (1,) * 8)
        return generation_of(TabularTarget(FULL, 3), drafter, Walk(), watched, [prompt], 20, TorchRng(2)), watched

    alone = []
    for prompt in PROMPTS:
        generation, watched = start(subject.make(3), prompt)
        finish(generation)
        alone.append([_limits(plan) for plan in watched.plans])
    shared = subject.make(3)
    started = [start(shared, prompt) for prompt in PROMPTS]
    active = [generation.rounds() for generation, _ in started]
    while active:
        active = [events for events in active if next(events, None) is not None]
    for prompt, plans, (_, watched) in zip(PROMPTS, alone, started, strict=True):
        if plans != [_limits(plan) for plan in watched.plans]:
            raise Failure("budgets of a generation change when others run beside it", f"prompt={prompt}")
    return "3 generations, alone and interleaved"


@applies(_timeless)
def output_law(subject: Subject, trial: Trial) -> str:
    """Under this scheduler a sampled drafter keeps the target's law, every random branch counted."""
    prompts: tuple[tuple[int, ...], ...] = ((1, 0), (2,))
    for p, q in ((FULL, OTHER), (OTHER, FULL)):
        for prompt in prompts:
            case = LawCase(p.opening(prompt, 1), q, prompt, (1,), depth=1, nodes=1, rounds=2)
            drafter = TableDrafter(q, "iid", (1,))
            try:
                compare(case, TabularTarget(case.p, 3), drafter, Block(), 20_000, Watched(subject.make(3)))
            except Failure:
                raise
            except Exception as error:
                raise Failure(reason_of(error), repr(case)) from error
    return "4 cases of two rounds"


SCHEDULER: dict[str, Callable[[Subject, Trial], str]] = {
    "interface": interface,
    "budgets": budgets,
    "bounded": bounded,
    "terminates": terminates,
    "zero-allowed": zero_allowed,
    "sees-no-draws": sees_no_draws,
    "no-leak": no_leak,
    "output-law": output_law,
}
