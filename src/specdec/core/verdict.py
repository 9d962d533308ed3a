"""What a verifier decides: where each row's accepted path ends, and the target's own token after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.core import host


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """The verdict on one row: `leaf` ends the accepted path (0 is the anchor, `j + 1` is node `j`)."""

    leaf: int
    next_token: int


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The verdict on all rows of a round, on the device: nothing here has been read by the host.

    leaf: `[rows]` int64, last accepted node in the numbering of the pass (0 = anchor, nothing accepted).
    next_token: `[rows]` int64, the target's own token after the accepted path (the bonus or correction token).
    log_weights: `[rows, depth + 1]` float64, or None: what each token that the row emits adds to its log weight,
        where rows are particles (see `Verifier.gather`).
    """

    leaf: Tensor
    next_token: Tensor
    log_weights: Tensor | None = None

    @classmethod
    def of_rows(cls, rows: Sequence[RowVerdict], device: torch.device) -> Verdict:
        """Pack verdicts given row by row, as `Verifier.judge` returns them."""
        return cls(
            leaf=host.send([row.leaf for row in rows], device),
            next_token=host.send([row.next_token for row in rows], device),
        )
