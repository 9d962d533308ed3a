"""From the target's logits to the law that verifiers judge by: the one place where the sampling transform happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

    def p_along_chains(self, last: Tensor) -> Tensor:
        """p `[rows, width, vocab]` float64 at every node of chains, of no meaning after node `last` `[rows]`."""
        rows, width, vocab = self.logits.shape
        shared = self._shared
        if self.plain or (shared is not None and shared.elementwise):
            raw = self.logits.reshape(rows * width, vocab)
            raw = raw if raw.dtype == torch.float64 else raw.float()
            if not self.plain and shared is not None:
                raw = shared.apply(self.forest.tokens.reshape(-1, 1), raw.clone())
            return self._probabilities(raw.view(rows, width, vocab))
        return torch.stack([self.p(torch.full_like(last, n).minimum(last), n, last >= n) for n in range(width)], 1)

    def _probabilities(self, scores: Tensor) -> Tensor:
        """`[rows, ..., vocab]` processed scores to float64 probabilities; one-hot in rows that decode greedily."""
        greedy = [row.sampling.greedy for row in self.forest.rows]
        if not any(greedy):
            return scores.softmax(-1, dtype=torch.float64)
        one_hot = torch.zeros_like(scores, dtype=torch.float64)
        one_hot.scatter_(-1, best(scores)[..., None], 1.0)
        if all(greedy):
            return one_hot
        where = host.send(greedy, scores.device, torch.bool).view(-1, *[1] * (scores.ndim - 1))
        return torch.where(where, one_hot, scores.softmax(-1, dtype=torch.float64))


def best(scores: Tensor) -> Tensor:
    """Index of the largest score along the last axis, the lowest index where several are equal."""
    return scores.max(-1).indices
