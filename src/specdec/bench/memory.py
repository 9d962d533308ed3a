"""The most memory that was held at a time: of the device on a GPU, of the process on Linux, unknown elsewhere."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import torch

__all__ = ["forget_peak", "peak"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak(device: torch.device) -> None:
    """Begin to look for the peak from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")  # resets the peak of the resident set, and nothing else


def peak(device: torch.device) -> int | None:
    """Bytes at the peak since `forget_peak`; None where nobody knows."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
