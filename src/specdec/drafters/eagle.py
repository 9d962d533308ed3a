"""EAGLE: a head that runs along the target's features guesses a chain."""

from __future__ import annotations

import os

from specdec.drafters.eagle_config import EagleConfig
from specdec.drafters.head_drafter import HeadDrafter
from specdec.heads.eagle import EagleHead


class Eagle(HeadDrafter):
    """Drafts chains drawn from an EAGLE head at temperature > 0, and its most likely chain for a greedy target.

    head: the trained head, or the folder or hub id that holds it. depth: longest chain. revision: branch, tag or commit
    of a hub id.
    Source: Li et al., arXiv 2401.15077.
    """

    name = "eagle"
    kind = "eagle"
    config_class = EagleConfig

    def __init__(
        self,
        head: EagleHead | str | os.PathLike[str],
        *,
        depth: int = 6,
        revision: str | None = None,
        config: EagleConfig | None = None,
    ) -> None:
        super().__init__(head, config=config, depth=depth, revision=revision)


def example(vocab_size: int) -> Eagle:
    """A drafter for checks: a head that was never trained, for the tiny target."""
    from specdec.drafters.head_example import fresh

    return Eagle(fresh(EagleHead, vocab_size), depth=4)
