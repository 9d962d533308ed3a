"""What ids look like to a reader: each alone, and what each adds to a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.trace.visible import visible

__all__ = ["Spelling"]

_PART = "\ufffd"  # what tokenizers give for bytes that are no whole character
_BEFORE, _LONGEST = 8, 6  # tokens that a text is told from; tokens that one character may take


class Spelling:
    """Spells ids by a tokenizer's `decode`; all text is made `visible`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._alone: dict[int, str] = {}

    def alone(self, token: int) -> str:
        """A token by itself, with the space that it begins with; a part of a character is shown as its id."""
        if token not in self._alone:
            # Some tokenizers drop the space at the beginning of a text, but not within it.
            one, two = self._decode([token]), self._decode([token, token])
            text = two[len(one) :] if two.startswith(one) else one
            self._alone[token] = f"⟨{token}⟩".join(map(visible, text.split(_PART)))
        return self._alone[token]

    def added(self, tokens: Sequence[int], count: int) -> list[str]:
        """Text that each of the last `count` tokens adds to all before; of a character's parts the last adds it.

        Bytes that never become a character are shown as their ids.
        """
        pieces: list[str] = []
        first = len(tokens) - count
        whole = first  # how many tokens make a text that ends with a whole character
        while whole > max(0, first - _LONGEST) and self._decode(tokens[max(0, whole - _BEFORE) : whole]).endswith(
            _PART
        ):
            whole -= 1
        for end in range(first + 1, len(tokens) + 1):
            start = max(0, whole - _BEFORE)
            before, now = self._decode(tokens[start:whole]), self._decode(tokens[start:end])
            pieces.append("")
            if now.endswith(_PART) and end - whole < _LONGEST:
                continue  # the rest of the character may follow
            fresh = now[len(before) :] if now.startswith(before) else _PART
            if _PART not in fresh:
                pieces[-1] = visible(fresh)
            else:
                waiting = min(end - whole, len(pieces))
                pieces[-waiting:] = [self.alone(token) for token in tokens[end - waiting : end]]
            whole = end
        return pieces

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids))) if len(ids) else ""
