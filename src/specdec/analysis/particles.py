"""Particles: how far sequential Monte Carlo is from the target's law, and how fast it is."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec.analysis.checked import Numbers, counts, laws, numbers

__all__ = ["block_chi_square", "chi_square", "effective_sample_size", "smc_error_bound", "smc_speedup"]


def chi_square(p: Numbers, q: Numbers) -> Tensor:
    """The divergence sum of (p - q)**2 / q: the variance under q of the weight p / q, `[...]` float64.

    Infinite where p gives something that q cannot. `[..., vocab]` laws; raises ValueError where p or q is none.
    """
    p, q = laws(p, q)
    ratio = (p - q).square() / q
    return torch.where((p == 0) & (q == 0), torch.zeros_like(ratio), ratio).sum(-1)


def block_chi_square(divergences: Numbers) -> Tensor:
    """The divergence of a block of independent tokens from those of its tokens: the product of (1 + d), less 1.

    divergences: `[..., tokens]` of `chi_square`. It grows exponentially with the block, which is why blocks are kept
    short. Raises ValueError for a negative divergence.
    """
    d = numbers(divergences, "divergences", least=0.0)
    if d.ndim == 0:
        raise ValueError("divergences is one number, expected one a token: [..., tokens]")
    return torch.expm1(d.log1p().sum(-1))


def effective_sample_size(weights: Numbers) -> Tensor:
    """(sum of w)**2 / sum of w**2: how many particles of equal weight are worth as much, `[...]` float64.

    weights: `[..., particles]`, not negative and not all zero; their scale plays no part. From 1 to the number of
    particles. Source: Kong, Liu and Wong 1994. Raises ValueError for other weights.
    """
    w = numbers(weights, "weights", least=0.0)
    if w.ndim == 0:
        raise ValueError("weights is one number, expected one a particle: [..., particles]")
    largest = w.amax(-1, keepdim=True)
    if bool((largest <= 0).any()) or bool(largest.isinf().any()):
        raise ValueError("weights are all zero, or infinite; expected at least one that is positive, and finite ones")
    w = w / largest  # or their squares could run out of range
    return w.sum(-1).square() / w.square().sum(-1)


def smc_speedup(tokens: Numbers, rho: Numbers) -> Tensor:
    """Speed in units of plain decoding: (K + 1) / (rho * K + 1), float64, whatever the draft is worth.

    tokens: K, what each particle drafts in a round. rho: what drafting one costs, in passes of the target. A pass over
    all particles is taken to cost what one over a single token costs.
    Source: Emara et al., arXiv 2604.15672, equation 3. Raises ValueError outside the ranges.
    """
    k = counts(tokens, "tokens")
    return (k + 1.0) / (numbers(rho, "rho", least=0.0) * k + 1.0)


def smc_error_bound(p: Numbers, q: Numbers, particles: Numbers) -> Tensor:
    """A bound on the total variation between one block's output and the target's law, `[...]` float64.

    The sum of p * (w - 1)+ / (N - 1 + w) with w = p / q, which is at most (chi_square + total_variation) / N. For N
    independent particles from q, one of which is picked in proportion to its weight; `[..., outcomes]` laws are over
    whole blocks. Proof: the output gives x the chance p(x) times the expectation of N / (w(x) + the other N - 1
    weights), whose mean is 1 each, so at least p(x) * N / (N - 1 + w(x)) by Jensen's inequality.
    Raises ValueError where p or q is no law.
    """
    p, q = laws(p, q)
    n = counts(particles, "particles", least=1)[..., None]
    w = p / q
    lost = (w - 1.0).clamp(min=0.0) / (n - 1.0 + w)
    lost = torch.where(q > 0, lost, torch.ones_like(lost))  # what q cannot give is not there at all
    return torch.where(p > 0, p * lost, torch.zeros_like(lost)).sum(-1)
