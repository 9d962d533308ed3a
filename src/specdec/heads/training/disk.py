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
        if not is_full(error, folder) and not isinstance(error, OSError):
            raise
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        why = "the disk is full" if is_full(error, folder) else str(error)
        raise CheckpointError(
            f"{what} could not be written to {folder}: {why} ({free >> 20} MB free). "
            "What was finished before is unchanged: make room, then run the same command with --resume"
        ) from error


def is_full(error: BaseException, folder: Path) -> bool:
    """Whether something failed for want of space on the disk of `folder`."""
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return True
    return folder.is_dir() and shutil.disk_usage(folder).free < _NEARLY
