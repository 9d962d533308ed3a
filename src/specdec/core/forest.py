"""The drafts of a round packed side by side: the shape that targets score and verifiers judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Draft, Kind, Topology
from specdec.core.state import Row

NONE, POINT, IID, NO_REPLACE = 0, 1, 2, 3
_CODE = {Kind.POINT: POINT, Kind.IID: IID, Kind.NO_REPLACE: NO_REPLACE}


@dataclass(frozen=True, eq=False)
class Candidates:
    """Who stands for election at which node, as device tables.

    node: `[rows, width, most]` int64, node of the candidacy, 0 where there is none.
    kind: `[rows, width, most]` int64, codes NONE, POINT, IID, NO_REPLACE.
    """

    node: Tensor
    kind: Tensor
    most: int


@dataclass(frozen=True, eq=False)
class Tables:
    """The shape of a packed forest, as device tables.

    parent: `[rows, width]` int64, the anchor being its own parent.
    depth: `[rows, width]` int64.
    path: `[rows, width, depth]` int64, nodes from the root down to each node, padded with the node itself.
    judged: `[rows, width]` bool, False for the anchor, scratch and padding.
    length: `[rows]` int64, number of nodes that may be judged.
    """

    parent: Tensor
    depth: Tensor
    path: Tensor
    judged: Tensor
    length: Tensor


@dataclass(frozen=True, eq=False)
class Forest:
    """Rows and their drafts in one pass. Node 0 of each row is its anchor; shorter rows are padded.

    tokens: `[rows, width]` int64 on the device. given: the same as drafted; an id outside the vocabulary, which on a
        GPU is noticed only when the round is read, stands there and not in `tokens`, where it would index an embedding.
    ends: `[rows, width]` bool: the node's token ends the row, so nothing below it is ever judged.
    """

    rows: tuple[Row, ...]
    drafts: tuple[Draft, ...]
    shapes: tuple[Topology, ...]
    tokens: Tensor
    given: Tensor
    width: int
    depth: int

    @classmethod
    def pack(
        cls, rows: Sequence[Row], drafts: Sequence[Draft], device: torch.device, vocab: int | None = None
    ) -> Forest:
        """Rows side by side; with `vocab` the ids of drafts that lie on the device are kept within it."""
        shapes = tuple(draft.topology for draft in drafts)
        width = 1 + max(len(draft) for draft in drafts)
        known = all(isinstance(draft.tokens, tuple) for draft in drafts)
        if known:
            ids = [[row.anchor, *d.tokens, *[0] * (width - 1 - len(d))] for row, d in zip(rows, drafts, strict=True)]
            tokens = host.send(ids, device)
        elif len(rows) == 1:
            tokens = torch.cat([host.send([rows[0].anchor], device), drafts[0].token_tensor(device)])[None]
        else:
            tokens = host.send([[row.anchor] * width for row in rows], device)
            for index, draft in enumerate(drafts):
                if len(draft):
                    tokens[index, 1 : 1 + len(draft)] = draft.token_tensor(device)
        safe = tokens if known or vocab is None else tokens.clamp(0, vocab - 1)
        return cls(tuple(rows), tuple(drafts), shapes, safe, tokens, width, max(shape.depth for shape in shapes))

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    @property
    def candidates(self) -> Candidates:
        return _candidates(self.shapes, self.width, self.device)

    @property
    def tables(self) -> Tables:
        return _tables(self.shapes, self.width, self.depth, self.device)

    @property
    def reachable(self) -> Tensor:
        """`[rows, width]` bool: nodes to which the text may come, the anchor among them; not scratch and padding."""
        judged = self.tables.judged.clone()
        judged[:, 0] = True
        return judged

    def ends(self) -> Tensor | None:
        """`[rows, width]` bool, or None where no row has an eos token."""
        return self._ends

    @cached_property
    def _ends(self) -> Tensor | None:
        eos = sorted({token for row in self.rows for token in row.eos})
        if not eos or self.width == 1:
            return None
        same = all(row.eos == self.rows[0].eos for row in self.rows)
        if same:
            return torch.isin(self.tokens, _tensor(tuple(eos), self.device))
        each = [_tensor(tuple(sorted(row.eos)), self.device) for row in self.rows]
        return torch.stack([torch.isin(self.tokens[index], stop) for index, stop in enumerate(each)])

    def q(self, node: Tensor, vocab: int) -> Tensor:
        """`[rows, vocab]` float64: the law from which the sampled children of `node` `[rows]` were drawn.

        Rows without sampled children give zeros, which no verifier looks at.
        """
        laws = []
        for index, draft in enumerate(self.drafts):
            if draft.q is None:
                laws.append(torch.zeros(vocab, dtype=torch.float64, device=self.device))
            else:
                row = node[index].clamp(max=draft.q.shape[0] - 1)
                laws.append(draft.q.index_select(0, row[None])[0].double())
        return torch.stack(laws)

    def q_at(self, places: Sequence[tuple[int, int]], vocab: int) -> Tensor:
        """`[places, vocab]` float64: as `q`, at many nodes, given as rows and nodes on the host; a copy."""
        out = torch.empty(len(places), vocab, dtype=torch.float64, device=self.device)
        for index in dict.fromkeys(row for row, _ in places):
            where = [at for at, (row, _) in enumerate(places) if row == index]
            if (held := self.drafts[index].q) is None:
                out[host.send(where, self.device)] = 0.0
                continue
            nodes = [min(places[at][1], len(held) - 1) for at in where]
            law = held.index_select(0, host.send(nodes, self.device)).double()
            if len(where) == len(places):
                return law
            out[host.send(where, self.device)] = law
        return out

    def q_along_chains(self, vocab: int, last: Tensor) -> Tensor:
        """`[rows, width, vocab]` float64, for chains: the law that node j + 1 was drawn from, at j.

        One-hot for POINT candidates; zero at node `last` `[rows]` of each row and after it.
        """
        laws = []
        for index, draft in enumerate(self.drafts):
            count = self.shapes[index].judged  # the rest of a chain is scratch
            law = self.tokens.new_zeros(0, vocab).double() if draft.q is None else draft.q[:count].double()
            if len(law) < count:  # there are no rows behind the last sampled candidate
                law = torch.nn.functional.pad(law, (0, 0, 0, count - len(law)))
            if any(kind is Kind.POINT for kind in draft.kinds[:count]):
                points = host.send(
                    [node for node, kind in enumerate(draft.kinds[:count]) if kind is Kind.POINT], self.device
                )
                law = law.index_fill(0, points, 0.0)
                law[points, self.tokens[index, 1:].index_select(0, points)] = 1.0
            laws.append(torch.nn.functional.pad(law, (0, 0, 0, self.width - count)))
        q = torch.stack(laws) if len(laws) > 1 else laws[0][None]
        return q.masked_fill_((torch.arange(self.width, device=self.device) >= last[:, None])[..., None], 0.0)


@lru_cache(maxsize=256)
def _candidates(shapes: tuple[Topology, ...], width: int, device: torch.device) -> Candidates:
    most = max(1, max(shape.fanout for shape in shapes))
    # Lists, each sent in one piece: a tensor filled entry by entry takes a millisecond for a tree of 60 nodes.
    node = [[[0] * most for _ in range(width)] for _ in shapes]
    kind = [[[NONE] * most for _ in range(width)] for _ in shapes]
    for row, shape in enumerate(shapes):
        for parent, at_node in enumerate(shape.candidates):
            for order, candidate in enumerate(at_node):
                node[row][parent][order] = candidate.node
                kind[row][parent][order] = _CODE[candidate.kind]
    return Candidates(host.send(node, device), host.send(kind, device), most)


@lru_cache(maxsize=256)
def _tables(shapes: tuple[Topology, ...], width: int, deepest: int, device: torch.device) -> Tables:
    parent, depth, path, judged = [], [], [], []
    for shape in shapes:
        padding = width - 1 - len(shape.parents)
        parent.append([0, *(above + 1 for above in shape.parents), *[0] * padding])
        judged.append([False, *(node not in shape.scratch for node in range(len(shape.parents))), *[False] * padding])
        depth.append([*shape.depths, *[0] * padding])
        paths = [[*nodes, *[node] * (deepest - len(nodes))] for node, nodes in enumerate(shape.paths)]
        path.append([*paths, *[[0] * deepest] * padding])
    return Tables(
        host.send(parent, device), host.send(depth, device), host.send(path, device),
        host.send(judged, device, torch.bool), host.send([shape.judged for shape in shapes], device),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _tensor(values: tuple[int, ...], device: torch.device) -> Tensor:
    return host.send(values, device)
