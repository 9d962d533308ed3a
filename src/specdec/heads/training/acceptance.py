"""What drafts of a head would be worth, counted on held-out text without decoding it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Acceptance"]

Spans = Sequence[tuple[int, int]]


@dataclass
class Acceptance:
    """Counts of drafts along the target's own answers: chains of up to `depth` tokens.

    drafts[k]: drafts that were right for k tokens and had another one to guess; right[k]: those that guessed it.
    A draft is begun under every token of an answer. Rounds are walked as a decoder walks them: each emits what was
    right and one token more.
    """

    depth: int
    drafts: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    emitted: int = 0
    passes: int = 0

    def __post_init__(self) -> None:
        self.drafts = self.drafts or [0] * self.depth
        self.right = self.right or [0] * self.depth

    def add(self, hits: Tensor, spans: Iterable[Spans]) -> None:
        """Count a batch. hits: as of `Objective.hits`; spans: of each row, where its answers lie."""
        for row, answers in enumerate(spans):
            columns = hits[:, row].tolist()  # [depth][n]
            for start, end in answers:
                runs = {place: self._run(columns, place, end) for place in range(start, end - 1)}
                place = start  # the first token of an answer comes from the pass over the prompt
                while place < end - 1:
                    step = min(runs[place] + 1, end - 1 - place)
                    self.emitted, self.passes, place = self.emitted + step, self.passes + 1, place + step

    def _run(self, columns: list[list[bool]], place: int, end: int) -> int:
        for step in range(min(self.depth, end - 1 - place)):
            self.drafts[step] += 1
            if not columns[step][place]:
                return step
            self.right[step] += 1
        return min(self.depth, end - 1 - place)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens emitted a pass of the target, the passes over prompts left out."""
        return self.emitted / max(1, self.passes)

    def figures(self) -> dict[str, float]:
        """`tokens_per_pass`; `agree_k`: k-th tokens that are right where all before were; `reach_k`: of all."""
        found = {"tokens_per_pass": round(self.tokens_per_pass, 3)}
        for step in range(self.depth):
            found[f"agree_{step + 1}"] = round(self.right[step] / max(1, self.drafts[step]), 4)
        for step in range(1, self.depth):
            found[f"reach_{step + 1}"] = round(self.right[step] / max(1, self.drafts[0]), 4)
        return found
