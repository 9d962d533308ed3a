"""Joining the drafts of several drafters for one row into one: shared prefixes are scored once, laws stay whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import ANCHOR, Candidate, Draft, Kind

Nodes = tuple[int, ...]
"""Nodes of the pass that the nodes of one drafter's draft became, in its order."""


def join(drafts: Sequence[Draft], tokens: Sequence[Sequence[int]], device: torch.device) -> tuple[Draft, list[Nodes]]:
    """One draft that holds the candidates of all, and where each draft's nodes are in the pass.

    tokens: the ids of each draft, on the host.

    A POINT candidate becomes the node that already holds its token under the same parent, if there is one: two
    candidacies of one node. Sampled candidates keep a node each, their order and their law. A node can carry one law
    q only: it is that of the first draft that drew candidates there, and what others drew there is declared POINT,
    which is exact with any content as long as drafters draw from streams of their own (sequential coupling; the
    POINT candidates stand behind the sampled ones and q need not know of them).
    """
    joint = _Joint()
    sampled_first = sorted(range(len(drafts)), key=lambda number: drafts[number].q is None)
    places = {number: joint.add(number, drafts[number], tokens[number]) for number in sampled_first}
    nodes = [tuple(at + 1 for at in places[number]) for number in range(len(drafts))]
    return joint.draft(drafts, nodes, device), nodes


class _Joint:
    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._kinds: list[Kind] = []
        self._scratch: list[int] = []
        self._repeats: list[Candidate] = []
        self._children: dict[tuple[int, int], int] = {}  # (parent, token) to the first judged node of that token
        self._point: set[int] = set()  # nodes with a POINT candidacy
        self._laws: dict[int, tuple[int, int]] = {}  # parent to the draft, and the row of its q, that rule there

    def add(self, number: int, draft: Draft, tokens: Sequence[int]) -> list[int]:
        """Take in one draft; returns the node that each of its nodes became."""
        repeated = {extra.node for extra in draft.repeats if extra.kind.sampled}
        places: list[int] = []
        demoted: set[int] = set()
        for node, (token, above, kind) in enumerate(zip(tokens, draft.parents, draft.kinds, strict=True)):
            parent = places[above] if above >= 0 else ANCHOR
            sampled = kind.sampled or node in repeated
            if node in draft.scratch:
                self._scratch.append(len(self._tokens))
                places.append(self._append(parent, token, kind))
            elif sampled and self._laws.setdefault(parent, (number, above + 1)) == (number, above + 1):
                places.append(self._append(parent, token, kind))
                self._children.setdefault((parent, token), places[-1])
            else:
                demoted.add(node)
                places.append(self._join(parent, token))
        for extra in draft.repeats:  # in their order, which is draw order
            at, kept = places[extra.node], extra.kind.sampled and extra.node not in demoted
            if kept:
                self._repeats.append(Candidate(at, extra.kind))
            else:
                self._stand(at)
        return places

    def draft(self, drafts: Sequence[Draft], nodes: Sequence[Nodes], device: torch.device) -> Draft:
        return Draft(
            tokens=tuple(self._tokens),
            parents=tuple(self._parents),
            kinds=tuple(self._kinds),
            q=self._q(drafts, nodes, device),
            scratch=frozenset(self._scratch),
            repeats=tuple(self._repeats),
        )

    def _append(self, parent: int, token: int, kind: Kind) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._kinds.append(kind)
        if kind is Kind.POINT:
            self._point.add(len(self._tokens) - 1)
        return len(self._tokens) - 1

    def _join(self, parent: int, token: int) -> int:
        """The node of a POINT candidate: one that is there already, or a new one."""
        at = self._children.get((parent, token))
        if at is None:
            at = self._children[parent, token] = self._append(parent, token, Kind.POINT)
        self._stand(at)
        return at

    def _stand(self, node: int) -> None:
        """Let `node` stand for election as a POINT candidate too."""
        if node not in self._point:
            self._point.add(node)
            self._repeats.append(Candidate(node, Kind.POINT))

    def _q(self, drafts: Sequence[Draft], nodes: Sequence[Nodes], device: torch.device) -> Tensor | None:
        """`[nodes, vocab]`: under each parent the law that rules there."""
        if not self._laws:
            return None
        involved = sorted({number for number, _ in self._laws.values()})
        laws = [drafts[number].q for number in involved]
        first = involved[0]
        if len(involved) == 1 and nodes[first] == tuple(range(1, len(nodes[first]) + 1)):
            return laws[0]  # its nodes have kept their numbers
        starts, start = {}, 0
        for number, law in zip(involved, laws, strict=True):
            assert law is not None
            starts[number], start = start, start + len(law)
        rows = [0] * (max(self._laws) + 2)
        for parent, (number, row) in self._laws.items():
            rows[parent + 1] = starts[number] + row
        every = torch.cat([law.to(device) for law in laws if law is not None])
        return every.index_select(0, host.send(rows, device))
