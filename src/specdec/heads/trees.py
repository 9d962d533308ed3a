"""Static trees: rank paths in the order of their worth, the published ones, and the best one for measured heads."""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path as FilePath
from types import MappingProxyType

from specdec.core.errors import CheckpointError, ConfigError

__all__ = ["PUBLISHED", "StaticTree", "cartesian", "read_tree", "search", "search_ranks"]

Path = tuple[int, ...]
"""One node: the rank that its ancestors' and its own token have among the guesses of their depth, root first."""


@dataclass(frozen=True)
class StaticTree:
    """A prefix-closed set of rank paths, the worthiest first and every path behind its own prefixes.

    values: the chance that a node is accepted, where it was measured; then `paths` stands in descending order of it.

    Raises ValueError, naming the path, where a prefix is missing, a path is given twice or a value grows with depth.
    """

    paths: tuple[Path, ...]
    values: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        paths = [tuple(path) for path in self.paths]
        if not paths:
            raise ValueError("a tree needs at least one path of ranks, found none")
        known = set(paths)
        for path in paths:
            if not path or any(type(rank) is not int or rank < 0 for rank in path):
                raise ValueError(f"path {list(path)}: expected one or more ranks, counted from 0")
            if len(path) > 1 and path[:-1] not in known:
                raise ValueError(f"path {list(path)} has no parent: {list(path[:-1])} is not in the tree")
        if len(known) < len(paths):
            twice = next(path for place, path in enumerate(paths) if path in paths[:place])
            raise ValueError(f"path {list(twice)} is in the tree twice")
        if self.values is None:
            object.__setattr__(self, "paths", tuple(_parents_first(paths)))
            return
        if len(self.values) != len(paths):
            raise ValueError(f"{len(paths)} paths but {len(self.values)} values: every path needs one of each")
        worth = dict(zip(paths, map(float, self.values), strict=True))
        for path, value in worth.items():
            if not 0.0 <= value <= worth.get(path[:-1], 1.0):
                raise ValueError(f"path {list(path)} has value {value}; expected 0 to that of its parent")
        paths.sort(key=lambda path: (-worth[path], len(path), path))
        object.__setattr__(self, "paths", tuple(paths))
        object.__setattr__(self, "values", tuple(worth[path] for path in paths))

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def depth(self) -> int:
        return max(map(len, self.paths))

    @property
    def ranks(self) -> int:
        """How many guesses a depth are looked at: one more than the largest rank."""
        return 1 + max(path[-1] for path in self.paths)

    @property
    def is_chain(self) -> bool:
        return len(self.paths) == self.depth

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """For each path the index of its parent, -1 under the anchor."""
        index = {path: place for place, path in enumerate(self.paths)}
        return tuple(index[path[:-1]] if len(path) > 1 else -1 for path in self.paths)

    def cut(self, depth: int, nodes: int, ranks: int | None = None) -> StaticTree | None:
        """The worthiest `nodes` paths that are no deeper than `depth` and whose ranks are below `ranks`, or None."""
        kept = [
            place
            for place, path in enumerate(self.paths)
            if len(path) <= depth and (ranks is None or max(path) < ranks)
        ][: max(0, nodes)]
        if len(kept) == len(self.paths):
            return self
        if not kept:
            return None
        values = None if self.values is None else tuple(self.values[place] for place in kept)
        return StaticTree(tuple(self.paths[place] for place in kept), values)

    def to_json(self) -> str:
        """The text that `read_tree` reads."""
        lines = ",\n".join(f"    {json.dumps(list(path))}" for path in self.paths)
        values = "" if self.values is None else f',\n  "values": {json.dumps([round(v, 6) for v in self.values])}'
        return f'{{\n  "paths": [\n{lines}\n  ]{values}\n}}\n'

    def save(self, file: str | os.PathLike[str]) -> None:
        FilePath(file).write_text(self.to_json(), encoding="utf-8")


def _parents_first(paths: Iterable[Path]) -> list[Path]:
    """The paths in their order, each put off until its parent stands before it."""
    done: dict[Path, None] = {}
    waiting: dict[Path, list[Path]] = {}

    def put(path: Path) -> None:
        done[path] = None
        for child in waiting.pop(path, ()):
            put(child)

    for path in paths:
        if len(path) == 1 or path[:-1] in done:
            put(path)
        else:
            waiting.setdefault(path[:-1], []).append(path)
    return list(done)


def read_tree(file: str | os.PathLike[str]) -> StaticTree:
    """The tree in a JSON file: a list of paths, or a mapping with `paths` and perhaps `values`.

    Raises ConfigError where there is no such file, CheckpointError where it holds no tree.
    """
    path = FilePath(file)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no tree {os.fspath(file)!r}; expected {', '.join(PUBLISHED)} or a JSON file of rank paths"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if isinstance(data, list):
        data = {"paths": data}
    try:
        if not isinstance(data, Mapping) or not set(data) <= {"paths", "values"}:
            raise ValueError("expected a list of paths, or a mapping with 'paths' and perhaps 'values'")
        values = data.get("values")
        return StaticTree(
            tuple(tuple(path) for path in data["paths"]), None if values is None else tuple(map(float, values))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds no tree: {error}") from error


def cartesian(widths: Sequence[int]) -> StaticTree:
    """The full tree with the first `widths[d]` guesses at depth d + 1, level by level."""
    levels = (product(*map(range, widths[: depth + 1])) for depth in range(len(widths)))
    return StaticTree(tuple(path for level in levels for path in level))


def search(accuracies: Sequence[Sequence[float]], nodes: int) -> StaticTree:
    """The tree of at most `nodes` nodes that keeps the most tokens, if heads are right independently of each other.

    accuracies: `[heads][ranks]`, the chance that the guess of that rank is right. A node's value is the product along
    its path, which never grows with depth, so adding the largest one again and again gives the best tree of every
    size; ties go to the shallower node. Nodes of value 0 are left out, all but the first.
    Source: Cai et al., arXiv 2401.10774, section 2.3.3.
    """
    for head, row in enumerate(accuracies):
        if not len(row) or any(not 0.0 <= chance <= 1.0 for chance in row) or sum(row) > 1.0 + 1e-6:
            raise ValueError(f"accuracies of head {head}: expected chances that add up to at most 1, found {list(row)}")
    if not len(accuracies) or nodes < 1:
        raise ValueError(f"expected at least one head and one node, found {len(accuracies)} heads and {nodes} nodes")
    heap: list[tuple[float, int, Path]] = [(-chance, 1, (rank,)) for rank, chance in enumerate(accuracies[0])]
    heapq.heapify(heap)
    found: dict[Path, float] = {}
    while heap and len(found) < nodes:
        value, depth, path = heapq.heappop(heap)
        if value == 0.0 and found:
            break
        found[path] = -value
        if depth < len(accuracies):
            for rank, chance in enumerate(accuracies[depth]):
                heapq.heappush(heap, (value * chance, depth + 1, (*path, rank)))
    return StaticTree(tuple(found), tuple(found.values()))


def search_ranks(ranks: Sequence[Sequence[int]], nodes: int) -> StaticTree:
    """The tree of at most `nodes` nodes that keeps the most tokens on measured positions.

    ranks: `[positions][heads]`, the rank of the right token among each head's guesses, negative where it is not among
    them. A node's value is the share of positions at which its whole path is right, so that heads may depend on each
    other; the chance that it is accepted is that share.
    """
    if not len(ranks) or nodes < 1:
        raise ValueError(f"expected at least one position and one node, found {len(ranks)} and {nodes}")
    counts: dict[Path, int] = {}
    for position in ranks:
        path: Path = ()
        for rank in position:
            if rank < 0:
                break
            path = (*path, int(rank))
            counts[path] = counts.get(path, 0) + 1
    best = sorted(counts, key=lambda path: (-counts[path], len(path), path))[:nodes] or [(0,)]
    return StaticTree(tuple(best), tuple(counts.get(path, 0) / len(ranks) for path in best))


def _digits(text: str) -> StaticTree:
    return StaticTree(tuple(tuple(map(int, path)) for path in text.split()))


PUBLISHED: Mapping[str, StaticTree] = MappingProxyType({
    # Medusa, 63 nodes over four heads, searched for a 7B model: the choice for any model without a tree of its own.
    "mc_sim_7b_63": _digits(
        "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 "
        "0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
    ),
    # EAGLE-1, 25 nodes, five deep.
    "eagle1_25": _digits(
        "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
    ),
})  # fmt: skip
"""Trees that were published with their method, by name; a path's digits are its ranks."""
