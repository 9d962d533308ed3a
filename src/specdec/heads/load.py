"""Load a head of any kind by folder or hub id."""

from __future__ import annotations

import importlib
import os

from pydantic import ValidationError

from specdec.core.errors import CheckpointError
from specdec.heads import files
from specdec.heads.base import Head
from specdec.heads.config import FORMAT

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


def load_head(x: str | os.PathLike[str], revision: str | None = None, kind: str | None = None) -> Head:
    """The head in a folder that `Head.save` wrote, or of a hub id (owner/name), in eval mode and in its stored dtype.

    kind: refuse heads of another kind. Raises ModelNotFoundError where there is nothing under that name, and
    CheckpointError, naming file, tensor or option, where what is there is not a whole head that fits its config.
    """
    folder = files.locate(x, revision)
    data = files.read_json(folder)
    where = folder / files.CONFIG
    found = data.get("kind")
    if not isinstance(found, str) or found not in KINDS:
        raise CheckpointError(
            f"{where}: 'kind' is {found!r}, expected one of {', '.join(KINDS)}: a folder written by Head.save has it"
        )
    if kind is not None and found != kind:
        raise CheckpointError(
            f"{folder} holds a head of kind '{found}', expected '{kind}': use the drafter of its kind"
        )
    if data.get("format_version", FORMAT) != FORMAT:
        raise CheckpointError(
            f"{where}: format_version is {data['format_version']!r}, but this specdec reads {FORMAT} only"
        )
    cls = head_class(found)
    try:
        config = cls.config_class.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'])) or 'config'}: {item['msg']}" for item in error.errors()]
        raise CheckpointError(f"{where} is not the config of a head of kind '{found}': " + "; ".join(lines)) from None
    head = cls(config)
    head.load_weights(files.read_weights(folder), str(folder))
    head.read_side_files(folder)
    head.where = os.fspath(x)
    return head.eval()
