"""Acceptance: how often a drafted token is kept, and what is drawn where it is not."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.analysis.checked import Numbers, counts, laws

__all__ = ["acceptance_rate", "residual_distribution", "sibling_acceptance", "total_variation"]


def total_variation(p: Numbers, q: Numbers) -> Tensor:
    """Half the sum of |p - q|: `[..., vocab]` laws to `[...]` float64 in [0, 1].

    The least chance with which two draws, one from each law, differ. Raises ValueError where p or q is no law.
    """
    p, q = laws(p, q)
    return 0.5 * (p - q).abs().sum(-1)


def acceptance_rate(p: Numbers, q: Numbers) -> Tensor:
    """The sum of min(p, q), which is 1 - TV(p, q): `[..., vocab]` laws to `[...]` float64.

    The chance that a token drawn from q is kept at a node where the target's law is p. No exact rule for one
    candidate exceeds it (Leviathan et al., arXiv 2211.17192, theorem 3.5). Raises ValueError where p or q is no law.
    """
    p, q = laws(p, q)
    return torch.minimum(p, q).sum(-1)


def residual_distribution(p: Numbers, q: Numbers) -> Tensor:
    """The normalised positive part of p - q: what replaces a rejected token, `[..., vocab]` float64.

    min(p, q) + (1 - acceptance_rate(p, q)) * residual is p, which makes the rule exact (arXiv 2211.17192, appendix
    A.1). Where p equals q nothing is ever rejected, and p is returned. Raises ValueError where p or q is no law.
    """
    p, q = laws(p, q)
    left = (p - q).clamp(min=0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, p)


def sibling_acceptance(p: Numbers, q: Numbers, siblings: Numbers) -> Tensor:
    """The chance that one of `siblings` candidates drawn from q, one after another, is kept: `[...]` float64.

    Candidates are independent and judged in turn, each against what the ones before left of p: recursive rejection
    (SpecInfer, arXiv 2305.09781; MCSD, arXiv 2401.06706). siblings: a whole number, or `[...]` of them.
    Raises ValueError where p or q is no law, or a number of siblings is not whole.
    """
    p, q = laws(p, q)
    number = counts(siblings, "siblings")
    shape = torch.broadcast_shapes(p.shape[:-1], q.shape[:-1], number.shape)
    p, rejected, answer = p.expand(*shape, p.shape[-1]), p.new_ones(shape), p.new_zeros(shape)
    for drawn in range(1, int(number.max()) + 1 if number.numel() else 1):
        rejected = rejected * (1.0 - torch.minimum(p, q).sum(-1)).clamp(min=0.0)
        answer = torch.where(number.to(p.device) >= drawn, 1.0 - rejected, answer)
        left = (p - q).clamp(min=0.0)
        total = left.sum(-1, keepdim=True)
        p = torch.where(total > 0, left / total, p)
    return answer
