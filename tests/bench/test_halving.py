"""Successive halving with a clock of its own: who is found, how sure that is, and that the time is held."""

from __future__ import annotations

import pytest

from specdec.bench.halving import Failed, Measured, search
from tests.bench.tiny import Clock

TASKS = ["a", "a", "b", "b"]


def script(clock: Clock, seconds: dict[str, float], tokens: int = 10, calls: list | None = None):
    """Strategies that need so many seconds a prompt; on task b, "copies" needs four times as many."""

    def measure(name: str, number: int) -> Measured:
        spent = seconds[name] * (4 if name == "copies" and TASKS[number] == "b" else 1)
        clock.wait(spent)
        if calls is not None:
            calls.append((name, number))
        return Measured(tokens, spent)

    return measure


def test_the_fastest_is_found_and_the_time_is_held():
    clock, calls = Clock(), []
    seconds = {"plain": 1.0, "half": 0.5, "same": 1.0, "slow": 2.0, "third": 1 / 3, "slower": 3.0}
    found = search(list(seconds), TASKS, script(clock, seconds, calls=calls), 100, clock, "plain")
    assert (found.best, found.runner_up) == ("third", "half") and not found.interrupted
    assert found.scores["third"] == pytest.approx(3) and found.scores["slow"] == pytest.approx(0.5)
    assert found.ratio == pytest.approx(1.5) and found.low == pytest.approx(1.5) and found.sure == 1.0
    assert clock() <= 100 and found.seconds == clock() > 90
    count = {name: sum(call[0] == name for call in calls) for name in seconds}
    assert count["slower"] < count["same"] < min(count["third"], count["half"]), "who stays is measured more"
    assert {number for name, number in calls if name == "third"} == {0, 1, 2, 3}


def test_speed_is_averaged_over_tasks():
    clock = Clock()
    # 1 / 0.4 on a and 1 / 1.6 on b: 1.56 in the mean, though "even" needs less time over all.
    found = search(
        ["copies", "even"], TASKS, script(clock, {"plain": 1, "copies": 0.4, "even": 0.7}), 50, clock, "plain"
    )
    assert found.best == "copies"
    assert found.scores["copies"] == pytest.approx((2.5 + 0.625) / 2) and found.scores["even"] == pytest.approx(1 / 0.7)


def test_two_that_cannot_be_told_apart_are_said_to_be():
    clock, times = Clock(), iter([1.0, 1.1, 0.9, 1.2, 0.8, 1.05, 0.95] * 100)

    def measure(name: str, number: int) -> Measured:
        spent = next(times)
        clock.wait(spent)
        return Measured(10, spent)

    found = search(["x", "y"], TASKS, measure, 40, clock, "plain")
    assert found.low < 1 < found.high and 0 < found.sure < 1


def test_many_decodings_of_few_prompts_are_not_taken_for_many_prompts():
    clock = Clock()
    # "x" is faster on the first prompt only, every time.
    seconds = {("x", 0): 0.1}

    def measure(name: str, number: int) -> Measured:
        spent = seconds.get((name, number), 1.0)
        clock.wait(spent)
        return Measured(10, spent)

    four = search(["x", "y"], ["a"] * 4, measure, 400, clock, "plain")
    assert four.best == "x" and four.prompts == 4 and four.visits > 100
    assert four.low == 1.0 and four.sure < 0.75, "one prompt in four decides"
    three = search(["x", "y"], ["a"] * 3, measure, 400, clock, "plain")
    assert three.ratio > 1 and (three.low, three.high, three.sure) == (None, None, None)


def test_an_interrupt_ends_the_search_and_not_the_choice():
    clock = Clock()
    inner, calls = script(clock, {"plain": 1, "x": 0.1, "y": 0.5}), []

    def measure(name: str, number: int) -> Measured:
        calls.append(name)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return inner(name, number)

    found = search(["x", "y"], TASKS, measure, 100, clock, "plain")
    assert found.interrupted and found.best == "x" and found.visits == 2


def test_no_decoding_is_begun_that_would_end_too_late():
    clock = Clock()
    seconds = {"plain": 1.0, "x": 1.0, "y": 1.0, "z": 1.0}
    found = search(list(seconds), TASKS, script(clock, seconds), 2.5, clock, "plain")
    assert clock() == 2.0 and found.unmeasured == ("y", "z")
    assert found.best == "x" and found.runner_up is None and found.ratio is None and found.prompts == 1


def test_no_time_at_all():
    clock = Clock()
    clock.wait(5)
    found = search(["x"], TASKS, script(clock, {"plain": 1, "x": 1}), -1, clock, "plain")
    assert found.best is None and found.unmeasured == ("x",)


def test_who_fails_leaves_with_the_reason():
    clock, said = Clock(), []
    inner = script(clock, {"plain": 1, "x": 0.1, "y": 0.5})

    def measure(name: str, number: int) -> Measured:
        if name == "x":
            raise Failed("other text")
        return inner(name, number)

    found = search(["x", "y"], TASKS, measure, 10, clock, "plain", said.append)
    assert found.best == "y" and found.failed == {"x": "other text"} and "x" not in found.scores
    assert said[0] == "x: left out: other text"


def test_all_fail():
    clock = Clock()

    def measure(name: str, number: int) -> Measured:
        if name != "plain":
            raise Failed("no")
        clock.wait(1)
        return Measured(1, 1.0)

    found = search(["x"], TASKS, measure, 10, clock, "plain")
    assert found.best is None and found.failed == {"x": "no"} and clock() == 1
