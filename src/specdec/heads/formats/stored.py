"""Stored: the tensors of a checkpoint's folder, from safetensors or, without running code, from pickles."""

from __future__ import annotations

import pickle
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from specdec.core.errors import CheckpointError
from specdec.heads import files

__all__ = ["Stored", "open_weights"]

_BINARY_INDEX = "pytorch_model.bin.index.json"
_FIRST = ("model.safetensors", "medusa_lm_head.safetensors", "pytorch_model.bin", "medusa_lm_head.pt")
# Beside a head in many folders, and never its weights.
_ASIDE = re.compile(r"^(?:training_args|optimizer|scheduler|rng_state.*|training_state|adapter_model|scaler)\.")
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True, eq=False)
class Stored:
    """What a folder holds: names, shapes and types at once, values when they are asked for.

    shapes, types: by stored name; types in safetensors' words. pickled: whether they come from pickles.
    """

    folder: Path
    places: Mapping[str, str]  # tensor name to file name
    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    pickled: bool = False
    _values: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    def read(self, names: Collection[str]) -> dict[str, Tensor]:
        """These tensors, on the CPU, in memory of their own."""
        if self.pickled:
            return {name: self._values[name].clone() for name in names}
        from safetensors import SafetensorError, safe_open

        found: dict[str, Tensor] = {}
        for file in sorted({self.places[name] for name in names}):
            try:
                with safe_open(self.folder / file, framework="pt") as opened:
                    found |= {name: opened.get_tensor(name) for name in names if self.places[name] == file}
            except (SafetensorError, OSError, ValueError) as error:
                raise _broken(self.folder / file, error) from error
        return found


def open_weights(folder: Path) -> Stored:
    """The tensors of `folder`; safetensors go before pickles, and pickles are read as tensors or not at all.

    Raises CheckpointError, naming the file, where one is missing, cut off, outside the folder or holds code.
    """
    for index, pickled in ((files.INDEX, False), (_BINARY_INDEX, True)):
        if (folder / index).is_file():
            table = files.read_index(folder, index)
            return _opened(folder, sorted(set(table.values())), pickled, table)
        if found := _only(folder, pickled):
            return _opened(folder, [found], pickled)
    raise CheckpointError(f"{folder} has no weights: expected safetensors, or .bin and .pt files of tensors")


def _only(folder: Path, pickled: bool) -> str | None:
    """The one file of weights, or None; raises CheckpointError where it is not clear which one it is."""
    endings = files.PICKLES if pickled else (".safetensors",)
    found = sorted(e.name for e in folder.iterdir() if e.suffix in endings and not _ASIDE.match(e.name))
    named = [name for name in _FIRST if name in found]
    if named or len(found) < 2:
        return next(iter(named or found), None)
    raise CheckpointError(f"{folder} holds several files of weights and no index: {', '.join(found[:4])}")


def _opened(folder: Path, names: list[str], pickled: bool, table: Mapping[str, str] | None = None) -> Stored:
    places: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, str] = {}
    values: dict[str, Tensor] = {}
    for file in names:
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder / file} is missing; download or save the head again")
        if pickled:
            part = _unpickled(folder / file)
            values |= part
            shapes |= {name: tuple(value.shape) for name, value in part.items()}
            types |= {name: _TYPES.get(value.dtype, str(value.dtype)) for name, value in part.items()}
            places |= dict.fromkeys(part, file)
        else:
            for name, (shape, kind) in _header(folder / file).items():
                places[name], shapes[name], types[name] = file, shape, kind
    if table is not None and (missing := sorted(set(table) - set(places))):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CheckpointError(f"{folder}: the index promises {', '.join(missing[:3])}{more}, which no shard holds")
    return Stored(folder, places, shapes, types, pickled, values)


def _header(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
            return {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in parts.items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise _broken(path, error) from error


def _unpickled(path: Path) -> dict[str, Tensor]:
    try:
        try:
            data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, ValueError) as error:
            if "mmap" not in str(error):
                raise
            data = torch.load(path, map_location="cpu", weights_only=True)  # written by a torch before 1.6
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error) and "Weights only" not in str(error):
            raise _broken(path, error) from error
        raise CheckpointError(
            f"{path} is a pickle that holds more than tensors, and reading it could run code: it is not read. Convert "
            "it to safetensors where you trust it"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise _broken(path, error) from error
    if isinstance(data, dict) and isinstance(data.get("state_dict"), dict):
        data = data["state_dict"]
    if not isinstance(data, dict) or not all(isinstance(value, Tensor) for value in data.values()):
        raise CheckpointError(f"{path}: expected a flat mapping of names to tensors")
    return dict(data)


def _broken(path: Path, error: Exception) -> CheckpointError:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    kind = "safetensors file" if path.suffix == ".safetensors" else "file of tensors"
    return CheckpointError(
        f"{path} ({path.stat().st_size} bytes) is not a whole {kind}: {first}. Download or save it again"
    )
