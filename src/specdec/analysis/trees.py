"""Trees: what a draft tree is worth, what the best tree of its size is worth, and what a fixed shape loses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.analysis.checked import Numbers, chances

__all__ = ["best_nodes", "expected_tree_tokens", "fixed_value_mass", "path_values", "value_mass"]


def path_values(chance: Numbers, parents: Sequence[int]) -> Tensor:
    """The chance that each node's whole path is the text: products along paths, `[..., nodes]` float64.

    chance: `[..., nodes]`, the chance that the text goes on by a node if it came to its parent. parents: -1 (the
    anchor) or an earlier node, as in a `Draft`. No value exceeds that of the parent.
    Source: EAGLE-2, arXiv 2406.16858, section 4.1. Raises ValueError where they do not fit.
    """
    p = chances(chance, "chance")
    if p.ndim == 0 or p.shape[-1] != len(parents):
        raise ValueError(f"chance is {list(p.shape)} for {len(parents)} parents, expected [..., nodes]")
    values: list[Tensor] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; expected -1 or an earlier node")
        values.append(p[..., node] if parent < 0 else values[parent] * p[..., node])
    return torch.stack(values, -1) if values else p


def expected_tree_tokens(chance: Numbers, parents: Sequence[int]) -> Tensor:
    """Tokens that a pass over a tree emits, bonus included: 1 + the sum of `path_values`, `[...]` float64.

    Exact where `chance` is the target's own law at POINT candidates: no exact rule keeps more of such a tree, and
    following the target's own draws keeps as much. For a chain of equal chances this is `expected_accepted_tokens`.
    Raises ValueError where chance and parents do not fit.
    """
    return 1.0 + path_values(chance, parents).sum(-1)


def best_nodes(values: Numbers, budget: int) -> Tensor:
    """The `budget` worthiest nodes, `[..., min(budget, nodes)]` int64 in ascending order; the earlier of equal ones.

    values: `[..., nodes]` of `path_values`, parents before children. As no node is worth more than its parent, the
    nodes form a tree, and no tree of that size is worth more (EAGLE-2, arXiv 2406.16858, section 4.2).
    """
    v = _values(values, budget)
    order = v.argsort(dim=-1, descending=True, stable=True)
    return order[..., :budget].sort(-1).values


def value_mass(values: Numbers, budget: int) -> Tensor:
    """What the best tree of `budget` nodes is worth in each context: the sum of the largest values, `[...]` float64.

    That is the number of drafted tokens it is expected to have kept, if the values are what they claim to be: the
    worth of a dynamic tree. values: `[..., nodes]` of `path_values`. Raises ValueError for a negative budget.
    """
    v = _values(values, budget)
    return v.topk(min(budget, v.shape[-1]), -1).values.sum(-1)


def fixed_value_mass(values: Numbers, budget: int) -> Tensor:
    """What the best fixed tree of `budget` nodes is worth on average over contexts: a number, float64.

    values: `[contexts, nodes]`, the same nodes (by depth and rank) in every context. A fixed tree takes the same nodes
    everywhere, so the best one takes those of greatest mean value; they are ancestor-closed, as means are monotone,
    too. Never more than the mean of `value_mass`. Raises ValueError for a negative budget.
    """
    v = _values(values, budget)
    if v.ndim != 2:
        raise ValueError(f"values are {list(v.shape)}, expected [contexts, nodes]")
    return v.mean(0).topk(min(budget, v.shape[-1])).values.sum()


def _values(values: Numbers, budget: int) -> Tensor:
    v = chances(values, "values")
    if v.ndim == 0:
        raise ValueError("values is one number, expected [..., nodes]")
    if budget < 0:
        raise ValueError(f"budget is {budget}, expected a number of nodes from 0 on")
    return v
