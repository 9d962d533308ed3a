"""What a target is asked: a recipe gives every dialogue by its number, so that any of them can be made again."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.core.errors import DataError

__all__ = ["FilePrompts", "Passage", "Recipe", "Request", "Turn"]

WORDS = 40  # of a passage, at least


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's turn, written by the target itself where `text` is None, and the most tokens of the answer."""

    text: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class Request:
    """One dialogue to be made. source names the template."""

    number: int
    source: str
    turns: tuple[Turn, ...]
    greedy: bool


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that templates ask about, and its topic in a few words."""

    topic: str
    text: str

    @classmethod
    def of(cls, topic: str, text: str) -> Passage | None:
        """What a target wrote: its whole sentences, without marks of formatting; None where little is left."""
        text = re.sub(r"[*#_`]+", "", text)
        text = re.sub(r"\s*\n\s*", " ", text).strip()
        text = text[: max(text.rfind(mark) for mark in ".!?") + 1].strip()
        return cls(topic, text) if len(text.split()) >= WORDS else None


class Recipe:
    """Dialogues by number. Subclasses say what is asked; which answers are greedy is alternated here."""

    count: int | None = None
    """Number of dialogues, None without end."""

    def __init__(self, seed: int, greedy_share: float, limits: Sequence[int]) -> None:
        self.seed, self.greedy_share, self.limits = seed, greedy_share, tuple(limits)

    def greedy(self, number: int) -> bool:
        """Whether the answers of a dialogue are greedy: evenly spread, so that neighbours differ at a half."""
        return int((number + 1) * self.greedy_share) > int(number * self.greedy_share)

    def needs(self, number: int) -> int:
        """All dialogues below this number that are passages must be done before `number` can be asked for."""
        return 0

    def writes(self, number: int) -> str | None:
        """The topic on which the dialogue's answer will be a passage for others; None where it will not."""
        return None

    def request(self, number: int, passages: Mapping[int, Passage]) -> Request:
        """Dialogue `number`. passages: those written by dialogues below `needs(number)`, by number."""
        raise NotImplementedError


class FilePrompts(Recipe):
    """Prompts of a file: `.jsonl` with `prompt`, `turns` or `messages` a line, else a text file, one prompt a line.

    Raises DataError, naming the line, where a prompt cannot be read.
    """

    def __init__(self, path: Path, seed: int, greedy_share: float, limits: Sequence[int]) -> None:
        super().__init__(seed, greedy_share, limits)
        self._name = path.stem
        self._dialogues = _read_prompts(path)
        self.count = len(self._dialogues)

    def request(self, number: int, passages: Mapping[int, Passage]) -> Request:
        limit = random.Random(f"{self.seed}-{number}").choice(self.limits)
        turns = tuple(Turn(text, limit) for text in self._dialogues[number])
        return Request(number, self._name, turns, self.greedy(number))


def _read_prompts(path: Path) -> list[tuple[str, ...]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the prompts cannot be read: {error}") from error
    found: list[tuple[str, ...]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found.append((line.strip(),) if path.suffix != ".jsonl" else _turns(f"{path}, line {number}", line))
    if not found:
        raise DataError(f"{path}: no prompts: expected one a line")
    return found


def _turns(where: str, line: str) -> tuple[str, ...]:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    entry = entry if isinstance(entry, dict) else {}
    turns: Any = None
    if "messages" in entry:
        messages = entry["messages"] if isinstance(entry["messages"], list) else []
        turns = [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    elif "turns" in entry:
        turns = entry["turns"]
    elif "prompt" in entry:
        turns = [entry["prompt"]]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise DataError(
            f"{where}: no prompt: expected an object with 'prompt' (a text), 'turns' (texts) or 'messages' "
            f"(with role and content), found {line[:60]!r}"
        )
    return tuple(turns)
