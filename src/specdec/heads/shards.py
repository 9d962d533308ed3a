"""Shards of generated dialogues: token ids in safetensors files, and an index that names the finished ones."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.core.errors import DataError
from specdec.heads.dialogue import Dialogue, from_tensors, to_tensors

__all__ = ["Dialogue", "ShardReader", "ShardWriter"]

FORMAT = 1
INDEX = "index.json"
# What an index has to say, of all shards and of each.
_ABOUT = {"model": str, "tokenizer": str, "vocab_size": int}
_ENTRY = {"file": str, "bytes": int, "dialogues": int, "answer_tokens": int}
_SAID = {str: "text", int: "number"}
_NAME = re.compile(r"shard-\d+\.safetensors")


@dataclass
class ShardWriter:
    """Appends shards to a folder; what is finished stays readable, whatever happens to the next one.

    about: `model`, `tokenizer` (as `tokenizer_fingerprint` says), `vocab_size` and `settings`; a folder that holds
    others is refused with DataError. A shard counts from the moment at which the index names it, until its file is
    deleted.
    """

    folder: Path
    about: dict[str, Any]
    index: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.folder}: no folder can be made: {error.strerror}. Choose another one") from error
        if (self.folder / INDEX).exists():
            self.index = _read_index(self.folder)
            for name, wanted in self.about.items():
                if (found := self.index.get(name)) != wanted:
                    raise DataError(
                        f"{self.folder}: the folder holds data with {_difference(name, found, wanted)}. "
                        "Continue with the settings it was begun with, or choose another folder"
                    )
            there = [entry for entry in self.index["shards"] if (self.folder / entry["file"]).exists()]
            if len(there) < len(self.index["shards"]):  # deleted, to be made again
                self._write_index({**self.index, "shards": there})
        else:
            self.index = {"format": FORMAT, **self.about, "shards": []}

    def write(self, dialogues: Sequence[Dialogue], dropped: Mapping[int, str]) -> Path:
        """Write one shard and name it in the index. dropped: number to reason, of those that were thrown away.

        Raises DataError where the disk is full or cannot be written; the folder is then as it was.
        """
        from safetensors.torch import save

        taken = [int(entry["file"].split("-")[1].split(".")[0]) for entry in self.index["shards"]]
        path = self.folder / f"shard-{max(taken, default=-1) + 1:05d}.safetensors"
        making = path.with_suffix(".making")
        entry = {
            "file": path.name,
            "dialogues": len(dialogues),
            "tokens": sum(len(d.ids) for d in dialogues),
            "answer_tokens": sum(d.answer_tokens for d in dialogues),
            "dropped": dict(Counter(dropped.values())),
        }
        sources = sorted({d.source for d in dialogues})
        tensors = {**to_tensors(dialogues, sources), "dropped": torch.tensor(sorted(dropped), dtype=torch.int64)}
        about = {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.about.items()}
        try:
            data = save(tensors, metadata={"format": str(FORMAT), **about, "sources": json.dumps(sources)})
            entry["bytes"] = len(data)
            _write(making, data)
            os.replace(making, path)
            self._write_index({**self.index, "shards": [*self.index["shards"], entry]})
        except OSError as error:
            raise DataError(
                f"{path}: the shard could not be written: {error}. The {len(self.index['shards'])} shards before it "
                f"are whole; make room for about 1 MB a shard and go on with --resume"
            ) from error
        finally:
            making.unlink(missing_ok=True)
        return path

    def _write_index(self, index: dict[str, Any]) -> None:
        making = self.folder / (INDEX + ".making")
        try:
            _write(making, json.dumps(index, indent=1).encode())
            os.replace(making, self.folder / INDEX)
        finally:
            making.unlink(missing_ok=True)
        self.index = index


class ShardReader:
    """Reads the finished shards of one or several folders, also while a writer goes on.

    A folder without an index stands for the folders in it that have one. Raises DataError where there is none, or
    where the folders, or `vocab_size` or `tokenizer` (its fingerprint) if given, do not agree.
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
        tensors, about = self._load(path, entry)
        try:
            return from_tensors(tensors, json.loads(about["sources"]), self.vocab_size)
        except KeyError as error:
            raise _broken(path, f"its metadata lacks {error}") from error
        except (ValueError, TypeError) as error:
            raise _broken(path, error) from error

    def numbers(self) -> set[int]:
        """Numbers of all dialogues that are done, the dropped ones too."""
        done: set[int] = set()
        for path, entry in self.shards:
            tensors, _ = self._load(path, entry)
            for name in ("numbers", "dropped"):
                if name not in tensors:
                    raise _broken(path, f"it lacks {name}")
                done.update(tensors[name].tolist())
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
                raise _broken(path, f"it has {size} bytes, expected {entry['bytes']}")
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                about = file.metadata() or {}
        except FileNotFoundError:
            raise DataError(
                f"{path}: the shard is missing, and the index names it. Run `specdec distill` with --resume to make it "
                "again, or put it back"
            ) from None
        except (OSError, SafetensorError) as error:
            raise _broken(path, error) from error
        if about.get("tokenizer") != self.tokenizer:
            raise _broken(path, f"it has {_difference('tokenizer', about.get('tokenizer'), self.tokenizer)}")
        return tensors, about


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _broken(path: Path, fault: object) -> DataError:
    return DataError(
        f"{path}: the shard is broken: {fault}. "
        "Delete the file and run `specdec distill` with --resume to make it again"
    )


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
        found, shards = index["format"], list(index["shards"])
    except OSError as error:
        raise DataError(f"{path}: the index cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: the index is broken: {type(error).__name__}: {error}") from error
    if found != FORMAT:
        raise DataError(
            f"{path}: its format is {found}, expected {FORMAT}; use the specdec that wrote it, or a newer one"
        )
    where, advice = f"{path}: the index is broken", "Restore the file, or make the data again in another folder"
    for name, kind in _ABOUT.items():
        if not isinstance(index.get(name), kind):
            raise DataError(f"{where}: {name} is {index.get(name)!r}, expected a {_SAID[kind]}. {advice}")
    for number, entry in enumerate(shards):
        for name, kind in _ENTRY.items():
            if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
                told = entry.get(name) if isinstance(entry, dict) else entry
                raise DataError(f"{where}: {name} of shard {number} is {told!r}, expected a {_SAID[kind]}. {advice}")
        if not _NAME.fullmatch(entry["file"]):
            raise DataError(
                f"{where}: shard {number} is {entry['file']!r}, expected a file of its folder such as "
                f"'shard-00000.safetensors'. {advice}"
            )
    return {**index, "shards": shards}


def _difference(name: str, found: Any, expected: Any) -> str:
    return f"{name.replace('_', ' ')} {found!r}, expected {expected!r}"
