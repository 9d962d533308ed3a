"""The modes of `Decoder(exactness=...)`: how far identity with plain decoding goes in floating point."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdec.core.draft import Kind
from specdec.core.errors import UnsupportedOptionError
from specdec.core.interfaces import Drafter, Target, Verifier
from specdec.core.provisional import Provisional
from specdec.core.standing import Standing
from specdec.targets.hf import HFTarget
from specdec.targets.request import Request

_WIDTH = 16  # nodes of a pass where none are named: most of what memory-bound passes give for nothing


@dataclass(frozen=True, slots=True)
class Mode:
    """One exactness mode.

    algorithmic: exact for the logits that the verification passes returned. fixed-width: bit for bit what the same
    engine says without drafts, in passes of `width` nodes.
    """

    name: str
    width: int | None = None

    @classmethod
    def parse(cls, text: str) -> Mode:
        """The mode of "algorithmic", "fixed-width" or, say, "fixed-width:8"; else UnsupportedOptionError."""
        if text == "algorithmic":
            return cls(text)
        if isinstance(text, str) and (found := re.fullmatch(r"fixed-width(?::([1-9]\d*))?", text)):
            return cls("fixed-width", int(found[1] or _WIDTH))
        expected = (
            f"expected 'algorithmic', 'fixed-width' ({_WIDTH} nodes a pass) or, for passes of 8 nodes, 'fixed-width:8'"
        )
        if text == "reverify":
            # docs/decisions.md says what was measured.
            expected = f"it would decide no better, as one-token passes read keys that wide ones wrote; {expected}"
        raise UnsupportedOptionError(f"exactness={text!r}: {expected}")

    @property
    def label(self) -> str:
        """The shortest text that `parse` turns into this mode."""
        return self.name if self.width in (None, _WIDTH) else f"{self.name}:{self.width}"

    def problems(self, target: Target, drafter: Drafter) -> list[str]:
        """Every reason why this mode cannot hold for these parts."""
        found: list[str] = []
        if self.name == "algorithmic":
            return found
        if Kind.POINT not in drafter.emits:
            found.append(self._sampled(drafter))
        if not isinstance(target, HFTarget):
            found.append(f"exactness '{self.name}' is about passes of a transformers model; the target is no such")
        elif not target.lm.spec.takes_mask:
            found.append(
                "exactness 'fixed-width' masks each pass itself; the target's attention implementation takes no mask"
            )
        return found

    def problems_of_call(self, request: Request, drafter: Drafter, verifier: Verifier) -> list[str]:
        """Every reason why this mode cannot hold for one call."""
        found: list[str] = []
        if self.name == "algorithmic":
            return found
        if not request.greedy and drafter.emits != frozenset({Kind.POINT}):
            found.append(self._sampled(drafter))
        elif not verifier.draws_by_position:
            found.append(
                f"exactness '{self.name}' needs a verifier that decides a token by its position's law and noise alone, "
                f"such as walk or greedy; verifier '{verifier.name}' does not"
            )
        if request.past is not None and len(request.rows) > 1:
            found.append(f"exactness '{self.name}' cannot draw several samples on a cache that was passed in")
        return found

    def standing(self) -> Standing:
        """What decides, in one generation, which decisions stand."""
        return Standing() if self.width is None else Provisional(self.width)

    def _sampled(self, drafter: Drafter) -> str:
        kinds = ", ".join(sorted(kind.name for kind in drafter.emits - {Kind.POINT}))
        return (
            f"exactness '{self.name}' needs POINT candidates, whose text follows from the target alone; drafter "
            f"'{drafter.name}' emits {kinds} candidates, whose fate is drawn round by round"
        )
