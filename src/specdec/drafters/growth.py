"""Trees grown from confidences: the worthiest frontier is expanded, level by level, and the worthiest nodes are kept.

A node's value is the chance that its path is the text, the product of the confidences along it. No node is worth more
than its parent, so the n worthiest nodes form a tree, the best one of that size (EAGLE-2, arXiv 2406.16858, section 4;
algorithms: top n by path probability). Whoever has confidences can grow trees: draft heads, draft models, tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Draft
from specdec.core.sampling import top
from specdec.core.state import Budget

Children = tuple[Tensor, Tensor]
"""Tokens and log confidences of possible children, `[rows, width, fan-out]` each."""


@dataclass(frozen=True, eq=False)
class Frontier:
    """The nodes that are expanded next.

    tokens: `[rows, width]`. parents: `[rows, width]`, the place of each one's parent in the frontier before; 0 in the
    first. seen: `[rows, width, all expanded so far]` bool, which expanded nodes are its ancestors, or itself.
    """

    tokens: Tensor
    parents: Tensor
    seen: Tensor


class Oracle(Protocol):
    """Says what may follow, and how likely it is. The fan-out is the same at every node."""

    def root(self) -> Children:
        """What may follow the anchors; width 1."""
        ...

    def below(self, frontier: Frontier) -> Children:
        """What may follow the nodes of a frontier. Asked level by level."""
        ...


def widths(budgets: Sequence[Budget], fan: int, most: int) -> tuple[int, ...]:
    """How many nodes are expanded at each depth, at most: `fan` children a node, `most` nodes a level.

    A node is expanded only if a child of it may be kept: then the nodes above it and those beside it that are no less
    worthy are kept, too, and all of them have to fit the budget.
    """
    found: list[int] = []
    while fan > 0:
        depth = len(found) + 1
        width = min(max(_width(budget, depth, most) for budget in budgets), fan * (found[-1] if found else 1))
        if width <= 0:
            break
        found.append(width)
    return tuple(found)


def _width(budget: Budget, depth: int, most: int) -> int:
    return min(most, budget.nodes - depth) if depth < budget.depth else 0


def likeliest(logits: Tensor, count: int) -> Children:
    """The `count` most probable tokens of `[..., vocab]` logits, most probable first, and their log probabilities."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    tokens = top(logits, count)
    return tokens, logits.gather(-1, tokens) - logits.logsumexp(-1, keepdim=True)


class Kept(NamedTuple):
    """A draft, the log of its nodes' values, on the host or still on the device, and which of its nodes were expanded.

    expanded: node of the draft, or -1 for one that was not kept, for every node that the oracle was asked about.
    """

    draft: Draft
    values: Sequence[float] | Tensor
    expanded: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Grown:
    """All nodes that were looked at, parents first, on the device, `[rows, nodes]` each.

    parents: index of an earlier node, or -1. values: log of the chance that the path is the text; -inf for what is no
    node of the row. expanded: `[rows, nodes below which the oracle was asked]`, in that order.
    """

    tokens: Tensor
    parents: Tensor
    values: Tensor
    expanded: Tensor

    def drafts(self, budgets: Sequence[Budget]) -> list[Kept]:
        """The worthiest nodes of each row, as many as its budget allows and its costs justify; POINT candidates.

        The one device-to-host read of a tree. Among nodes of equal value the shallower ones are kept.
        """
        # Stable: nodes stand by depth, so an equal one that comes first is no deeper.
        values, order = self.values.sort(stable=True, dim=-1, descending=True)
        count = min(max(budget.nodes for budget in budgets), order.shape[1])
        values, order = values[:, :count], order[:, :count]
        *parts, asked = host.read(
            self.tokens.gather(1, order), self.parents.gather(1, order), order, values, self.expanded
        )
        made, each = [], self.expanded.shape[1]
        for row, budget in enumerate(budgets):
            tokens, parents, places, worth = (part[row * count : (row + 1) * count] for part in parts)
            kept = sorted(range(worthwhile(worth, budget)), key=places.__getitem__)
            number = {places[node]: place for place, node in enumerate(kept)} | {-1: -1}
            draft = Draft.point([int(tokens[node]) for node in kept], [number[parents[node]] for node in kept])
            expanded = tuple(number.get(place, -1) for place in asked[row * each : (row + 1) * each])
            made.append(Kept(draft, tuple(worth[node] for node in kept), expanded))
        return made

    def chains(self, budgets: Sequence[Budget]) -> list[Kept]:
        """What was grown with a fan-out of 1, as POINT chains whose tokens stay on the device.

        Costs are minded where reading is free.
        """
        made = []
        for tokens, values, budget in zip(self.tokens, self.values, budgets, strict=True):
            length = min(budget.depth, budget.nodes, len(tokens))
            if budget.cost is not None and budget.rate is not None and (known := host.peek(values)) is not None:
                length = worthwhile(known[:length], budget)
            expanded = tuple(node if node < length else -1 for node in range(self.expanded.shape[1]))
            made.append(Kept(Draft.point(tokens[:length]), values[:length], expanded))
        return made


def worthwhile(values: Sequence[float], budget: Budget, free: bool = False) -> int:
    """How many of these nodes to draft, given the log of their values, the largest first: the marginal-rate rule.

    A set of nodes is worth its expected tokens less what its time would earn at the going rate. What drafting took is
    spent already, so a node that may be accepted at all is drafted; a guess that was `free` may be worth no node.
    """
    count = min(len(values), budget.nodes)
    while count and values[count - 1] == -math.inf:
        count -= 1
    if budget.cost is None or budget.rate is None:
        return count
    best, worth = 0, 0.0
    most, none = (0.0, budget.cost(0)) if free else (-math.inf, 0.0)
    for nodes, value in enumerate(values[:count], start=1):
        worth += math.exp(value)
        if (gain := worth - budget.rate * (budget.cost(nodes) - none)) > most:
            best, most = nodes, gain
    return best


def grow(oracle: Oracle, budgets: Sequence[Budget], most: int) -> Grown:
    """Expand, level by level, the `most` worthiest nodes of each row, as deep as its budget allows.

    A row grows no deeper where what the next level would add is worth less than a level and its nodes cost. A row's
    tree does not depend on the others'. Nothing is read from the device, except where reading is free.
    """
    tokens, confidences = oracle.root()
    rows, _, fan = tokens.shape
    device = tokens.device
    tokens, values = tokens[:, 0], _clean(confidences[:, 0])
    if any(not min(budget.depth, budget.nodes) for budget in budgets):
        open_ = host.send([min(budget.depth, budget.nodes) > 0 for budget in budgets], device, torch.bool)
        values = values.masked_fill(~open_[:, None], -math.inf)
    everything = [(tokens, torch.full_like(tokens, -1), values)]
    expanded = [tokens[:, :0]]
    first = 0  # number of the first node of the level
    seen: Tensor | None = None
    price = _prices(budgets, device)
    chance = values.exp()[:, :1] if price is not None else None  # of a node's best child, as just seen
    for depth, width in enumerate(widths(budgets, fan, most), start=1):
        best, place = values.sort(stable=True, dim=-1, descending=True)
        best, place = best[:, :width], place[:, :width]
        allowed = [_width(budget, depth, most) for budget in budgets]
        if min(allowed) < width:
            rank = torch.arange(width, device=device)
            best = best.masked_fill(rank >= host.send(allowed, device)[:, None], -math.inf)
        if price is not None and chance is not None:
            gain = (best.exp() * chance - price[:, 1:]).clamp(min=0).sum(-1, keepdim=True)
            best = best.masked_fill(gain < price[:, :1], -math.inf)
        if host.known_true(lambda: best == -math.inf, device):  # noqa: B023 - asked at once
            break
        own = torch.eye(width, dtype=torch.bool, device=device).expand(rows, width, width)
        parents = place // fan if seen is not None else torch.zeros_like(place)
        if seen is None:
            seen = own
        else:
            above = seen.gather(1, parents[..., None].expand(rows, width, seen.shape[-1]))
            seen = torch.cat([above, own], -1)
        below, confidences = oracle.below(Frontier(tokens.gather(1, place), parents, seen))
        expanded.append(first + place)
        children = best[..., None] + _clean(confidences)  # [rows, width, fan]
        if chance is not None:
            worth = best.exp().sum(-1, keepdim=True).clamp(min=1e-30)
            chance = children.amax(-1).exp().sum(-1, keepdim=True) / worth
        count = tokens.shape[1]
        above = (first + place)[..., None].expand_as(below).flatten(1)
        tokens, values, first = below.flatten(1), children.flatten(1), first + count
        everything.append((tokens, above, values))
    tokens, above, values = (torch.cat(parts, 1) for parts in zip(*everything, strict=True))
    return Grown(tokens, above, values, torch.cat(expanded, 1))


def _clean(confidences: Tensor) -> Tensor:
    """Log confidences that are none, such as those of a broken head, count as zero chance, and none is above one."""
    return torch.nan_to_num(confidences, nan=-math.inf, posinf=0.0, neginf=-math.inf).clamp(max=0.0)


def _prices(budgets: Sequence[Budget], device: torch.device) -> Tensor | None:
    """`[rows, 2]`, in tokens: what a level costs, and what a node costs; None where no row knows."""
    if all(budget.rate is None for budget in budgets):
        return None
    made = []
    for budget in budgets:
        level = node = 0.0
        if budget.rate is not None:
            level = budget.rate * (budget.step or 0.0)
            if budget.cost is not None and budget.nodes > 1:
                node = budget.rate * (budget.cost(budget.nodes) - budget.cost(1)) / (budget.nodes - 1)
        made.append([level, max(0.0, node)])
    return host.send(made, device, torch.float64)
