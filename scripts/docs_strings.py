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
CODE = re.compile(r"(`+[^`]*`+)")


class Docstrings(griffe.Extension):
    """Rewrites every docstring when its object has been read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """The text of a docstring as Markdown."""
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", text.strip()))


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if not ITEM.match(lines[0]):
        return "\n".join(_escaped(line.strip()) for line in lines)
    items: list[str] = []
    for line in lines:
        indented = line.startswith(" ")
        # A sentence may end within a line and the next name follow it.
        for part in re.split(rf"(?<=[.;\]]) (?={ITEM.pattern})", line.strip()):
            if items and (indented or not ITEM.match(part)):
                items[-1] += " " + part
            else:
                items.append(part)
            indented = False
    return "\n".join(_item(item) for item in items)


def _item(text: str) -> str:
    names, _, meaning = text.partition(": ")
    return f"- **{_escaped(names)}**: {_escaped(meaning)}"


def _escaped(text: str) -> str:
    """Text outside backticks with the signs of Markdown as text."""
    parts = CODE.split(text)
    return "".join(part if place % 2 else re.sub(r"([*<_])", r"\\\1", part) for place, part in enumerate(parts))
