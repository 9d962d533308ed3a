"""First guesses for places that nothing is known of: any will do, for they cost passes and never change the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from specdec.core.interfaces import Target
from specdec.core.state import Row

__all__ = ["Fill", "fill_problems", "filling"]

Fill = Literal["last", "prompt"] | int
"""The last token, tokens of the prompt in no order, or the token of that id."""


def filling(fill: Fill, row: Row) -> Callable[[int], list[int]]:
    """A function that gives so many guesses for `row` at each call, in this round."""
    given = 0

    def give(count: int) -> list[int]:
        nonlocal given
        given += count
        if fill == "prompt":
            return [
                row.tokens[_scattered(row.rounds, place, row.prompt_length)] for place in range(given - count, given)
            ]
        return [row.anchor if fill == "last" else int(fill)] * count

    return give


def fill_problems(fill: Fill, name: str, target: Target) -> list[str]:
    """Why `fill` cannot be used with `target`."""
    if isinstance(fill, int) and fill >= target.vocab_size:
        return [
            f"drafter '{name}' has fill={fill}, which is outside the target's vocabulary of {target.vocab_size}; "
            "expected 'last', 'prompt' or a token id"
        ]
    return []


def _scattered(number: int, place: int, size: int) -> int:
    """A number below `size` without visible order: no randomness is needed, so none is drawn."""
    mixed = ((number * 0x9E3779B1 + place + 1) * 0x85EBCA77) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 15)) * size) >> 32
