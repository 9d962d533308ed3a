"""The worthiest nodes of several drafts, in one tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specdec.core.draft import ANCHOR, Draft
from specdec.core.state import Budget
from specdec.drafters.growth import worthwhile

Kept = tuple[Draft, tuple[int, ...]]
"""What is kept of one draft, and the nodes of the pass that its nodes became."""

_Path = tuple[int, ...]


def worthiest(drafts: Sequence[Draft], chances: Sequence[Sequence[float]], budget: Budget) -> tuple[Draft, list[Kept]]:
    """One tree of the nodes that are likeliest to become text, as many as pay, and what is left of each draft.

    drafts: POINT, their tokens on the host. chances: of each node of each draft, that the text goes along its path; a
    path that several drafts hold has the largest of theirs, and none has more than its parent.
    """
    paths = [_paths(draft) for draft in drafts]
    said: dict[_Path, float] = {}
    for found, known in zip(paths, chances, strict=True):
        for path, chance in zip(found, known, strict=True):
            said[path] = max(said.get(path, 0.0), chance)
    worth: dict[_Path, float] = {(): 1.0}
    for path in sorted(said, key=len):
        worth[path] = min(said[path], worth[path[:-1]])
    order = sorted(said, key=lambda path: (-worth[path], len(path)))  # parents first
    values = [math.log(worth[path]) if worth[path] > 0 else -math.inf for path in order]
    kept = sorted(order[: worthwhile(values, budget, free=True)], key=len)  # breadth-first
    node = {(): 0} | {path: number for number, path in enumerate(kept, start=1)}
    joint = Draft.point([path[-1] for path in kept], [node[path[:-1]] - 1 for path in kept])
    return joint, [_cut(found, node) for found in paths]


def _paths(draft: Draft) -> list[_Path]:
    """Tokens from the anchor down to each node."""
    found: list[_Path] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent != ANCHOR else ()), int(token)))
    return found


def _cut(paths: Sequence[_Path], node: dict[_Path, int]) -> Kept:
    own = [path for path in dict.fromkeys(paths) if path in node]
    place = {(): ANCHOR} | {path: number for number, path in enumerate(own)}
    cut = Draft.point([path[-1] for path in own], [place[path[:-1]] for path in own]) if own else Draft.empty()
    return cut, tuple(node[path] for path in own)
