"""The numbers behind the page's explorers, all from `specdec.analysis`."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from specdec.analysis import (
    acceptance_rate,
    best_gamma,
    block_chi_square,
    chi_square,
    expected_accepted_length,
    expected_accepted_tokens,
    fixed_value_mass,
    path_values,
    smc_error_bound,
    speculative_speedup,
    value_mass,
)

__all__ = ["explorers"]

_RANKS, _DEPTH, _CONTEXTS = 3, 5, 48
_NEAR = (0.40, 0.25, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02)
_FAR = (0.125,) * 8


def explorers() -> dict[str, Any]:
    """Axes and values of each explorer; nested lists in the order of the axes."""
    return {"speed": _speed(), "depth": _depth(), "trees": _trees(), "particles": _particles()}


def _speed() -> dict[str, Any]:
    """Speed of a chain over acceptance, cost of a drafted token and number of drafted tokens."""
    alpha, cost, gamma = _steps(0.0, 1.0, 20), _steps(0.0, 0.5, 10), torch.arange(17)
    return {
        "alpha": _list(alpha),
        "c": _list(cost),
        "gamma": gamma.tolist(),
        "tokens": _list(expected_accepted_tokens(alpha[:, None], gamma)),  # [alpha][gamma]
        "speedup": _list(speculative_speedup(alpha[:, None, None], gamma, cost[:, None])),  # [alpha][c][gamma]
        "best": best_gamma(alpha[:, None], cost, most=16).tolist(),  # [alpha][c]
    }


def _depth() -> dict[str, Any]:
    """Tokens a pass by number of heads, where head k is right with the chance first * decay**(k - 1)."""
    first, decay, heads = _steps(0.5, 1.0, 10), _steps(0.5, 1.0, 10), 6
    chances = first[:, None, None] * decay[:, None] ** torch.arange(heads)  # [first, decay, heads]
    curves = [expected_accepted_length(chances[..., :count]) for count in range(1, heads + 1)]
    return {
        "first": _list(first),
        "decay": _list(decay),
        "chances": _list(chances),
        "tokens": _list(torch.stack(curves, -1)),  # [first][decay][heads - 1]
    }


def _trees() -> dict[str, Any]:
    """Drafted tokens kept by the best tree of each context and by the best fixed one, by budget and spread.

    Where the text may go on with sureness s, the candidate of rank r is right with the chance s * (1 - s)**r. Sureness
    lies between 0.5 - spread / 2 and 0.5 + spread / 2, another at every node of every context.
    """
    paths = [path for depth in range(1, _DEPTH + 1) for path in product(range(_RANKS), repeat=depth)]
    number = {path: place for place, path in enumerate(paths)}
    parents = [number.get(path[:-1], -1) for path in paths]
    ranks = torch.tensor([path[-1] for path in paths], dtype=torch.float64)
    above = torch.tensor(parents) + 1
    drawn = torch.rand(_CONTEXTS, len(paths) + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spreads, budgets = _steps(0.0, 0.9, 9), range(1, 41)
    dynamic, fixed = [], []
    for spread in spreads:
        sure = (0.5 + spread * (drawn - 0.5))[:, above]  # [contexts, nodes], that of each node's parent
        values = path_values(sure * (1.0 - sure) ** ranks, parents)
        dynamic.append(torch.stack([value_mass(values, budget).mean() for budget in budgets]))
        fixed.append(torch.stack([fixed_value_mass(values, budget) for budget in budgets]))
    return {
        "spread": _list(spreads),
        "budget": list(budgets),
        "dynamic": _list(torch.stack(dynamic)),  # [spread][budget]
        "fixed": _list(torch.stack(fixed)),
    }


def _particles() -> dict[str, Any]:
    """Rejection and particles where the draft's law moves away from the target's: q = (1 - delta) * p + delta * far."""
    near, far = torch.tensor(_NEAR, dtype=torch.float64), torch.tensor(_FAR, dtype=torch.float64)
    deltas, blocks, particles = _steps(0.0, 1.0, 20), torch.arange(1, 5), torch.tensor([1, 2, 4, 8, 16])
    q = (1.0 - deltas[:, None]) * near + deltas[:, None] * far  # [delta, vocab]
    p = near.expand_as(q)
    alpha, divergence = acceptance_rate(p, q), chi_square(p, q)
    bounds = []
    for block in blocks.tolist():
        whole_p, whole_q = _power(p, block), _power(q, block)
        bounds.append(smc_error_bound(whole_p[:, None], whole_q[:, None], particles))  # [delta, particles]
    return {
        "delta": _list(deltas),
        "K": blocks.tolist(),
        "N": particles.tolist(),
        "p": _list(near),
        "q": _list(q),
        "alpha": _list(alpha),
        "rejection": _list(expected_accepted_tokens(alpha[:, None], blocks)),  # [delta][K]
        "fixed": [block + 1 for block in blocks.tolist()],
        "chi_square": _list(divergence),
        "block_chi_square": _list(
            torch.stack([block_chi_square(divergence[:, None].expand(-1, block)) for block in blocks.tolist()], -1)
        ),
        "bound": _list(torch.stack(bounds, 1)),  # [delta][K][N]
    }


def _power(law: Tensor, block: int) -> Tensor:
    """`[..., vocab]` to the law `[..., vocab**block]` of `block` independent tokens."""
    whole = law
    for _ in range(block - 1):
        whole = (whole[..., :, None] * law[..., None, :]).flatten(-2)
    return whole


def _steps(low: float, high: float, count: int) -> Tensor:
    return torch.linspace(low, high, count + 1, dtype=torch.float64)


def _list(values: Tensor) -> Any:
    """Nested lists, with digits that a page can show."""
    return torch.round(values.double(), decimals=4).tolist()
