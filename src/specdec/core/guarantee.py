"""What can be said of a generation's output law, carried by its result."""

from __future__ import annotations

from dataclasses import dataclass

from specdec.core.contracts import Exactness


@dataclass(frozen=True, slots=True)
class Guarantee:
    """exactness: the law's relation to the target's. level: the mode. "algorithmic": exact for the logits that
    the verification passes returned; "fixed-width": bit for bit what the same passes say without drafts. notes: what
    qualifies it, in words.
    """

    exactness: Exactness
    level: str = "algorithmic"
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join((f"{self.exactness.label} ({self.level})", *self.notes))
