"""A target that is a table: its law is known exactly, so an output law can be compared to it to the last digit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch import Tensor

from specdec.core.contracts import Caps, Needs
from specdec.core.forest import Forest
from specdec.core.interfaces import Target, TargetSession
from specdec.core.state import Outcome, Row, Scores

Table = Callable[[tuple[int, ...]], Sequence[float]]
"""A law over the next token, given all tokens so far; weights need not be normalised and may be zero."""


class TabularTarget(Target):
    """Scores a forest by looking each node's prefix up in a table; exact in float64, without a model."""

    name = "tabular"

    def __init__(self, table: Table, vocab_size: int) -> None:
        self.table, self.vocab_size = table, vocab_size
        self.caps, self.device = Caps(forks=True), torch.device("cpu")

    def begin(self, rows: Sequence[Row], needs: Needs) -> TargetSession:
        return _TabularSession(self, tuple(rows))

    def logits(self, prefix: tuple[int, ...]) -> Tensor:
        """`[vocab]` float64, log weights; -inf where the table says zero."""
        return torch.tensor(self.table(prefix), dtype=torch.float64).log()


class _TabularSession(TargetSession):
    def __init__(self, target: TabularTarget, rows: tuple[Row, ...]) -> None:
        self._target, self._rows = target, rows

    def prefill(self) -> Scores:
        return Scores(torch.stack([self._target.logits(tuple(row.tokens))[None] for row in self._rows]))

    def score(self, forest: Forest) -> Scores:
        logits = torch.zeros(len(forest.rows), forest.width, self._target.vocab_size, dtype=torch.float64)
        for index, (row, shape) in enumerate(zip(forest.rows, forest.shapes, strict=True)):
            tokens = forest.tokens[index].tolist()
            for node, path in enumerate(shape.paths):
                logits[index, node] = self._target.logits((*row.tokens, *(tokens[at] for at in path)))
        return Scores(logits)

    def commit(self, outcomes: Sequence[Outcome], live: Sequence[Row]) -> None:
        pass

    def follow(self, ancestors: Mapping[int, int], live: Sequence[Row]) -> None:
        pass  # a row's text is all that is looked at


def sequence_law(
    step: Callable[[tuple[int, ...]], Sequence[float]], prompt: Sequence[int], length: int, eos: Sequence[int] = ()
) -> dict[Hashable, float]:
    """The law of the `length` tokens that plain decoding draws after `prompt`, from its one-token laws."""
    law: dict[Hashable, float] = {}

    def extend(tokens: tuple[int, ...], weight: float) -> None:
        if len(tokens) == length or (tokens and tokens[-1] in eos):
            law[tokens] = law.get(tokens, 0.0) + weight
            return
        weights = list(step((*prompt, *tokens)))
        for token, value in enumerate(weights):
            if value > 0:
                extend((*tokens, token), weight * value / sum(weights))

    extend((), 1.0)
    return law
