"""EAGLE-2: an EAGLE head grows a tree, round by round where it is confident."""

from __future__ import annotations

import os

from specdec.drafters.eagle2_config import Eagle2Config
from specdec.drafters.head_drafter import HeadDrafter
from specdec.heads.eagle import EagleHead


class Eagle2(HeadDrafter):
    """Drafts dynamic trees of an EAGLE head's likeliest tokens, as POINT candidates.

    head: the trained head, or the folder or hub id that holds it. depth, nodes: limits of a tree. top_k: nodes that
    are expanded at each depth, and children of each. A node's value is the product of the head's confidences on its
    path; the worthiest frontier is expanded, the worthiest nodes are kept, and of those what its costs justify.
    sampled: for a target that samples, draw trees without replacement from the head's law, for `traversal` to judge,
        instead of taking the likeliest tokens. Their shape follows from what siblings have been worth.
    revision: branch, tag or commit of a hub id.
    Source: Li et al., arXiv 2406.16858.
    """

    name = "eagle2"
    kind = "eagle"
    config_class = Eagle2Config

    def __init__(
        self,
        head: EagleHead | str | os.PathLike[str],
        *,
        depth: int = 6,
        top_k: int = 8,
        nodes: int = 60,
        sampled: bool = False,
        revision: str | None = None,
        config: Eagle2Config | None = None,
    ) -> None:
        options = {"depth": depth, "top_k": top_k, "nodes": nodes, "sampled": sampled, "revision": revision}
        super().__init__(head, config=config, **options)

    @property
    def top_k(self) -> int:
        return self._config.top_k  # type: ignore[attr-defined,no-any-return]

    @property
    def nodes(self) -> int:
        return self._config.nodes  # type: ignore[attr-defined,no-any-return]

    @property
    def sampled(self) -> bool:
        return super().sampled or self._config.sampled  # type: ignore[attr-defined,no-any-return]


def example(vocab_size: int) -> Eagle2:
    """A drafter for checks: a head that was never trained, for the tiny target."""
    from specdec.drafters.head_example import fresh

    return Eagle2(fresh(EagleHead, vocab_size), depth=4, top_k=3, nodes=12)
