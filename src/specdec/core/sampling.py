"""From the target's logits to the law that verifiers judge by: the one place where the sampling transform happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.forest import Forest
from specdec.core.state import Scores

Processor = Callable[[Tensor, Tensor], Tensor]
"""A logits processor: padded prefix `[1, length]` and scores `[1, vocab]` to processed scores."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """How one row turns logits into a law.

    processors: applied in order to float32 scores.
    elementwise: no processor looks at the prefix, so many nodes may be processed in one call.
    greedy: the law is one-hot at the largest processed score.
    strict: some processor, such as a grammar, must only see prefixes that the text may really reach.
    mirrored: those processors that a draft model may apply to its own logits, to come closer to the target; they
        may be called with prefixes that the target never sees.
    """

    processors: tuple[Processor, ...] = ()
    elementwise: bool = True
    greedy: bool = True
    strict: bool = False
    mirrored: tuple[Processor, ...] = ()
    mirrored_elementwise: bool = True

    @property
    def mirror(self) -> Sampling:
        """The sampling of a draft model that follows this one."""
        return Sampling(self.mirrored, self.mirrored_elementwise, self.greedy)

    def apply(self, prefix: Tensor, scores: Tensor) -> Tensor:
        """`[n, length]` prefixes and `[n, vocab]` float scores to processed scores."""
        for processor in self.processors:
            scores = processor(prefix, scores)
        return scores


class Laws:
    """The target's law at the nodes of one pass, evaluated only where a verifier asks.

    p is the target's law after every processor has seen that node's own prefix.
    """

    def __init__(self, scores: Scores, forest: Forest) -> None:
        self.logits = scores.logits  # [rows, width, vocab]
        self.forest = forest
        self.plain = all(not row.sampling.processors for row in forest.rows)
        first = forest.rows[0].sampling
        self._shared = first if all(row.sampling is first for row in forest.rows) else None
        self._rows = torch.arange(len(forest.rows), device=self.logits.device)

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[-1]

    @property
    def rows(self) -> Tensor:
        """`[rows]` int64, 0 to rows - 1: to index with."""
        return self._rows

    def processed(self, node: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Processed scores `[rows, vocab]` at `node` `[rows]`, whose active rows stand at `depth`.

        Rows that are not `active` `[rows]`, and nodes whose token ends their row, get scores of no meaning.
        float32, or float64 for float64 logits.
        """
        raw = self.logits[self._rows, node]
        raw = raw if raw.dtype == torch.float64 else raw.float()  # a copy: processors may write in place
        if self.plain:
            return raw
        if self._shared is not None and self._shared.elementwise:
            return self._shared.apply(self.forest.tokens[:, :1], raw)
        wanted = self._wanted(node, active)
        out = raw.clone()
        for index, row in enumerate(self.forest.rows):
            if wanted is None or wanted[index]:
                prefix = row.prefix(raw.device)
                if depth:
                    path = self.forest.tables.path[index].index_select(0, node[index : index + 1])[0, :depth]
                    below = self.forest.tokens[index].index_select(0, path)
                    prefix = torch.cat([prefix, below[None]], dim=1)
                out[index] = row.sampling.apply(prefix, raw[index : index + 1])[0]
        return out

    def _wanted(self, node: Tensor, active: Tensor | None) -> list[bool] | None:
        """Rows whose processors must be called at `node`, or None: all of them may be."""
        if (ends := self.forest.ends()) is not None:
            open_ = ~ends[self._rows, node] | (node == 0)  # no token follows the one that ends a row
            active = open_ if active is None else active & open_
        strict = any(row.sampling.strict for row in self.forest.rows)
        return None if active is None else host.known_rows(active, always=strict)

    def processed_at(self, index: int, node: int) -> Tensor:
        """Processed scores `[vocab]` of row `index` at `node`."""
        if self.plain:
            raw = self.logits[index, node]
            return raw if raw.dtype == torch.float64 else raw.float()
        nodes, only = torch.zeros_like(self._rows), torch.zeros_like(self._rows, dtype=torch.bool)
        nodes[index], only[index] = node, True
        return self.processed(nodes, self.forest.shapes[index].depths[node], only)[index]

    def p(self, node: Tensor, depth: int, active: Tensor | None = None) -> Tensor:
        """Probabilities `[rows, vocab]` float64 at `node` `[rows]`; see `processed`."""
        return self._probabilities(self.processed(node, depth, active))

    def p_anywhere(self, node: Tensor, active: Tensor) -> Tensor:
        """Probabilities `[rows, vocab]` float64 at `node` `[rows]`, at whatever depths the active rows stand."""
        if self._at_once:
            return self.p(node, 0)
        depths, law = self.forest.tables.depth[self._rows, node], None
        for depth in range(self.forest.depth + 1):
            here = active & (depths == depth)
            if depth and host.known_true(lambda: ~here, here.device):  # noqa: B023 - asked at once
                continue
            p = self.p(node, depth, here)
            law = p if law is None else torch.where(here[:, None], p, law)
        assert law is not None
        return law

    def p_at(self, row: Tensor, node: Tensor, places: Sequence[tuple[int, int]], active: Tensor) -> Tensor:
        """Probabilities `[places, vocab]` float64 at many nodes, given on the device and, as `places`, on the host.

        Places that are not `active` `[places]` get a law of no meaning.
        """
        raw = self.logits[row, node]
        raw = raw if raw.dtype == torch.float64 else raw.float()  # a copy: processors may write in place
        if not self.plain and self._at_once and self._shared is not None:
            raw = self._shared.apply(self.forest.tokens[row, node][:, None], raw)
        elif not self.plain:
            strict = any(held.sampling.strict for held in self.forest.rows)
            wanted = host.known_rows(active, always=strict)
            out = raw.clone()
            for index, (at, below) in enumerate(places):
                if wanted is None or wanted[index]:
                    held = self.forest.rows[at]
                    path = host.send(self.forest.shapes[at].paths[below], raw.device)
                    drafted = self.forest.tokens[at].index_select(0, path)
                    prefix = torch.cat([held.prefix(raw.device), drafted[None]], dim=1)
                    out[index] = held.sampling.apply(prefix, raw[index : index + 1])[0]
            raw = out
        return self._probabilities(raw, [self.forest.rows[at].sampling.greedy for at, _ in places])

    @cached_property
    def likely(self) -> Tensor:
        """`[rows, width]` int64: the most probable token of every node by its raw logits."""
        return best(self.logits)

    def p_everywhere(self, active: Tensor) -> Tensor:
        """p `[rows, width, vocab]` float64 at every node; of no meaning where not `active` `[rows, width]`."""
        if self._at_once:
            return self.p_along_chains(self._rows)
        each = [self.p_anywhere(torch.full_like(self._rows, node), active[:, node]) for node in range(active.shape[1])]
        return torch.stack(each, 1)

    def p_along_chains(self, last: Tensor) -> Tensor:
        """p `[rows, width, vocab]` float64 at every node of chains, of no meaning after node `last` `[rows]`."""
        rows, width, vocab = self.logits.shape
        if self._at_once:
            raw = self.logits.reshape(rows * width, vocab)
            raw = raw if raw.dtype == torch.float64 else raw.float()
            if not self.plain and self._shared is not None:
                raw = self._shared.apply(self.forest.tokens.reshape(-1, 1), raw.clone())
            return self._probabilities(raw.view(rows, width, vocab))
        strict = any(row.sampling.strict for row in self.forest.rows)
        laws, reached = [], torch.ones_like(last, dtype=torch.bool)
        for node in range(width):
            laws.append(self.p(torch.full_like(last, node).minimum(last), node, reached & (last >= node)))
            if strict and node + 1 < width:  # the text comes to no node whose token has no probability
                drafted = self.forest.tokens[:, node + 1 : node + 2]
                reached = reached & (laws[-1].gather(1, drafted)[:, 0] > 0)
        return torch.stack(laws, 1)

    @property
    def _at_once(self) -> bool:
        """Whether many nodes can be processed in one call, since no processor looks at a prefix."""
        return self.plain or (self._shared is not None and self._shared.elementwise)

    def _probabilities(self, scores: Tensor, greedy: list[bool] | None = None) -> Tensor:
        """`[rows, ..., vocab]` processed scores to float64 probabilities; one-hot where `greedy`, by default by row."""
        greedy = [row.sampling.greedy for row in self.forest.rows] if greedy is None else greedy
        if not any(greedy):
            return scores.softmax(-1, dtype=torch.float64)
        one_hot = torch.zeros_like(scores, dtype=torch.float64)
        one_hot.scatter_(-1, best(scores)[..., None], 1.0)
        if all(greedy):
            return one_hot
        where = host.send(greedy, scores.device, torch.bool).view(-1, *[1] * (scores.ndim - 1))
        return torch.where(where, one_hot, scores.softmax(-1, dtype=torch.float64))


def top(scores: Tensor, count: int) -> Tensor:
    """`[..., vocab]` to the indices `[..., up to count]` of the largest scores, the largest first.

    Exact but for the order of equal scores. The maxima of short blocks are searched first: the k largest scores lie
    in the k blocks of largest maximum, and a search through all of a large vocabulary takes several times as long.
    """
    if count == 1:
        return best(scores)[..., None]
    vocab, block = scores.shape[-1], 64
    count = min(count, vocab)
    if vocab < 4 * block * count:
        return scores.topk(count, dim=-1).indices
    short = -vocab % block
    padded = torch.nn.functional.pad(scores, (0, short), value=-torch.inf) if short else scores
    blocks = padded.reshape(*padded.shape[:-1], -1, block)  # [..., blocks, block]
    chosen = blocks.amax(-1).topk(count, dim=-1).indices  # [..., count]
    among = blocks.gather(-2, chosen[..., None].expand(*chosen.shape, block)).flatten(-2)  # [..., count * block]
    place = among.topk(count, dim=-1).indices
    found = chosen.gather(-1, place // block) * block + place % block
    return found.clamp(max=vocab - 1)


def best(scores: Tensor) -> Tensor:
    """Index of the largest score along the last axis, the lowest index where several are equal."""
    return scores.max(-1).indices
