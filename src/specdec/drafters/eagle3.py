"""EAGLE-3: a head over states of several layers of the target grows a tree, or a chain."""

from __future__ import annotations

import os
from typing import Literal

from specdec.drafters.eagle3_config import Eagle3Config
from specdec.drafters.head_drafter import HeadDrafter
from specdec.heads.eagle3 import Eagle3Head


class Eagle3(HeadDrafter):
    """Drafts with an EAGLE-3 head: trees as `eagle2` does, or chains as `eagle` does.

    head: the trained head, or the folder or hub id that holds it. shape: "tree" or "chain". depth, nodes: limits of a
    draft. top_k: nodes that are expanded at each depth of a tree, and children of each.
    sampled: for a target that samples, draw trees without replacement from the head's law, for `traversal` to judge,
        instead of taking the likeliest tokens. Their shape follows from what siblings have been worth.
    revision: branch, tag or commit of a hub id.
    Source: Li et al., arXiv 2503.01840.
    """

    name = "eagle3"
    kind = "eagle3"
    config_class = Eagle3Config

    def __init__(
        self,
        head: Eagle3Head | str | os.PathLike[str],
        *,
        shape: Literal["tree", "chain"] = "tree",
        depth: int = 6,
        top_k: int = 8,
        nodes: int = 60,
        sampled: bool = False,
        revision: str | None = None,
        config: Eagle3Config | None = None,
    ) -> None:
        options = {"depth": depth, "top_k": top_k, "nodes": nodes, "sampled": sampled, "revision": revision}
        super().__init__(head, config=config, shape=shape, **options)

    @property
    def top_k(self) -> int:
        chosen = self._config
        return chosen.top_k if chosen.shape == "tree" else 1  # type: ignore[attr-defined,no-any-return]

    @property
    def nodes(self) -> int:
        chosen = self._config
        return chosen.nodes if chosen.shape == "tree" else chosen.depth  # type: ignore[attr-defined,no-any-return]

    @property
    def sampled(self) -> bool:
        return super().sampled or self._config.sampled  # type: ignore[attr-defined,no-any-return]


def example(vocab_size: int) -> Eagle3:
    """A drafter for checks: a head that was never trained, for the tiny target."""
    from specdec.drafters.head_example import fresh

    head = fresh(Eagle3Head, vocab_size, taps=("layer:0", "layer:1", "layer:2"))
    return Eagle3(head, depth=4, top_k=3, nodes=12)
