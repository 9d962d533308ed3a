"""The two-dimensional window of lookahead decoding: Jacobi iterations over many positions at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from specdec.core.draft import ANCHOR

__all__ = ["Window"]

_UNKNOWN = -1


class Window:
    """One row's window of guesses: column i of window row k is for position t + i + k, t being the anchor's.

    Column 0 of window row 0 is the anchor itself. What the target says at a guess becomes, in the next pass, the guess
    below it, so a column is a Jacobi trajectory, one step a window row. A guess sees window row 0 up to its own column
    and its own column above it. What the target says at the last window row completes an n-gram in every column.

    width: columns, W. ngram: N; N - 1 window rows are run. While the window rows come into being, one a pass, there
    are as many columns more as passes are missing, because each pass leaves one behind.

    Source: Fu et al., arXiv 2402.02057, sections 3 and 4.
    """

    def __init__(self, width: int, ngram: int) -> None:
        self._width, self._height = width, ngram - 1
        self.rows: list[list[int]] = [[]]

    @property
    def columns(self) -> int:
        """Columns of the next pass, if there is room for all."""
        return self._width + self._height - len(self.rows)

    @property
    def depth(self) -> int:
        """How deep below the anchor the next pass reaches, if there is room for all columns."""
        return self.columns + len(self.rows) - 2

    def fitting(self, nodes: int, depth: int) -> int:
        """How many columns have room in so many nodes, none of them deeper than `depth` below the anchor."""
        height = len(self.rows)
        return max(0, min(self.columns, (nodes + 1) // height, depth - height + 2))

    def nodes(self, columns: int) -> int:
        """Nodes of a pass over so many columns; the anchor is none of them."""
        return columns * len(self.rows) - 1 if columns else 0

    def forest(
        self, anchor: int, columns: int, first: int, fill: Callable[[int], list[int]]
    ) -> tuple[list[int], list[int]]:
        """Tokens and parents of the first `columns` columns, as the nodes of a draft from node `first` on.

        `fill` gives so many tokens, for places that no pass has reached.
        """
        self.rows[0] = [anchor, *self.rows[0][1:]]
        self.rows = [_filled(row, self.columns, fill) for row in self.rows]
        if not columns:
            return [], []
        tokens = [token for at, row in enumerate(self.rows) for token in row[at == 0 : columns]]
        above = [ANCHOR, *range(first, first + columns - 1)]  # nodes of window row 0
        parents = above[:-1]
        for _ in self.rows[1:]:
            parents += above
            above = list(range(first + len(parents) - columns, first + len(parents)))
        return tokens, parents

    def ends(self, columns: int, first: int) -> list[int]:
        """Nodes of the pass (0 is the anchor) that stand last in their columns."""
        if len(self.rows) == 1:
            return [0, *range(first + 1, first + columns)][:columns]
        last = first + self.nodes(columns)
        return list(range(last + 1 - columns, last + 1))

    def step(self, said: Sequence[int], emitted: int, stops: Collection[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Take in a pass that emitted `emitted` tokens; returns its n-grams, each a token and what followed it.

        said: what the target says at the end of each column that was run; empty where none was. A token that ends the
        text, one of `stops`, is no guess: nothing follows it.
        """
        rows, found = self.rows, list[tuple[int, tuple[int, ...]]]()
        if columns := len(said):
            rows = [*(row[:columns] for row in rows), list(said)]
            if len(rows) > self._height:
                found = [(column[0], column[1:]) for column in zip(*rows, strict=True)]
                rows, emitted = rows[1:], emitted - 1  # each takes the place of the one above, a position earlier
        self.rows = [[_UNKNOWN if token in stops else token for token in row[emitted:]] for row in rows]
        return found


def _filled(row: list[int], count: int, fill: Callable[[int], list[int]]) -> list[int]:
    row = row[:count] + [_UNKNOWN] * (count - len(row))
    missing = [place for place, token in enumerate(row) if token == _UNKNOWN]
    for place, token in zip(missing, fill(len(missing)), strict=True):
        row[place] = token
    return row
