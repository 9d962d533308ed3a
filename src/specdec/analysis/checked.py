"""Arguments of the analysis functions as tensors, held against what the formulas need."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Numbers", "chances", "counts", "laws", "numbers"]

Numbers = float | Sequence[float] | Tensor
"""What every function takes: a number, numbers, or a tensor. All broadcast against one another."""

_SLACK = 1e-4  # how far a law that was computed in single precision may be from summing to 1


def numbers(value: Numbers, name: str, least: float | None = None) -> Tensor:
    """`value` in float64, on its device; raises ValueError where an entry is NaN or below `least`."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} is {tensor.dtype}, expected numbers")
    tensor = tensor.double()
    if bool(tensor.isnan().any()):
        raise ValueError(f"{name} holds NaN")
    if least is not None and bool((tensor < least).any()):
        raise ValueError(f"{name} is {float(tensor.min()):g}, expected at least {least:g}")
    return tensor


def chances(value: Numbers, name: str) -> Tensor:
    """`value` in float64; raises ValueError where an entry is no probability."""
    tensor = numbers(value, name, least=0.0)
    if bool((tensor > 1.0 + 1e-6).any()):
        raise ValueError(f"{name} is {float(tensor.max()):g}, expected a probability from 0 to 1")
    return tensor.clamp(max=1.0)


def counts(value: Numbers, name: str, least: int = 0) -> Tensor:
    """`value` in float64; raises ValueError where an entry is no whole number, or less than `least`."""
    tensor = numbers(value, name, least=least)
    if bool((tensor != tensor.floor()).any()):
        raise ValueError(
            f"{name} holds {float(tensor[tensor != tensor.floor()].flatten()[0]):g}, expected whole numbers"
        )
    return tensor


def laws(p: Numbers, q: Numbers) -> tuple[Tensor, Tensor]:
    """Target and proposal law `[..., vocab]` in float64; raises ValueError where they are none, or do not fit."""
    found = []
    for law, name in ((p, "p"), (q, "q")):
        tensor = numbers(law, name, least=0.0)
        if tensor.ndim == 0:
            raise ValueError(f"{name} is one number, expected a law [..., vocab]")
        total = tensor.sum(-1)
        if bool(((total - 1.0).abs() > _SLACK).any()):
            wrong = float(total.flatten()[(total - 1.0).abs().flatten().argmax()])
            raise ValueError(f"{name} sums to {wrong:g}, expected a law that sums to 1; normalise it first")
        found.append(tensor)
    if found[0].shape[-1] != found[1].shape[-1]:
        raise ValueError(
            f"p is over {found[0].shape[-1]} tokens and q over {found[1].shape[-1]}; expected one vocabulary: "
            "give the smaller one zeros for the tokens it lacks"
        )
    return found[0], found[1].to(found[0].device)
