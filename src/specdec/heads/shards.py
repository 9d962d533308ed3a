"""Shards of generated dialogues: token ids in safetensors files, and an index that names the finished ones."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.core.errors import DataError

__all__ = ["Dialogue", "ShardReader", "ShardWriter", "fingerprint"]

FORMAT = 1
INDEX = "index.json"
ENDS = ("eos", "limit", "loop")
"""How a dialogue's last answer ended, by the number that a shard stores."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One dialogue with a target's own answers.

    number: its place in the recipe, which names it. source: template, such as `"summary/3"`. ids: all tokens.
    spans: where the answers lie, (start, end) each, end of turn included. end: one of `ENDS`.
    """

    number: int
    source: str
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    greedy: bool
    end: str = "limit"

    @property
    def prompt_length(self) -> int:
        """Tokens before the first answer."""
        return self.spans[0][0]

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(end - start for start, end in self.spans)

    @property
    def fraction(self) -> float:
        """Where the hash of its prompt lies in [0, 1), by which data is split: equal for both answers to one prompt."""
        prompt = self.ids[: self.prompt_length]
        return int.from_bytes(hashlib.sha256(repr(prompt).encode()).digest()[:6], "big") / 2**48


def fingerprint(tokenizer: Any) -> str:
    """Hash of a tokenizer's vocabulary: equal where ids mean the same tokens."""
    vocabulary = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()[:32]


@dataclass
class ShardWriter:
    """Appends shards to a folder; what is finished stays readable, whatever happens to the next one.

    about: `model`, `tokenizer` (a fingerprint), `vocab_size` and `settings`; a folder that holds others is refused
    with DataError. A shard counts from the moment at which the index names it.
    """

    folder: Path
    about: dict[str, Any]
    index: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / INDEX).exists():
            self.index = _read_index(self.folder)
            for name, wanted in self.about.items():
                if (found := self.index.get(name)) != wanted:
                    raise DataError(
                        f"{self.folder}: the folder holds data with {_difference(name, found, wanted)}. "
                        "Continue with the settings it was begun with, or choose another folder"
                    )
        else:
            self.index = {"format": FORMAT, **self.about, "shards": []}

    def write(self, dialogues: Sequence[Dialogue], dropped: dict[int, str]) -> Path:
        """Write one shard and name it in the index. dropped: number to reason, of those that were thrown away.

        Raises DataError where the disk is full or cannot be written; the folder is then as it was.
        """
        from safetensors.torch import save_file

        path = self.folder / f"shard-{len(self.index['shards']):05d}.safetensors"
        making = path.with_suffix(".making")
        entry = {
            "file": path.name,
            "dialogues": len(dialogues),
            "tokens": sum(len(d.ids) for d in dialogues),
            "answer_tokens": sum(d.answer_tokens for d in dialogues),
            "dropped": _counts(dropped.values()),
        }
        try:
            save_file(_tensors(dialogues, dropped), making, metadata=self._metadata(dialogues))
            with making.open("rb") as file:
                os.fsync(file.fileno())
            entry["bytes"] = making.stat().st_size
            os.replace(making, path)
            self._write_index({**self.index, "shards": [*self.index["shards"], entry]})
        except Exception as error:  # safetensors raises its own type where the disk is full
            making.unlink(missing_ok=True)
            raise DataError(
                f"{path}: the shard could not be written: {error}. The {len(self.index['shards'])} shards before it "
                f"are whole; make room for about 1 MB a shard and go on with --resume"
            ) from error
        return path

    def _metadata(self, dialogues: Sequence[Dialogue]) -> dict[str, str]:
        about = {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.about.items()}
        sources = json.dumps(sorted({d.source for d in dialogues}))
        return {"format": str(FORMAT), **about, "sources": sources}

    def _write_index(self, index: dict[str, Any]) -> None:
        making = self.folder / (INDEX + ".making")
        try:
            with making.open("w", encoding="utf-8") as file:
                json.dump(index, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(making, self.folder / INDEX)
        finally:
            making.unlink(missing_ok=True)
        self.index = index


class ShardReader:
    """Reads the finished shards of one or several folders, also while a writer goes on.

    A folder without an index stands for the folders in it that have one. Raises DataError where there is none, or
    where the folders, or `vocab_size` or `tokenizer` (a fingerprint) if given, do not agree.
    """

    def __init__(
        self, *folders: str | os.PathLike[str], tokenizer: str | None = None, vocab_size: int | None = None
    ) -> None:
        self.folders = [found for folder in folders for found in _with_index(Path(folder))]
        self._indexes = [_read_index(folder) for folder in self.folders]
        first = self._indexes[0]
        self.model, self.tokenizer, self.vocab_size = first["model"], first["tokenizer"], first["vocab_size"]
        expected = {"tokenizer": tokenizer or self.tokenizer, "vocab_size": vocab_size or self.vocab_size}
        for folder, index in zip(self.folders, self._indexes, strict=True):
            for name, wanted in expected.items():
                if index[name] != wanted:
                    raise DataError(
                        f"{folder}: the data has {_difference(name, index[name], wanted)} "
                        f"(made by {index['model']}). Ids of another tokenizer mean other tokens; make data with "
                        "`specdec distill` for this model"
                    )

    @property
    def shards(self) -> list[tuple[Path, dict[str, Any]]]:
        """File and index entry of each shard, oldest first and the folders interleaved."""
        entries = [
            (place, folder / entry["file"], entry)
            for folder, index in zip(self.folders, self._indexes, strict=True)
            for place, entry in enumerate(index["shards"])
        ]
        return [(path, entry) for _, path, entry in sorted(entries, key=lambda item: (item[0], str(item[1])))]

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(entry["answer_tokens"] for _, entry in self.shards)

    def refresh(self) -> None:
        """See what was finished since."""
        self._indexes = [_read_index(folder) for folder in self.folders]

    def __len__(self) -> int:
        return sum(entry["dialogues"] for _, entry in self.shards)

    def __iter__(self) -> Iterator[Dialogue]:
        for path, entry in self.shards:
            yield from self.read(path, entry)

    def read(self, path: Path, entry: dict[str, Any]) -> list[Dialogue]:
        """The dialogues of one shard. Raises DataError, naming file and fault, where it is broken."""
        return _dialogues(path, self._load(path, entry), self.vocab_size)

    def numbers(self) -> set[int]:
        """Numbers of all dialogues that are done, the dropped ones too."""
        done: set[int] = set()
        for path, entry in self.shards:
            tensors, _ = self._load(path, entry)
            done.update(tensors["numbers"].tolist(), tensors["dropped"].tolist())
        return done

    def split(self, share: float) -> tuple[list[Dialogue], list[Dialogue]]:
        """All dialogues as (training, held out). The hash of a prompt decides, so both answers to one go together."""
        parts: tuple[list[Dialogue], list[Dialogue]] = ([], [])
        for dialogue in self:
            parts[dialogue.fraction < share].append(dialogue)
        return parts

    def _load(self, path: Path, entry: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
        from safetensors import SafetensorError, safe_open

        try:
            if (size := path.stat().st_size) != entry["bytes"]:
                raise DataError(
                    f"{path}: the shard is broken: it has {size} bytes, expected {entry['bytes']}. {_AGAIN}"
                )
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                about = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path}: the shard is broken: {error}. {_AGAIN}") from error
        if about.get("tokenizer") != self.tokenizer:
            raise DataError(
                f"{path}: the shard has {_difference('tokenizer', about.get('tokenizer'), self.tokenizer)}. {_AGAIN}"
            )
        missing = sorted(_NAMES - set(tensors))
        if missing:
            raise DataError(f"{path}: the shard is broken: it lacks {', '.join(missing)}. {_AGAIN}")
        return tensors, about


_NAMES = {"ids", "offsets", "spans", "span_offsets", "numbers", "sources", "greedy", "ends", "dropped"}
_AGAIN = "Remove it and its entry in index.json, and run `specdec distill` with --resume to make it again"


def _tensors(dialogues: Sequence[Dialogue], dropped: Iterable[int]) -> dict[str, Tensor]:
    names = sorted({d.source for d in dialogues})
    return {
        "ids": torch.tensor([token for d in dialogues for token in d.ids], dtype=torch.int32),
        "offsets": _offsets([len(d.ids) for d in dialogues]),
        "spans": torch.tensor([span for d in dialogues for span in d.spans], dtype=torch.int32).view(-1, 2),
        "span_offsets": _offsets([len(d.spans) for d in dialogues]),
        "numbers": torch.tensor([d.number for d in dialogues], dtype=torch.int64),
        "sources": torch.tensor([names.index(d.source) for d in dialogues], dtype=torch.int32),
        "greedy": torch.tensor([d.greedy for d in dialogues], dtype=torch.bool),
        "ends": torch.tensor([ENDS.index(d.end) for d in dialogues], dtype=torch.int8),
        "dropped": torch.tensor(sorted(dropped), dtype=torch.int64),
    }


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64).cumsum(0)])


def _dialogues(path: Path, loaded: tuple[dict[str, Tensor], dict[str, str]], vocab_size: int) -> list[Dialogue]:
    tensors, about = loaded
    ids = tensors["ids"].tolist()
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        found = min(ids) if min(ids) < 0 else max(ids)
        raise DataError(f"{path}: the shard is broken: it has the id {found}, expected 0 to {vocab_size - 1}. {_AGAIN}")
    names, offsets = json.loads(about["sources"]), tensors["offsets"].tolist()
    spans, at = tensors["spans"].tolist(), tensors["span_offsets"].tolist()
    columns = [tensors[name].tolist() for name in ("numbers", "sources", "greedy", "ends")]
    if offsets[-1] != len(ids) or at[-1] != len(spans) or len({len(offsets) - 1, *map(len, columns)}) != 1:
        raise DataError(f"{path}: the shard is broken: its tensors do not fit together. {_AGAIN}")
    return [
        Dialogue(
            number,
            names[source],
            tuple(ids[offsets[i] : offsets[i + 1]]),
            tuple((start, end) for start, end in spans[at[i] : at[i + 1]]),
            greedy,
            ENDS[end],
        )
        for i, (number, source, greedy, end) in enumerate(zip(*columns, strict=True))
    ]


def _with_index(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        return [folder]
    below = sorted(path.parent for path in folder.glob(f"*/{INDEX}"))
    if not below:
        raise DataError(
            f"{folder}: no data: expected a folder with {INDEX}, or one of such folders. "
            "`specdec distill MODEL --out DIR` makes one"
        )
    return below


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if index["format"] != FORMAT:
            raise DataError(f"{path}: its format is {index['format']}, expected {FORMAT}; use a newer specdec")
        return {**index, "shards": list(index["shards"])}
    except OSError as error:
        raise DataError(f"{path}: the index cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: the index is broken: {type(error).__name__}: {error}") from error


def _difference(name: str, found: Any, expected: Any) -> str:
    return f"{name.replace('_', ' ')} {found!r}, expected {expected!r}"


def _counts(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
