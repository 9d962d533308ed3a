"""Growing a tree of draws, level by level: nothing that is drawn is sorted, pruned or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Draft, Kind
from specdec.core.rng import Key, Rng
from specdec.core.sampling import top
from specdec.drafters.tree_shape import Level, TreeShape

_FILL = 1e-6  # share of a law that is spread over the vocabulary, so that there is always one more token to draw


@dataclass(frozen=True, eq=False)
class Step:
    """The nodes of one depth whose children are to be drawn, the rows side by side; shorter rows are padded.

    above: for each row its nodes' parents, counted among the row's nodes asked about so far: 0 is the anchor, i the
        i-th node after it. The first step asks about the anchor, and `above` is empty.
    depth: 0 for the anchor. width: nodes of the longest row.
    before: columns that the steps between the anchor's and this one take, where they stand side by side.
    """

    above: tuple[tuple[int, ...], ...]
    depth: int
    width: int
    before: int
    _drawn: Tensor  # [rows, nodes], tokens drawn so far
    _paths: tuple[tuple[tuple[int, ...], ...], ...]  # a row, a node: from the anchor's child down to itself
    _columns: tuple[tuple[tuple[int, ...], ...], ...]  # a row, a node: the columns of these

    @cached_property
    def below(self) -> Tensor:
        """`[rows, width, depth]` int64: the tokens on the way from the anchor to each node, its own last."""
        return self._drawn.gather(1, self._table(self._paths).flatten(1)).view(-1, self.width, self.depth)

    @property
    def tokens(self) -> Tensor:
        """`[rows, width]` int64: the nodes' own tokens, where they are not the anchor."""
        return self.below[..., -1]

    @property
    def parents(self) -> Tensor:
        """`[rows, width]` int64: the column of each node's parent, that of the anchor being 0 and first."""
        if self.depth < 2:
            return torch.zeros(len(self._paths), self.width, dtype=torch.int64, device=self._drawn.device)
        return self._table(self._columns)[..., -2] + 1

    @property
    def seen(self) -> Tensor:
        """`[rows, width, before + width]` bool: which columns are a node's ancestors below the anchor, or itself."""
        rows, device = len(self._paths), self._drawn.device
        seen = torch.zeros(rows, self.width, self.before + self.width, dtype=torch.bool, device=device)
        if self.depth > 1:
            seen.scatter_(2, self._table(self._columns)[..., :-1], True)
        own = torch.arange(self.before, self.before + self.width, device=device)[:, None]
        return seen.scatter_(2, own.expand(rows, self.width, 1), True)

    def _table(self, lists: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """`[rows, width, depth]` int64, zeros for padding."""
        padding = (0,) * self.depth
        padded = [[*row, *[padding] * (self.width - len(row))] for row in lists]
        return host.send(padded, self._drawn.device).view(len(lists), self.width, self.depth)


Oracle = Callable[[Step], Tensor]
"""The laws of children at the nodes of a step: `[rows, width, vocab]` probabilities in float64; padding is not read.

For POINT candidates any scores will do.
"""


def grow(shapes: Sequence[TreeShape], oracle: Oracle, kind: Kind, rng: Rng, keys: Sequence[Key]) -> list[Draft]:
    """One draft a row, of the given shapes and one kind; the oracle is asked once a level.

    NO_REPLACE: children are drawn one after another, without replacement, from the law at their parent. IID: with
    replacement. POINT: the most probable tokens, no draws. keys: name each row's draws, beside the node drawn.

    A shape is known before anything is drawn and whatever is drawn is in the draft, in draw order: what `Draft.sampled`
    promises. Where several children are drawn without replacement, a millionth of their law is uniform: a law that is
    cut to few tokens, as by top-p, would run dry.
    """
    deepest, most = max(shape.depth for shape in shapes), max(len(shape) for shape in shapes)
    if not deepest:
        return [Draft.empty()] * len(shapes)
    drawn, before = torch.zeros(0), 0
    columns: list[dict[int, int]] = [{} for _ in shapes]  # a row: of nodes that were asked about
    laws: list[dict[int, Tensor]] = [{} for _ in shapes]  # a row: [vocab] by node, the anchor being 0
    for depth in range(deepest):
        levels = [shape.levels[depth] if depth < shape.depth else Level() for shape in shapes]
        paths = tuple(tuple(shape.paths[n] for n in level.nodes) for shape, level in zip(shapes, levels, strict=True))
        width = max(len(level.nodes) for level in levels)
        for level, known in zip(levels, columns, strict=True):
            known.update((node, before + place) for place, node in enumerate(level.nodes))
        under = tuple(
            tuple(tuple(known[node] for node in path) for path in row)
            for known, row in zip(columns, paths, strict=True)
        )
        law = oracle(Step(tuple(level.above for level in levels), depth, width, before, drawn, paths, under))
        if depth:
            before += width
        else:
            drawn = torch.zeros(len(shapes), most, dtype=torch.int64, device=law.device)
        # Places with most children first, so that those of the j-th child are the first few.
        places = sorted(
            ((row, place) for row, level in enumerate(levels) for place in range(len(level.nodes))),
            key=lambda at: -len(levels[at[0]].children[at[1]]),
        )
        children = [levels[row].children[place] for row, place in places]
        row = host.send([row for row, _ in places], law.device)
        law = law[row, host.send([place for _, place in places], law.device)]  # [places, vocab], a copy
        several = sum(len(family) > 1 for family in children)
        if kind is Kind.POINT:
            guesses = top(law, len(children[0]))  # [places, most children]
        elif kind is Kind.NO_REPLACE:
            law[:several].mul_(1.0 - _FILL).add_(_FILL / law.shape[1])
        left = law  # what has not been drawn yet
        for order in range(len(children[0])):
            taking = [family[order] for family in children if len(family) > order]
            n = len(taking)
            if kind is Kind.POINT:
                token = guesses[:n, order]
            else:
                at = [(*keys[place[0]], node) for place, node in zip(places, taking, strict=False)]
                token = rng.categorical(left[:n], at=at)
            drawn[row[:n], host.send(taking, law.device)] = token
            if kind is Kind.NO_REPLACE and order + 1 < len(children[0]):
                left = law[:several].clone() if left is law else left
                left[:n].scatter_(1, token[: len(left), None], 0.0)
        for number, (at_row, place) in enumerate(places):
            laws[at_row][levels[at_row].nodes[place] + 1] = law[number]
    return [_draft(shape, drawn[index, : len(shape)], laws[index], kind) for index, shape in enumerate(shapes)]


def _draft(shape: TreeShape, tokens: Tensor, laws: dict[int, Tensor], kind: Kind) -> Draft:
    if not len(shape):
        return Draft.empty()
    if kind is Kind.POINT:
        return Draft.point(tokens, shape.parents)
    nothing = torch.zeros_like(laws[0])  # the law of nodes without children, which nobody reads
    q = torch.stack([laws.get(node, nothing) for node in range(max(laws) + 1)])
    return Draft.sampled(tokens, q, shape.parents, replace=kind is Kind.IID)
