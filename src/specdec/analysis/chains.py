"""Chains: tokens a pass and speed for a draft without branches."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.analysis.checked import Numbers, chances, counts, numbers

__all__ = ["best_gamma", "expected_accepted_length", "expected_accepted_tokens", "speculative_speedup"]

_EQUAL = 1e-12  # relative difference below which two speeds are one, seen through rounding


def expected_accepted_tokens(alpha: Numbers, gamma: Numbers) -> Tensor:
    """Tokens that a pass emits, bonus included: (1 - alpha**(gamma + 1)) / (1 - alpha), float64.

    alpha: chance that a drafted token is kept if all before it are, the same at every depth. gamma: drafted tokens, a
    whole number. Both broadcast. From 1, where nothing is kept, to gamma + 1, where all is.
    Source: Leviathan et al., arXiv 2211.17192, equation 1. Raises ValueError outside these ranges.
    """
    a, g = torch.broadcast_tensors(chances(alpha, "alpha"), counts(gamma, "gamma"))
    # 1 - alpha**n by expm1, for with alpha near 1 the plain difference has no digits left.
    series = -torch.expm1((g + 1.0) * a.log()) / (1.0 - a)
    return torch.where(a >= 1.0, g + 1.0, series)


def speculative_speedup(alpha: Numbers, gamma: Numbers, c: Numbers) -> Tensor:
    """Speed in units of plain decoding: expected tokens over what a round costs, gamma * c + 1, float64.

    c: what drafting one token costs, in passes of the target. A pass over gamma + 1 tokens is taken to cost what one
    over a single token costs, as where reading the weights is what takes time.
    Source: Leviathan et al., arXiv 2211.17192, theorem 3.8. Raises ValueError outside the ranges.
    """
    tokens = expected_accepted_tokens(alpha, gamma)
    return tokens / (counts(gamma, "gamma") * numbers(c, "c", least=0.0) + 1.0)


def best_gamma(alpha: Numbers, c: Numbers, most: int = 64) -> Tensor:
    """The number of drafted tokens, 0 to `most`, of greatest `speculative_speedup`, int64; the smallest of equal ones.

    0 says that plain decoding is fastest, as it is wherever c >= alpha. Raises ValueError outside the ranges.
    """
    if most < 0:
        raise ValueError(f"most is {most}, expected at least 0")
    a, cost = torch.broadcast_tensors(chances(alpha, "alpha"), numbers(c, "c", least=0.0))
    gammas = torch.arange(most + 1, device=a.device)
    speed = speculative_speedup(a[..., None], gammas, cost[..., None])
    good = speed >= speed.amax(-1, keepdim=True) * (1.0 - _EQUAL)
    return good.int().argmax(-1)  # the first of equal ones


def expected_accepted_length(per_head: Numbers) -> Tensor:
    """Tokens that a pass emits where depths differ: 1 + sum over k of the product of the first k chances, float64.

    per_head: `[..., heads]`, the chance of each head, or depth, to be right if all before it are.
    Source: the expectation behind Medusa's trees, arXiv 2401.10774, section 2.3, for a chain.
    Raises ValueError where an entry is no probability.
    """
    p = chances(per_head, "per_head")
    if p.ndim == 0:
        raise ValueError("per_head is one number, expected one chance a head: [..., heads]")
    return 1.0 + p.cumprod(-1).sum(-1)
