"""`TextStore`: past outputs of all requests in one automaton, in memory and, if wanted, in a file."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from specdec_suffix.automaton import Cursor, SuffixAutomaton

_END = -1  # stands after each text, so that no match runs from one text into the next


class StoreWarning(UserWarning):
    """A store cannot be read or written; the message names the file. Decoding goes on without it."""


class TextStore:
    """Texts of token ids that many threads add to and search at once.

    path: a JSON-lines file, one array of ids a text, read on first use; each added text becomes a line at its end.
        A file that is not of that form is named in a StoreWarning and left as it is: nothing is read from it and
        nothing is written to it. One store at a time may write to a file.
    limit: most tokens that are searched. Past it the oldest texts are dropped, down to half of it, in the file too.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, limit: int = 100_000) -> None:
        self.path = None if path is None else Path(path)
        self.limit = limit
        self._texts: deque[tuple[int, ...]] = deque()
        self._automaton = SuffixAutomaton()
        self._tokens = 0
        self._loaded = self.path is None
        self._writes = self.path is not None
        self._lead = ""  # ends a last line that somebody left without its end
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[tuple[int, ...]] = SimpleQueue()

    def add(self, tokens: Sequence[int]) -> None:
        """Add one text. May be called anywhere, also from a finaliser while this thread is inside the store."""
        if tokens:
            self._waiting.put(tuple(tokens))
            self._settle()

    def texts(self) -> tuple[tuple[int, ...], ...]:
        """The texts that are searched, oldest first."""
        with self._lock:
            self._load()
            found = tuple(self._texts)
        self._settle()
        return found

    def open(self) -> Reader:
        """A reader that follows one growing text."""
        with self._lock:
            self._load()
            reader = Reader(self, self._automaton)
        self._settle()
        return reader

    def _settle(self) -> None:
        # Whoever finds the lock taken leaves its text to the holder, who looks again after letting go. So nobody
        # waits for a lock in a finaliser, where the holder could be the same thread, further up.
        while not self._waiting.empty() and self._lock.acquire(blocking=False):
            try:
                self._load()
                while not self._waiting.empty():
                    self._take(self._waiting.get())
            finally:
                self._lock.release()

    def _take(self, text: tuple[int, ...]) -> None:
        self._append(text)
        if self._tokens > self.limit:
            self._forget()
            self._write("w", self._texts)
        else:
            self._write("a", [text])

    def _append(self, text: tuple[int, ...]) -> None:
        self._texts.append(text)
        self._tokens += len(text)
        self._automaton.extend(text)
        self._automaton.append(_END)

    def _forget(self) -> None:
        while len(self._texts) > 1 and self._tokens > self.limit // 2:
            self._tokens -= len(self._texts.popleft())
        # An automaton cannot forget. Readers keep the old one until their text ends.
        self._automaton = SuffixAutomaton()
        for text in self._texts:
            self._automaton.extend(text)
            self._automaton.append(_END)

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        assert self.path is not None
        try:
            content = self.path.read_text(encoding="utf-8")
            texts = [_text(line, number) for number, line in enumerate(content.splitlines(), 1)]
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._writes = False
            warnings.warn(
                f"the store {self.path} cannot be used and is left as it is: {error}. Past outputs are kept in "
                "memory only; move the file away to begin a new one",
                StoreWarning,
                stacklevel=2,
            )
            return
        self._lead = "\n" if content and not content.endswith("\n") else ""
        for text in texts:
            self._texts.append(text)
            self._tokens += len(text)
        if self._tokens > self.limit:
            self._forget()
        else:
            for text in self._texts:
                self._automaton.extend(text)
                self._automaton.append(_END)

    def _write(self, mode: str, texts: Sequence[Sequence[int]] | deque[tuple[int, ...]]) -> None:
        if not self._writes or self.path is None:
            return
        lines = "".join(json.dumps(list(text)) + "\n" for text in texts)
        try:
            if mode == "a":
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(self._lead + lines)
                self._lead = ""
            else:
                beside = self.path.with_name(self.path.name + ".new")
                beside.write_text(lines, encoding="utf-8")
                beside.replace(self.path)
        except OSError as error:
            self._writes = False
            warnings.warn(
                f"the store {self.path} cannot be written: {error}. Past outputs are kept in memory only",
                StoreWarning,
                stacklevel=2,
            )


class Reader:
    """Where one growing text stands in a store; for one thread at a time."""

    def __init__(self, store: TextStore, automaton: SuffixAutomaton) -> None:
        self._store, self._automaton, self._cursor = store, automaton, Cursor()

    @property
    def matched(self) -> int:
        """Number of last tokens of the text that stand in the store."""
        return self._cursor.length

    def read(self, tokens: Sequence[int]) -> None:
        """Follow the next tokens of the text."""
        with self._store._lock:
            for token in tokens:
                self._cursor = self._automaton.advance(self._cursor, token)
        self._store._settle()

    def follow(self, most: int, least: float) -> list[int]:
        """Up to `most` tokens that followed the match most often; see `SuffixAutomaton.follow`."""
        with self._store._lock:
            found = self._automaton.follow(self._cursor, most, least, stop=_END)
        self._store._settle()
        return found


def _text(line: str, number: int) -> tuple[int, ...]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not JSON: {error}") from None
    if not isinstance(found, list) or not all(type(token) is int and token >= 0 for token in found):
        raise ValueError(f"line {number} is not an array of token ids")
    return tuple(found)
