"""One measurement, and the file of JSON lines that measurements are kept in."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specdec.core.errors import ConfigError, DataError

__all__ = ["Record", "Results", "read_results", "repeated"]

_SHOWN = 5  # lines of a wrong file that an error spells out


@dataclass(frozen=True)
class Record:
    """One strategy on one prompt, or on one batch of prompts.

    tokens: new tokens counted from ids, the end token included and padding not. passes: those of the target, summed
        over rows; None where another library does not say. seconds_*: shares of `seconds`; what is left is the rest.
    peak_memory: bytes, of the device on a GPU, of the process elsewhere; None where neither can be asked.
    identical: greedy ids are those of plain `generate`; None where that was not asked. difference_margin: at the first
        token that differs, how far apart a pass over the common prefix sees the two; None where one text only ends
        earlier, which no rounding explains. repeated: share of the new 8-grams that stood
        earlier in the same answer. skipped, error: why there are no figures. run: number of the run that measured it,
        among all that were read together.
    """

    strategy: str
    task: str
    prompt: int
    repeat: int = 0
    rows: int = 1
    batch: int = 1
    temperature: float = 0.0
    dtype: str | None = None
    compile: bool | str = False
    exactness: str = "algorithmic"
    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    passes: int | None = None
    judged_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    seconds_draft: float | None = None
    seconds_target: float | None = None
    seconds_verify: float | None = None
    peak_memory: int | None = None
    guarantee: str | None = None
    smallest_margin: float | None = None
    near_ties: int | None = None
    identical: bool | None = None
    difference_margin: float | None = None
    repeated: float | None = None
    skipped: str | None = None
    error: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    run: int = 0

    @property
    def measured(self) -> bool:
        return self.error is None and self.skipped is None and self.seconds > 0

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_pass(self) -> float | None:
        return self.tokens / self.passes if self.passes else None


class Results:
    """A file of JSON lines that grows by one flushed line at a time, so that whatever ends a run, the lines stay.

    The first line of a run says what was measured on what. model: what is going to be measured; with `append`, a file
    of another one is refused, since figures of two models cannot be compared. Raises DataError, with the number of
    records that are kept, where a line cannot be written.
    """

    def __init__(self, path: Path | None, append: bool = False, model: str | None = None) -> None:
        self.path, self.written = path, 0
        self._file: Any = None
        if path is None:
            return
        try:
            if path.is_file() and path.stat().st_size and not append:
                raise ConfigError(f"--out {path}: the file holds results; give another, or --append to add to them")
            if append and model is not None and path.is_file():
                _same_model(path, model)
            self._file = open(path, "ab")  # noqa: SIM115 (held for the whole run)
            self._start = self._file.tell()
            if self._file.tell() and not _ends_a_line(path):
                self._file.write(b"\n")  # an earlier run was cut off within a line
        except OSError as error:
            raise DataError(f"--out {path}: cannot be written: {error.strerror}") from error

    def head(self, facts: dict[str, Any]) -> None:
        self._write({"kind": "run", **facts})

    def add(self, record: Record) -> None:
        found = {key: value for key, value in asdict(record).items() if value is not None and key != "run"}
        self._write({"kind": "result", **found})
        self.written += 1

    def close(self) -> None:
        """End the file; of a run that measured nothing, as when its model cannot be loaded, nothing stays."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # what could not be written has been said
            if not self.written:
                self._file.truncate(self._start)
            self._file.close()
        self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            # A message may hold half a surrogate pair, such as a name of a file does that is not UTF-8.
            self._file.write(json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self.close()
            kept = f"the {self.written} records before it are kept"
            raise DataError(f"--out {self.path}: a record could not be written: {error.strerror}; {kept}") from error


def read_results(paths: Sequence[Path]) -> tuple[list[Record], list[dict[str, Any]], list[str]]:
    """Records, heads of runs, and what was left out and why, of files that `specdec bench` wrote.

    A last line that was cut off is left out. Raises DataError where a file cannot be read or holds no record.
    """
    adapter = TypeAdapter(Record)
    records: list[Record] = []
    heads: list[dict[str, Any]] = []
    left: list[str] = []
    for path in paths:
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        before = len(records)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                if not isinstance(entry, dict) or entry.get("kind") not in ("run", "result"):
                    raise ValueError("expected an object with `kind`: run or result")
                if entry.pop("kind") == "run":
                    heads.append(entry)
                else:
                    records.append(adapter.validate_python({**entry, "run": len(heads)}))
            except (ValueError, RecursionError) as error:
                cut = number == len(lines)  # the last line had no end
                left.append(f"{path}, line {number}: {'cut off' if cut else f'not a record: {_why(error)}'}")
        if len(records) == before:
            of_file = [f"\n  {text}" for text in left if text.startswith(f"{path}, ")]
            more = [f"\n  and {len(of_file) - _SHOWN} more lines"] if len(of_file) > _SHOWN else []
            raise DataError("".join([f"{path}: holds no record of `specdec bench`", *of_file[:_SHOWN], *more]))
    return records, heads, left


def repeated(ids: Sequence[int], n: int = 8) -> float | None:
    """Share of the n-grams of `ids` that stood earlier in it; None where there are fewer than two."""
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    if len(grams) < 2:
        return None
    return 1.0 - len(set(grams)) / len(grams)


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error) or type(error).__name__


def _same_model(path: Path, model: str) -> None:
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("kind") == "run" and entry.get("model") != model:
            raise ConfigError(f"--out {path}: the file has results of {entry.get('model')}, not of {model}")


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
