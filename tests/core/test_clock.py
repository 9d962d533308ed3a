"""What a round takes, and what is no part of it."""

from __future__ import annotations

import threading
import time

import pytest

from specdec.core.clock import Clock, once


def test_what_is_done_once_is_no_part_of_a_round() -> None:
    clock = Clock()
    with pytest.raises(ValueError), once():
        time.sleep(0.2)
        raise ValueError
    time.sleep(0.01)
    clock.lap("target")
    times = clock.times()
    assert 0.01 <= times.target == times.total < 0.2


def test_what_is_done_once_within_is_not_left_out_twice() -> None:
    clock = Clock()
    with once():
        with once():
            time.sleep(0.05)
        time.sleep(0.05)
    time.sleep(0.01)
    clock.lap("draft")
    assert 0.01 <= clock.times().total < 0.05


def test_another_threads_round_takes_what_it_takes() -> None:
    clock = Clock()

    def compiles() -> None:
        with once():
            time.sleep(0.05)

    thread = threading.Thread(target=compiles)
    thread.start()
    thread.join()
    clock.lap("draft")
    assert clock.times().total >= 0.05
