"""Successive halving by measured speed: who is slower leaves, who stays is measured more. Free of torch and of time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

__all__ = ["Measured", "Outcome", "search"]

_RESAMPLES, _FEW = 2000, 4


@dataclass(frozen=True)
class Measured:
    """New tokens and the seconds they took."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    best, runner_up: names; None where nothing was measured. scores: for each name that was measured, speed over the
    reference's, averaged over tasks, on the prompts that it was measured on. ratio: of best over runner-up on the
    prompts of both. low, high: bounds of it in 95 % of the resamples of prompts; sure: share of resamples in which it
    is above 1; None for these where there are fewer than `_FEW` prompts, of which resamples would say nothing.
    prompts: how many prompts the two have in common; visits: how often they were decoded. unmeasured: names for which
    there was no time. failed: names that failed, with the reason. interrupted: whether the search was ended early.
    """

    best: str | None
    runner_up: str | None
    scores: Mapping[str, float]
    ratio: float | None
    low: float | None
    high: float | None
    sure: float | None
    prompts: int
    visits: int
    seconds: float
    unmeasured: tuple[str, ...]
    failed: Mapping[str, str]
    interrupted: bool = False


class Failed(Exception):
    """A strategy that shall not be chosen, for the reason given."""


def search(
    names: Sequence[str],
    tasks: Sequence[str],
    measure: Callable[[str, int], Measured],
    seconds: float,
    clock: Callable[[], float],
    reference: str,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Find the fastest of `names` in at most `seconds` of `clock`.

    tasks: the task of each prompt. measure: decodes a prompt by its number with a strategy, or raises Failed. Every
    visit of a prompt measures the reference and all who are left, in turn, in an order that rotates. A round lasts an
    equal part of the time that is left and at least one visit; after it the slower half leaves. A decoding that would
    probably not end in time is not begun. After an interrupt the choice is made among what has been measured.
    """
    start = clock()
    state = _State(names, reference, _round_robin(tasks), tasks)
    rounds = max(1, math.ceil(math.log2(max(2, len(state.alive)))))
    late = interrupted = False
    try:
        for left in range(rounds, 0, -1):
            until = clock() + (seconds - (clock() - start)) / left
            while state.alive:
                late = not _visit(state, measure, seconds - (clock() - start), clock, say)
                if late or clock() >= until:
                    break
            if late or len(state.alive) <= 1 or left == 1:
                break
            ranked = state.ranked()
            kept = ranked[: max(2, math.ceil(len(ranked) / 2))]
            shown = ", ".join(f"{name} {state.score(name):.2f}x" for name in ranked)
            say(f"after {state.visits} decodings of each: {shown}")
            state.alive = [name for name in state.alive if name in kept]
    except KeyboardInterrupt:
        interrupted = True
    return _outcome(state, clock() - start, interrupted)


class _State:
    def __init__(self, names: Sequence[str], reference: str, order: Sequence[int], tasks: Sequence[str]) -> None:
        self.names = [name for name in names if name != reference]
        self.alive, self.reference = list(self.names), reference
        self.order, self.tasks, self.visits = order, tasks, 0
        self.seen: dict[str, dict[int, Measured]] = {name: {} for name in [reference, *self.names]}
        self.failed: dict[str, str] = {}

    def prompt(self, visit: int) -> int:
        return self.order[visit % len(self.order)]

    def common(self, names: Sequence[str]) -> list[int]:
        """Visits in which the reference and all of these were measured."""
        return sorted(set.intersection(*(set(self.seen[name]) for name in [self.reference, *names])))

    def score(self, name: str, visits: Sequence[int] | None = None) -> float:
        """Speed over the reference's, averaged over tasks."""
        by_task: dict[str, list[int]] = {}
        for visit in self.common([name]) if visits is None else visits:
            by_task.setdefault(self.tasks[self.prompt(visit)], []).append(visit)
        ratios = [self._speed(name, group) / self._speed(self.reference, group) for group in by_task.values()]
        return fmean(ratios) if ratios else 0.0

    def ranked(self) -> list[str]:
        """Who is left, fastest first: on the prompts that all were measured on, if there are any."""
        visits = self.common(self.alive) or None
        return sorted(self.alive, key=lambda name: -self.score(name, visits))

    def _speed(self, name: str, visits: Sequence[int]) -> float:
        found = [self.seen[name][visit] for visit in visits]
        return max(1, sum(one.tokens for one in found)) / max(1e-9, sum(one.seconds for one in found))


def _visit(
    state: _State,
    measure: Callable[[str, int], Measured],
    seconds: float,
    clock: Callable[[], float],
    say: Callable[[str], None],
) -> bool:
    """Measure the reference and all who are left on the next prompt; False if time ran out within it."""
    begun, visit = clock(), state.visits
    names = [state.reference, *state.alive]
    turn = visit % len(names)
    # In the first visit plain decoding goes first, since without it nothing else says anything.
    for name in [*names[turn:], *names[:turn]]:
        if clock() - begun + _expected(state, name) > seconds:
            return False
        try:
            state.seen[name][visit] = measure(name, state.prompt(visit))
        except Failed as reason:
            if name == state.reference:
                raise
            say(f"{name}: left out: {reason}")
            state.failed[name] = str(reason)
            state.alive.remove(name)
    state.visits += 1
    return True


def _expected(state: _State, name: str) -> float:
    """The longest that this strategy took; for one not seen yet, the longest that any took."""
    of_name = [one.seconds for one in state.seen[name].values()]
    of_all = (one.seconds for found in state.seen.values() for one in found.values())
    return max(of_name) if of_name else max(of_all, default=0.0)


def _outcome(state: _State, seconds: float, interrupted: bool) -> Outcome:
    scores = {name: state.score(name) for name in state.names if state.common([name]) and name not in state.failed}
    ranked = [name for name in state.ranked() if name in scores]
    best, runner_up = (*ranked[:2], None, None)[:2]
    ratio = low = high = sure = None
    visits = state.common([best]) if best is not None else []
    if best is not None and runner_up is not None and (both := state.common([best, runner_up])):
        visits = both
        ratio = state.score(best, visits) / state.score(runner_up, visits)
        if len(set(map(state.prompt, visits))) >= _FEW:
            low, high, sure = _bootstrap(state, best, runner_up, visits)
    return Outcome(
        best=best,
        runner_up=runner_up,
        scores=dict(sorted(scores.items(), key=lambda pair: -pair[1])),
        ratio=ratio,
        low=low,
        high=high,
        sure=sure,
        prompts=len(set(map(state.prompt, visits))),
        visits=len(visits),
        seconds=seconds,
        unmeasured=tuple(name for name in state.names if name not in scores and name not in state.failed),
        failed=state.failed,
        interrupted=interrupted,
    )


def _bootstrap(state: _State, best: str, other: str, visits: Sequence[int]) -> tuple[float, float, float]:
    """Bounds of 95 % of the ratios over resampled prompts, each with all its visits, and the share of them above 1."""
    draw = random.Random(0)
    by_prompt: dict[int, list[int]] = {}
    for visit in visits:
        by_prompt.setdefault(state.prompt(visit), []).append(visit)
    groups, ratios = list(by_prompt.values()), []
    for _ in range(_RESAMPLES):
        sample = [visit for group in draw.choices(groups, k=len(groups)) for visit in group]
        ratios.append(state.score(best, sample) / state.score(other, sample))
    ratios.sort()
    edge = int(0.025 * _RESAMPLES)
    return ratios[edge], ratios[-1 - edge], sum(ratio > 1 for ratio in ratios) / _RESAMPLES


def _round_robin(tasks: Sequence[str]) -> list[int]:
    """Numbers of the prompts, one of each task after another, so that few prompts say something of all tasks."""
    by_task: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        by_task.setdefault(task, []).append(number)
    longest = max(map(len, by_task.values()))
    return [group[at] for at in range(longest) for group in by_task.values() if at < len(group)]
