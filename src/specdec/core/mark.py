"""Whether a tensor is what it was."""

from __future__ import annotations

from torch import Tensor

__all__ = ["mark"]


def mark(tensor: Tensor) -> tuple[int, int]:
    """Differs after the tensor was written to or replaced: its place in memory, and how often it was written."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
