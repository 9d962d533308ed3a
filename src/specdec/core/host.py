"""The one place where a round reads from the device: verdict, tokens and flags move together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def read(*tensors: Tensor) -> list[list[int] | list[float]]:
    """Move several tensors to the host in one transfer; floats travel as their bits.

    Returns one flat list a tensor, in order. Integer tensors come back as ints, floating ones as floats.
    """
    if tensors[0].device.type == "cpu":  # nothing to batch: reading is free here
        return [tensor.flatten().tolist() for tensor in tensors]
    packed = [
        tensor.double().flatten().view(torch.int64) if tensor.is_floating_point() else tensor.flatten().long()
        for tensor in tensors
    ]
    flat = torch.cat(packed).cpu()
    parts = torch.split(flat, [part.numel() for part in packed])
    return [
        (part.view(torch.float64) if tensor.is_floating_point() else part).tolist()
        for part, tensor in zip(parts, tensors, strict=True)
    ]


def send(values: Sequence[object], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Host data as a tensor on `device`, without making the host wait for the device."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def known_true(condition: Callable[[], Tensor], device: torch.device) -> bool:
    """True if `condition()` holds for all and asking costs no device-to-host read; False otherwise.

    Lets a level loop end early on the CPU and run through, without a read, on a GPU.
    """
    return device.type == "cpu" and bool(condition().all())


def peek(tensor: Tensor) -> list[int] | None:
    """The values of a one-dimensional tensor where reading is free, else None."""
    return tensor.tolist() if tensor.device.type == "cpu" else None


def known_rows(mask: Tensor, always: bool = False) -> list[bool] | None:
    """The mask as host data where reading is free, else None; `always` reads it at any price."""
    return mask.tolist() if always or mask.device.type == "cpu" else None


def is_true(flag: Tensor | bool) -> bool:
    """Read one flag: for stopping criteria, whose answers the user's own code computes."""
    return bool(flag.any()) if isinstance(flag, Tensor) else bool(flag)
