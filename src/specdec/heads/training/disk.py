"""A full disk, by its name."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdec.core.errors import CheckpointError

__all__ = ["named"]

_NEARLY = 1 << 20  # bytes; with less than that, whatever failed to be written failed for want of space


@contextmanager
def named(folder: Path, what: str) -> Iterator[None]:
    """Turn a failure to write inside into a CheckpointError that says why, and how much space is left."""
    try:
        yield
    except CheckpointError:
        raise
    # Neither torch nor safetensors has an error of its own for a full disk.
    except Exception as error:
        if not is_full(error, folder) and not _is_of_writing(error):
            raise
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        why = "the disk is full" if is_full(error, folder) else str(error)
        raise CheckpointError(
            f"{what} could not be written to {folder}: {why} ({free >> 20} MB free). "
            "What was finished before is unchanged: make room and run the same command, with --resume if there is a "
            "checkpoint"
        ) from error


def _is_of_writing(error: BaseException) -> bool:
    """Whether it was writing that failed: for a quota or a limit on the size of files, say."""
    from safetensors import SafetensorError

    said = str(error)
    return isinstance(error, OSError | SafetensorError) or "inline_container" in said or "PytorchStreamWriter" in said


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether something failed for want of space on the disk of `folder`."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return True
    return folder.is_dir() and shutil.disk_usage(folder).free < _NEARLY
