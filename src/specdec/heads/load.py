"""Load a head of any kind by folder or hub id."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from pydantic import ValidationError

from specdec.core.errors import CheckpointError, CheckpointWarning, ConfigError
from specdec.heads import files
from specdec.heads.base import Head
from specdec.heads.config import FORMAT, TargetFacts

if TYPE_CHECKING:
    from specdec.heads.formats.published import Published

_Head = TypeVar("_Head", bound=Head)

# Kind to "module:class", so that only the class that is asked for is imported.
KINDS = {
    "medusa": "specdec.heads.medusa:MedusaHead",
    "eagle": "specdec.heads.eagle:EagleHead",
    "eagle3": "specdec.heads.eagle3:Eagle3Head",
}


def head_class(kind: str) -> type[Head]:
    """The class of heads of that kind; raises KeyError for any other text."""
    module, _, name = KINDS[kind].partition(":")
    found: type[Head] = getattr(importlib.import_module(module), name)
    return found


def load_head(
    x: str | os.PathLike[str],
    revision: str | None = None,
    kind: str | None = None,
    target: TargetFacts | None = None,
) -> Head:
    """The head in a folder or of a hub id (owner/name), in eval mode and in its stored dtype.

    Read are folders that `Head.save` wrote, and the published formats that `specdec.heads.formats` knows, most of
    which do not say how many layers their target has: `target` says it, as `facts_of(model)` gives it.

    kind: refuse heads of another kind. Raises ModelNotFoundError where there is nothing under that name, and
    CheckpointError, naming file, tensor or option, where what is there is not a whole head that fits its config.
    """
    found = open_head(x, revision, kind)
    if isinstance(found, Head):
        return found
    if target is None:
        raise CheckpointError(
            f"{found.where} is {found.format.title} and does not say everything about its target: give "
            "load_head(..., target=facts_of(model)), or hand the drafter its folder or hub id"
        )
    return found.head(target)


def open_head(x: str | os.PathLike[str], revision: str | None = None, kind: str | None = None) -> Head | Published:
    """As `load_head`, but a published checkpoint is given back as such, to be completed by a target.

    What is unusual about it is said once, in a CheckpointWarning.
    """
    folder = files.locate(x, revision)
    data = files.read_json(folder)
    if "kind" in data:
        return _own(folder, data, kind, os.fspath(x))
    from specdec.heads.formats.published import read_published

    found = read_published(folder, os.fspath(x))
    _check_kind(found.where, found.kind, kind)
    if found.remarks:
        warnings.warn(f"{found.where}: {'; '.join(found.remarks)}", CheckpointWarning, stacklevel=3)
    return found


def loaded_head(head: _Head, revision: str | None) -> _Head:
    """A head that its user has loaded; raises ConfigError where a revision was named for it nevertheless."""
    if revision is not None:
        raise ConfigError(f"revision={revision!r} was given with a head that is loaded already; leave it out")
    return head


def _check_kind(where: str | Path, found: str, kind: str | None) -> None:
    if kind is not None and found != kind:
        raise CheckpointError(f"{where} holds a head of kind '{found}', expected '{kind}': use the drafter of its kind")


def _own(folder: Path, data: dict[str, Any], kind: str | None, name: str) -> Head:
    """The head that `Head.save` wrote."""
    where = folder / files.CONFIG
    found = data.get("kind")
    if not isinstance(found, str) or found not in KINDS:
        raise CheckpointError(
            f"{where}: 'kind' is {found!r}, expected one of {', '.join(KINDS)}: a folder written by Head.save has it"
        )
    _check_kind(folder, found, kind)
    if data.get("format_version", FORMAT) != FORMAT:
        raise CheckpointError(
            f"{where}: format_version is {data['format_version']!r}, but this specdec reads {FORMAT} only; use the "
            "specdec that wrote it, or a newer one"
        )
    cls = head_class(found)
    try:
        config = cls.config_class.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'])) or 'config'}: {item['msg']}" for item in error.errors()]
        raise CheckpointError(f"{where} is not the config of a head of kind '{found}': " + "; ".join(lines)) from None
    weights = files.read_weights(folder)
    try:
        with torch.device("meta"):  # takes no memory, whatever sizes a config names
            cls(config).check_weights(weights, str(folder))
        head = cls(config)
    except CheckpointError:
        raise
    except Exception as error:  # transformers about activations, rotary embeddings and sizes has many kinds
        raise CheckpointError(
            f"{where}: its layers cannot be built: {error or type(error).__name__}. Save or download the head again"
        ) from error
    head.load_weights(weights, str(folder))
    head.read_side_files(folder)
    head.where = name
    return head.eval()
