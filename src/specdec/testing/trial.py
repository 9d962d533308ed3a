"""One run of one check: its search for a counterexample, and the time limit that stops a part that hangs."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from specdec.core.errors import SpecdecError

__all__ = ["Failure", "NotApplicable", "Trial", "applies", "hypothesis", "run_limited"]

Body = TypeVar("Body", bound=Callable[..., str])


class Failure(AssertionError):
    """A check found a fault; `counterexample` is the example that shows it."""

    def __init__(self, reason: str, counterexample: str = "") -> None:
        self.reason, self.counterexample = reason, counterexample
        super().__init__(reason)


class NotApplicable(Exception):
    """A check has nothing to look at on this part; the message says why."""


def applies(*conditions: Callable[[Any], None]) -> Callable[[Body], Body]:
    """Mark a check with what must hold for it to apply: each condition raises NotApplicable, with the reason."""

    def mark(body: Body) -> Body:
        body.conditions = conditions  # type: ignore[attr-defined]
        return body

    return mark


class TimeUp(BaseException):
    """Raised inside a check that ran past its time limit; no part may catch it."""


class Trial:
    """Budget and findings of one check.

    max_examples: examples that a search tries. seconds: time limit of the check; a search stops after half of it
    with what it has shown. shrink_seconds: time for making a counterexample smaller; 0 keeps the first one.
    """

    def __init__(self, max_examples: int = 100, seconds: float = 60.0, shrink_seconds: float = 2.0) -> None:
        self.max_examples, self.seconds, self.shrink_seconds = max_examples, seconds, shrink_seconds
        self.found: Failure | None = None
        self.examples = 0
        self._started = perf_counter()

    def search(self, strategy: Any, body: Callable[[Any], None]) -> None:
        """Run `body` on examples of a Hypothesis strategy; raises the smallest Failure found.

        Whatever `body` raises counts as a failure of the example.
        """
        made = hypothesis()
        phases = made.Phase
        wanted = [phases.explicit, phases.generate]
        if self.shrink_seconds > 0:
            wanted.append(phases.shrink)
        stop_at = self._started + 0.5 * self.seconds
        size = sys.maxsize

        def attempt(example: Any) -> None:
            nonlocal stop_at, size
            if perf_counter() > stop_at and self.examples:
                return  # enough was seen; the examples that are left cost nothing
            self.examples += 1
            try:
                body(example)
            except NotApplicable:
                raise
            except Exception as error:
                if self.found is None:
                    stop_at = perf_counter() + self.shrink_seconds
                text = repr(example)
                if len(text) < size:
                    size = len(text)
                    self.found = Failure(reason_of(error), text)
                raise

        decorated = made.settings(
            max_examples=self.max_examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=wanted,
            report_multiple_bugs=False,
            suppress_health_check=list(made.HealthCheck),
        )(made.given(strategy)(attempt))
        try:
            decorated()
        except NotApplicable:
            raise
        except Exception:
            # Where shrinking was cut short, Hypothesis calls the example flaky; ours is on record.
            if self.found is None:
                raise
        if self.found is not None:
            raise self.found


def reason_of(error: BaseException) -> str:
    """An exception in words, with the part and method that the engine noted on it."""
    if isinstance(error, Failure):
        return error.reason
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("while calling")]
    return ", ".join([f"{type(error).__name__}: {error}", *notes])


def run_limited(run: Callable[[], Any], seconds: float) -> Any:
    """The result of `run`, called in a daemon thread of its own; raises TimeoutError after `seconds`.

    Python code that is still running then gets an exception; a call that never returns to Python is left behind
    in its thread, which does not keep the process alive.
    """
    result: list[Any] = []
    error: list[BaseException] = []

    def work() -> None:
        try:
            result.append(run())
        except BaseException as caught:
            error.append(caught)

    thread = threading.Thread(target=work, name="specdec-check", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        where = _where(thread)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeUp))
        thread.join(1.0)
        raise TimeoutError(f"still running after the time limit of {seconds:g} s{where}")
    if error:
        raise error[0]
    return result[0]


def _where(thread: threading.Thread) -> str:
    """The innermost calls of a thread, by file name and line."""
    frame = sys._current_frames().get(thread.ident or 0)
    places: list[str] = []
    while frame is not None and len(places) < 3:
        code = frame.f_code
        places.append(f"{code.co_name}() at {Path(code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back
    return "; it was in " + ", called by ".join(places) if places else ""


def hypothesis() -> Any:
    """The module Hypothesis, with which examples are made; raises SpecdecError where it is not installed."""
    try:
        import hypothesis
    except ImportError:
        raise SpecdecError(
            "the conformance kit makes its examples with Hypothesis: pip install 'specdec-hf[test]'"
        ) from None
    return hypothesis
