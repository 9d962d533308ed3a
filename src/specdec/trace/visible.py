"""Text of a model, made safe to look at: what would be invisible, or would move other text about, gets a sign."""

from __future__ import annotations

import unicodedata

__all__ = ["visible"]

_PICTURES = {9: "→", 10: "⏎", 13: "␍", 127: "␡"}
_HIDDEN = {"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"}


def visible(text: str) -> str:
    """`text` with control, formatting and bidirectional characters replaced by pictures or by their code points.

    Spaces stay spaces; a combining mark that has nothing to stand on gets a dotted circle.
    """
    shown = "".join(map(_one, text))
    return "◌" + shown if shown and unicodedata.combining(shown[0]) else shown


def _one(character: str) -> str:
    code = ord(character)
    if code in _PICTURES:
        return _PICTURES[code]
    if code < 32:
        return chr(0x2400 + code)
    if unicodedata.category(character) in _HIDDEN:
        return f"⟨U+{code:04X}⟩"
    return character
