"""A tokenizer's chat template as the token ids that stand around the turns of a dialogue."""

from __future__ import annotations

from typing import Any

from specdec.core.errors import ConfigError

__all__ = ["ChatFormat"]

_USER, _ANSWER, _NEXT = "<<user's words>>", "<<the answer>>", "<<more words>>"


class ChatFormat:
    """What a chat template puts before, between and after the turns.

    head: ids up to the first user's words. stops: ids that end a turn. Without a template prompts stand alone, and a
    dialogue has one turn. Raises ConfigError for a template that does not show the turns in their order.
    """

    def __init__(self, tokenizer: Any, stops: frozenset[int]) -> None:
        self._tokenizer, self.stops = tokenizer, stops
        self.special = frozenset(tokenizer.all_special_ids)
        self.has_turns = bool(getattr(tokenizer, "chat_template", None))
        before, self._middle, self._after = "", "", ""
        if self.has_turns:
            text = tokenizer.apply_chat_template(
                [
                    {"role": "user", "content": _USER},
                    {"role": "assistant", "content": _ANSWER},
                    {"role": "user", "content": _NEXT},
                ],
                tokenize=False,
                add_generation_prompt=True,
            )
            before, self._middle, self._after = self._pieces(text)
        self._before = before
        self.head = tuple(self._ids(before)) or tuple(tokenizer("").input_ids)[:1]
        self.to_answer = tuple(self._ids(self._middle))

    def first(self, text: str) -> list[int]:
        """Ids of a dialogue's first question, up to its answer."""
        if not self.has_turns:
            return list(self._tokenizer(text).input_ids)
        return self._ids(self._before + text.strip() + self._middle)

    def next(self, text: str | None, last: int) -> list[int]:
        """Ids from the end of an answer, whose last token is `last`, to the next one, or to the user's words."""
        ids = self._ids(self._after if text is None else self._after + text.strip() + self._middle)
        return ids[1:] if ids and ids[0] == last else ids

    def _pieces(self, text: str) -> tuple[str, str, str]:
        try:
            before, rest = text.split(_USER, 1)
            middle, rest = rest.split(_ANSWER, 1)
            after, _ = rest.split(_NEXT, 1)
        except ValueError as error:
            raise ConfigError(
                f"the tokenizer's chat template does not show a dialogue's turns one after another: {text[:200]!r}. "
                "Set tokenizer.chat_template to one that does"
            ) from error
        return before, middle, after

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)
