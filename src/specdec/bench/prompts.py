"""Prompts of a benchmark: from a file, or the small set that comes with specdec."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.core.errors import InvalidPromptError

__all__ = ["Prompt", "built_in", "first_of_each", "read_prompts"]

_SHOWN = 5  # broken lines that an error spells out


@dataclass(frozen=True)
class Prompt:
    """One prompt and the task it is counted under."""

    task: str
    text: str


def built_in() -> list[Prompt]:
    """Three prompts each of chat, code edit, extraction, summary, reasoning and translation, written for specdec."""
    from specdec.bench.texts import TEXTS

    return [Prompt(task, text) for task, texts in TEXTS.items() for text in texts]


def read_prompts(
    path: Path, *, skip_broken: bool = False, say: Callable[[str], None] = lambda text: None
) -> list[Prompt]:
    """Prompts of a `.jsonl` file (`prompt`, `turns` or `messages`, and `task`), or of a text file, one a line.

    Of several turns the first is used. Raises InvalidPromptError, naming the line, for one that cannot be read; with
    `skip_broken` the line goes to `say` and the others are returned.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InvalidPromptError(f"{path}: the prompts cannot be read: {error.strerror}") from error
    found: list[Prompt] = []
    broken: list[str] = []
    as_json = path.suffix in (".jsonl", ".json")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            found.append(_parsed(text) if as_json else Prompt("prompts", text))
        except ValueError as error:  # of bytes, of JSON, and ours
            broken.append(f"{path}, line {number}: {_cause(error)}")
    if broken and not skip_broken:
        more = [f"and {len(broken) - _SHOWN} more lines"] if len(broken) > _SHOWN else []
        advice = f"correct them, or give --skip-broken to run the other {len(found)} prompts"
        raise InvalidPromptError("\n".join([*broken[:_SHOWN], *more, advice]))
    for text in broken:
        say(f"left out: {text}")
    if not found:
        raise InvalidPromptError(f"{path}: the file holds no prompt")
    return found


def first_of_each(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """The first `count` prompts of each task, in their order; all for None."""
    taken: dict[str, int] = {}
    kept = []
    for prompt in prompts:
        taken[prompt.task] = taken.get(prompt.task, 0) + 1
        if count is None or taken[prompt.task] <= count:
            kept.append(prompt)
    return kept


def _parsed(text: str) -> Prompt:
    entry = json.loads(text)
    if not isinstance(entry, dict):
        raise ValueError(f"expected a JSON object with `prompt`, `turns` or `messages`; found a {type(entry).__name__}")
    prompt = _text_of(entry)
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError(f"expected a prompt that is a text and not empty; found {prompt!r}")
    task = entry.get("task", "prompts")
    if not isinstance(task, str) or not task:
        raise ValueError(f"expected `task` to be a name; found {task!r}")
    return Prompt(task, prompt)


def _text_of(entry: dict[str, Any]) -> Any:
    if "prompt" in entry:
        return entry["prompt"]
    if "turns" in entry:
        turns = entry["turns"]
        return turns[0] if isinstance(turns, list) and turns else turns
    if "messages" in entry:
        messages = entry["messages"] if isinstance(entry["messages"], list) else []
        said = [m["content"] for m in messages if isinstance(m, dict) and m.get("role") == "user" and "content" in m]
        return said[0] if said else entry["messages"]
    known = ", ".join(map(repr, entry)) or "nothing"
    raise ValueError(f"expected `prompt`, `turns` or `messages`; found {known}")


def _cause(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg} at column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    return str(error)
