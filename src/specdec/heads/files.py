"""The files of a head: a folder or hub repository with `config.json` and safetensors, read whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from specdec.core.errors import CheckpointError, ModelNotFoundError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def locate(x: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder that holds the head: `x` itself, or the downloaded copy of a hub id.

    Raises ModelNotFoundError where there is no such folder or repository.
    """
    name = os.fspath(x)
    path = Path(name).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ModelNotFoundError(f"revision={revision!r} was asked for the folder {name!r}; only hub ids have them")
        return path
    if path.is_file():
        raise ModelNotFoundError(f"{name!r} is a file; expected the folder with {CONFIG} and {WEIGHTS}")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
        raise ModelNotFoundError(f"{name!r} is neither an existing folder nor a hub id (owner/name)")
    from huggingface_hub import snapshot_download

    try:
        # Pickles are fetched only where there is nothing else, and even then never read with code in them.
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=["*.json", "*.safetensors"]))
        if not any(folder.glob("*.safetensors")):
            snapshot_download(name, revision=revision, allow_patterns=[f"*{ending}" for ending in PICKLES])
        return folder
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ModelNotFoundError(
            f"no head could be loaded from {name!r}: {first[0]}. Expected an existing folder or a hub id (owner/name) "
            "that can be reached from here. A private repository needs `hf auth login`"
        ) from error


def read_json(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """A JSON mapping of the folder; raises CheckpointError, naming file and cause."""
    path = folder / name
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        entries = sorted(entry.name for entry in folder.iterdir())
        held = ", ".join(entries[:5]) + (", ..." if len(entries) > 5 else "") if entries else "nothing"
        raise CheckpointError(
            f"{folder} has no {name} (it holds {held}); expected a folder written by Head.save"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}. Save or download the head again") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a mapping, found a {type(data).__name__}")
    return data


def read_index(folder: Path, name: str = INDEX) -> dict[str, str]:
    """Tensor names to the files of the folder that hold them; raises CheckpointError for a file anywhere else."""
    table = read_json(folder, name).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise CheckpointError(f"{folder / name}: expected 'weight_map', a mapping of tensor names to file names")
    for shard in sorted(set(table.values())):
        if not re.fullmatch(r"[^/\\:]+\.\w+", shard):
            raise CheckpointError(
                f"{folder / name} names the shard {shard!r}, which is not a file of its folder, and nothing else is "
                "read. Download the head again from somebody whom you trust"
            )
    return table


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder on the CPU, from one safetensors file or from the shards that its index names.

    Raises CheckpointError where a file is missing, broken or a pickle: then nothing has been loaded.
    """
    if (folder / INDEX).is_file():
        table = read_index(folder)
        found: dict[str, Tensor] = {}
        for shard in sorted(set(table.values())):
            found |= _read_file(folder / shard)
        if missing := sorted(set(table) - set(found)):
            raise CheckpointError(f"{folder / INDEX} promises {_some(missing)}, which no shard holds")
        return found
    if not (folder / WEIGHTS).is_file():
        pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
        why = f"; {', '.join(pickles)} may run code when read, convert it to safetensors" if pickles else ""
        raise CheckpointError(f"{folder} has no {WEIGHTS}{why or '; save or download the head again'}")
    return _read_file(folder / WEIGHTS)


def _read_file(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise CheckpointError(f"{path} is missing; download or save the head again")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} ({path.stat().st_size} bytes) is not a whole safetensors file: {error}. Download or save it again"
        ) from error


def write(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    texts: Mapping[str, str],
    aside: Collection[str] = (),
) -> None:
    """Write config, weights and further text files; an earlier save stays whole if anything fails before the end.

    aside: names of text files that a save may have; those of an earlier one that this one has not are removed.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    every = {CONFIG: json.dumps(config, indent=2) + "\n", **texts}
    mark = f".{os.getpid()}.tmp"
    try:
        save_file({name: value.contiguous() for name, value in weights.items()}, folder / f"{WEIGHTS}{mark}")
        for name, text in every.items():
            (folder / f"{name}{mark}").write_text(text, encoding="utf-8")
        for name in (WEIGHTS, *every):
            with (folder / f"{name}{mark}").open("rb+") as file:
                os.fsync(file.fileno())
        # Everything is on the disk; what follows needs no space.
        for name in (WEIGHTS, *every):
            os.replace(folder / f"{name}{mark}", folder / name)
        for name in {INDEX, *aside} - set(every):  # of an earlier save, and read before what has just been written
            (folder / name).unlink(missing_ok=True)
    finally:
        for name in (WEIGHTS, *every):
            (folder / f"{name}{mark}").unlink(missing_ok=True)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
