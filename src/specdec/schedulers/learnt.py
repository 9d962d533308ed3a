"""Learnt: what the calls of one scheduler leave to those after them."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec.core.acceptance import Acceptance
from specdec.schedulers.cost import RoundCost
from specdec.schedulers.sizes import TreeSizes

_MOST_SAVED = 4.0
_SHARE = 0.5  # of the weight that acceptance had at the end of a call
_ROUNDS = 6.0  # that the worth of trees weighs at the beginning of one


@dataclass(slots=True)
class Learnt:
    """Costs of rounds, what drafts were worth, and what they have saved. Sessions take copies and write whole values.

    costs: by live rows. saved: plain rounds that the drafts of earlier calls have saved and those of later ones may
    lose again in trying, at most four.
    """

    costs: dict[int, RoundCost] = field(default_factory=dict)
    saved: float = 0.0
    _acceptance: Acceptance | None = None
    _sizes: TreeSizes | None = None

    def acceptance(self) -> Acceptance:
        """A copy of what was learnt that soon gives way to what a call finds."""
        return Acceptance() if self._acceptance is None else self._acceptance.faded(_SHARE)

    def sizes(self, most: int, widths: tuple[int, ...]) -> TreeSizes:
        """The like of trees, if they were of the same limits."""
        new = TreeSizes(most, widths)
        return new if self._sizes is None or self._sizes.limits != new.limits else self._sizes.faded(_ROUNDS)

    def keep(self, acceptance: Acceptance, sizes: TreeSizes, saved: float) -> None:
        """What a call has learnt so far."""
        self._acceptance, self._sizes = acceptance, sizes
        self.saved = min(_MOST_SAVED, max(0.0, saved))
