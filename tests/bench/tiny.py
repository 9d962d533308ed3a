"""A tiny model for benchmarks, prompts for it, and a clock that moves when it is told to."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from specdec.bench.prompts import Prompt
from tests.heads import chatty

PROMPTS = [
    Prompt("copy", "abc abc abc abc"),
    Prompt("copy", "one two one two"),
    Prompt("copy", "la la la"),
    Prompt("prose", "the sea"),
]


@lru_cache
def model() -> Any:
    return chatty.target()


def load(name: str, dtype: Any = None, device: Any = None) -> tuple[Any, Any]:
    """In the place of `load_model`."""
    return model(), chatty.tokenizer()


class Clock:
    """Seconds that pass only by `wait`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
