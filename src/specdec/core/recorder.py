"""What a generation remembers for its caller: processed scores, raw logits, margins and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from specdec.core.sampling import Laws
from specdec.core.state import Round, Row
from specdec.core.stats import Stats, Tally


class Recorder:
    """Keeps, for each row, what was asked for; tensors stay on the device.

    scores, logits: processed scores and raw float32 logits of every emitted token, `[1, vocab]` each, as stopping
    criteria expect them.
    margins: top-2 margins, for greedy decoding.
    """

    def __init__(
        self, *, scores: bool = False, logits: bool = False, margins: bool = False, drift: float | None = None
    ) -> None:
        self.keep_scores, self.keep_logits, self.keep_margins = scores, logits, margins
        self.scores: dict[int, list[Tensor]] = {}
        self.logits: dict[int, list[Tensor]] = {}
        self._tally = Tally(drift=drift)

    def processed(self, index: int, nodes: Sequence[int], laws: Laws) -> list[Tensor]:
        """Processed scores `[vocab]` at `nodes` of this pass, as far as they are needed; before the row has grown."""
        if not (self.keep_scores or self.keep_margins):
            return []
        return [laws.processed_at(index, node) for node in nodes]

    def scores_of(self, row: Row, processed: Sequence[Tensor]) -> list[Tensor] | None:
        """All processed scores of `row` so far, those of this pass included; None if not kept."""
        if not self.keep_scores:
            return None
        kept = self.scores.setdefault(row.index, [])
        # Copies: a view would keep the logits of all nodes of its pass, also of the rejected ones.
        kept.extend(scores.float().clone()[None] for scores in processed)
        return kept

    def emitted(self, row: Row, index: int, nodes: Sequence[int], laws: Laws, processed: Sequence[Tensor]) -> None:
        """Note that `row` emitted one token from each of `nodes` of this pass, the first of those processed."""
        if self.keep_scores:
            del self.scores[row.index][len(row.new_tokens) :]  # what a stop cut away
        if self.keep_logits:
            self.logits.setdefault(row.index, []).extend(
                laws.logits[index, node].float().clone()[None] for node in nodes
            )
        if self.keep_margins and nodes:
            self._tally.add_margins(processed[: len(nodes)])

    def follow(self, ancestors: Mapping[int, int]) -> None:
        """Rows have gone on from the text of others, by index: what is kept of it is theirs now."""
        for kept in (self.scores, self.logits):
            taken = {row: list(kept[source]) for row, source in ancestors.items() if source in kept}
            kept.update(taken)

    def round(self, event: Round, told: Round) -> None:
        """Count a round. told: the same as its drafter sees it, whose own candidates are judged once."""
        self._tally.add(event, told)

    @property
    def stats(self) -> Stats:
        return self._tally.stats()
