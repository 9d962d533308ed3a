"""The Jacobi carry of one row: what the last pass said of every position becomes the next guess."""

from __future__ import annotations

from collections.abc import Callable, Collection

from specdec.core.state import Outcome

__all__ = ["Carry", "up_to_end"]


class Carry:
    """Guesses for the tokens after a row's anchor, refined by one Jacobi step a pass.

    A pass over the anchor and guesses g(0), g(1), ... decides a(0), a(1), ...: what follows the anchor, and what would
    follow each guess if those before it were right. `a` shifted past what was emitted is the next guess. Places that a
    pass did not reach keep their guess.
    """

    def __init__(self) -> None:
        self._guesses: list[int] = []  # for the places after the anchor

    def guess(self, count: int, fill: Callable[[int], list[int]]) -> list[int]:
        """`count` guesses; `fill` gives so many of those that are missing."""
        guesses = self._guesses[: max(0, count)]
        return guesses + fill(count - len(guesses)) if len(guesses) < count else guesses

    def step(self, outcome: Outcome) -> None:
        """Take in a pass over a chain of guesses, whose outcome has the choices "decided"."""
        if not outcome.tokens:
            return  # the row stood still
        ran, decided = len(outcome.drafted), outcome.choices["decided"]
        refined = [*decided[: ran + 1], *self._guesses[ran + 1 :]]
        self._guesses = refined[len(outcome.tokens) :]


def up_to_end(guess: list[int], ends: Collection[int]) -> list[int]:
    """`guess` cut behind its first token that ends the row: nothing can follow that."""
    return next((guess[: place + 1] for place, token in enumerate(guess) if token in ends), guess)
