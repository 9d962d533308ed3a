"""Docstrings as Markdown, for mkdocstrings: the one thing that the site does to them.

In our docstrings a paragraph may say what several names are, `name: meaning`, one after another. On the site these are
lists. Signs that would be markup there are text: docstrings have formulas in them.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# One name or several with commas, then a colon; a name may stand in backticks.
ITEM = re.compile(r"`?[a-z_]\w*`?(?:\(\))?(?:, `?[a-z_]\w*`?(?:\(\))?)*(?: \[[^\]]*\])?: ")
NEXT = re.compile(rf"(?<=[.;\]]) (?={ITEM.pattern})")
CODE = re.compile(r"(`+[^`]*`+)")


class Docstrings(griffe.Extension):
    """Rewrites every docstring when its object has been read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """The text of a docstring as Markdown."""
    return "\n\n".join(block for part in re.split(r"\n\s*\n", text.strip()) for block in _blocks(part.splitlines()))


def _blocks(lines: list[str]) -> list[str]:
    """A paragraph as prose and lists: a list begins with a name at the start of a line, after a whole sentence."""
    prose: list[str] = []
    items: list[str] = []
    for number, line in enumerate(lines):
        before = items[-1] if items else " ".join(prose)
        whole = not before or before.rstrip("`\"'").endswith((".", ":", ";"))
        if whole and line.startswith(("Source: ", "Raises ")) and items:
            return [*_shown(prose, items), *_blocks(lines[number:])]
        # In a list a sentence may end within a line, and the next name follow it.
        parts = NEXT.split(line.strip()) if items or ITEM.match(line) else [line.strip()]
        for place, part in enumerate(parts):
            if ITEM.match(part) and (place or (whole and not line.startswith(" "))):
                items.append(part)
            elif items:
                items[-1] += " " + part
            else:
                prose.append(part)
    return _shown(prose, items)


def _shown(prose: list[str], items: list[str]) -> list[str]:
    blocks = ["\n".join(map(_escaped, prose)), "\n".join(map(_item, items))]
    return [block for block in blocks if block]


def _item(text: str) -> str:
    names, _, meaning = text.partition(": ")
    return f"- **{_escaped(names)}**: {_escaped(meaning)}"


def _escaped(text: str) -> str:
    """Text outside backticks with the signs of Markdown as text."""
    parts = CODE.split(text)
    return "".join(part if place % 2 else re.sub(r"([*<_])", r"\\\1", part) for place, part in enumerate(parts))
