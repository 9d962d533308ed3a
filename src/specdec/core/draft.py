"""What a drafter hands over: one immutable forest of guesses for one row, and how each guess was drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import torch
from torch import Tensor

from specdec.core import host

ANCHOR = -1
"""Parent of the first nodes: the last committed token of the row, whose logits judge them."""


class Kind(Enum):
    """How a node's token was chosen; a verifier may use the law `q` only where the kind promises it.

    `POINT` is the safe declaration for any content: the token was chosen without the verifier's randomness.
    `IID` and `NO_REPLACE` promise that siblings were drawn from `q`, independently or one after another without
    replacement, in the order in which they stand.
    """

    POINT = "point"
    IID = "iid"
    NO_REPLACE = "no-replace"

    @property
    def sampled(self) -> bool:
        """True for the kinds that were drawn from a law `q`."""
        return self is not Kind.POINT


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidacy: node `node` stands for election at its parent, drawn in the way `kind` says."""

    node: int
    kind: Kind


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """Everything that follows from `parents` alone: derived here and nowhere else.

    `topology` returns one object for equal forests, so identity is equality and hashing costs nothing.

    Nodes are numbered as in the scored pass: 0 is the anchor, `j + 1` is node `j` of the draft.
    """

    parents: tuple[int, ...]  # [nodes], as the draft gives them: ANCHOR or an earlier node
    depths: tuple[int, ...]  # [nodes + 1], the anchor has depth 0
    paths: tuple[tuple[int, ...], ...]  # [nodes + 1], root-to-node path without the anchor
    candidates: tuple[tuple[Candidate, ...], ...]  # [nodes + 1], candidacies at each node in judging order
    scratch: frozenset[int]  # scored nodes that are never judged
    is_chain: bool
    judged_depth: int  # of the deepest node that may be accepted

    @property
    def depth(self) -> int:
        """Of the deepest node, scratch included."""
        return max(self.depths)

    @property
    def judged(self) -> int:
        """Number of nodes that a verifier may accept."""
        return len(self.parents) - len(self.scratch)

    @property
    def fanout(self) -> int:
        """The largest number of candidacies at one node."""
        return max(len(at_node) for at_node in self.candidates)


@lru_cache(maxsize=4096)
def topology(
    parents: tuple[int, ...],
    kinds: tuple[Kind, ...],
    scratch: frozenset[int] = frozenset(),
    repeats: tuple[Candidate, ...] = (),
) -> Topology:
    """Derive depths, paths and candidacies; raises ValueError where `parents` is no forest in topological order.

    `repeats` are further candidacies of nodes that several draws proposed. Sampled candidacies are judged before
    POINT ones, each group in draw order: the order that loses no acceptance (Hu et al., arXiv 2502.18779).
    """
    count = len(parents)
    if len(kinds) != count:
        raise ValueError(f"{count} parents but {len(kinds)} kinds: every node needs one of each")
    depths, paths = [0], [()]  # type: list[int], list[tuple[int, ...]]
    at_node: list[list[Candidate]] = [[] for _ in range(count + 1)]
    for node, parent in enumerate(parents):
        if not ANCHOR <= parent < node:
            raise ValueError(
                f"node {node} has parent {parent}: parents come before their children, and the first nodes "
                f"have parent {ANCHOR} (the anchor)"
            )
        if parent in scratch and node not in scratch:
            raise ValueError(f"node {node} is judged but hangs under scratch node {parent}")
        depths.append(depths[parent + 1] + 1)
        paths.append((*paths[parent + 1], node + 1))
        if node not in scratch:
            at_node[parent + 1].append(Candidate(node + 1, kinds[node]))
    for extra in repeats:
        if not 0 <= extra.node < count or extra.node in scratch:
            raise ValueError(f"repeated candidacy of node {extra.node}: no judged node has that number")
        at_node[parents[extra.node] + 1].append(Candidate(extra.node + 1, extra.kind))
    if bad := [node for node in scratch if not 0 <= node < count]:
        raise ValueError(f"scratch names nodes {bad}, but the draft has nodes 0 to {count - 1}")
    return Topology(
        parents=parents,
        depths=tuple(depths),
        paths=tuple(paths),
        candidates=tuple(tuple(sorted(c, key=lambda c: not c.kind.sampled)) for c in at_node),
        scratch=scratch,
        is_chain=parents == tuple(range(-1, count - 1)),
        judged_depth=max((depths[node + 1] for node in range(count) if node not in scratch), default=0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """One row's guesses: an immutable forest under the anchor. Use `Draft.point` and `Draft.sampled` to build one.

    tokens: `[nodes]`, ids on the host (a tuple) or still on the device (an int64 tensor).
    parents: `[nodes]`, host data; `ANCHOR` or the index of an earlier node. `None` means a chain.
    kinds: `[nodes]`, how each token was drawn.
    q: `[up to nodes + 1, vocab]`, probabilities; row `j + 1` is the law of the sampled children of node `j`, row 0
        that of the anchor's. The law stands on the parent because that is what it conditions on.
    scratch: nodes scored in the same pass and never judged; closed downward.
    repeats: further candidacies of a node that was proposed more than once.
    """

    tokens: tuple[int, ...] | Tensor
    parents: tuple[int, ...]
    kinds: tuple[Kind, ...]
    q: Tensor | None = None
    scratch: frozenset[int] = frozenset()
    repeats: tuple[Candidate, ...] = ()

    @classmethod
    def empty(cls) -> Draft:
        """No guess: the round is one plain decoding step."""
        return _EMPTY

    @classmethod
    def point(
        cls,
        tokens: Sequence[int] | Tensor,
        parents: Iterable[int] | None = None,
        *,
        scratch: Iterable[int] = (),
    ) -> Draft:
        """Guesses chosen without the verifier's randomness: exact with any content."""
        return cls._build(tokens, parents, Kind.POINT, None, scratch)

    @classmethod
    def sampled(
        cls,
        tokens: Sequence[int] | Tensor,
        q: Tensor,
        parents: Iterable[int] | None = None,
        *,
        replace: bool = True,
        scratch: Iterable[int] = (),
    ) -> Draft:
        """Guesses drawn from `q`, which must be the very law they were drawn from, in dtype and processing."""
        return cls._build(tokens, parents, Kind.IID if replace else Kind.NO_REPLACE, q, scratch)

    @classmethod
    def _build(
        cls,
        tokens: Sequence[int] | Tensor,
        parents: Iterable[int] | None,
        kind: Kind,
        q: Tensor | None,
        scratch: Iterable[int],
    ) -> Draft:
        count = len(tokens)
        return cls(
            tokens=tokens if isinstance(tokens, Tensor) else tuple(tokens),
            parents=_chain(count) if parents is None else tuple(parents),
            kinds=(kind,) * count,
            q=q,
            scratch=frozenset(scratch),
        )

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def topology(self) -> Topology:
        return topology(self.parents, self.kinds, self.scratch, self.repeats)

    def token_tensor(self, device: torch.device) -> Tensor:
        """`[nodes]` int64 on `device`."""
        if isinstance(self.tokens, Tensor):
            return self.tokens.to(device)
        return host.send(self.tokens, device)


@lru_cache(maxsize=512)
def _chain(count: int) -> tuple[int, ...]:
    return tuple(range(-1, count - 1))


_EMPTY = Draft((), (), ())
