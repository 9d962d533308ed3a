"""Random tables for Hypothesis: integer weights, so zeros, disjoint supports and certainties all occur."""

from __future__ import annotations

from hypothesis import strategies as st


def weights(vocab: int) -> st.SearchStrategy[tuple[int, ...]]:
    spread = st.tuples(*[st.integers(0, 7)] * vocab).filter(any)
    one_hot = st.integers(0, vocab - 1).map(lambda hot: tuple(int(i == hot) for i in range(vocab)))
    lopsided = st.integers(0, vocab - 1).map(lambda big: tuple(10**6 if i == big else 1 for i in range(vocab)))
    return st.one_of(spread, spread, one_hot, lopsided)


class RandomTable:
    """A law for every prefix: the entry of a list that a fixed hash of the prefix picks."""

    def __init__(self, entries: tuple[tuple[int, ...], ...]) -> None:
        self.entries = entries

    def __call__(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        mixed = 17
        for token in prefix:
            mixed = (mixed * 31 + token + 1) % 10007
        return self.entries[mixed % len(self.entries)]

    def __repr__(self) -> str:
        return f"RandomTable({self.entries})"


def tables(vocab: int, size: int = 5) -> st.SearchStrategy[RandomTable]:
    return st.tuples(*[weights(vocab)] * size).map(RandomTable)


@st.composite
def pairs(draw: st.DrawFn, vocab: int) -> tuple[RandomTable, RandomTable]:
    """p and q: unrelated, equal, or with disjoint supports."""
    p = draw(tables(vocab))
    relation = draw(st.sampled_from(["unrelated", "unrelated", "equal", "disjoint"]))
    if relation == "equal":
        return p, p
    q = draw(tables(vocab))
    if relation == "disjoint":
        even = tuple(int(token % 2 == 0) for token in range(vocab))
        odd = tuple(int(token % 2 == 1) for token in range(vocab))

        def cut(table: RandomTable, side: tuple[int, ...]) -> RandomTable:
            return RandomTable(tuple(tuple((w or 1) * s for w, s in zip(e, side, strict=True)) for e in table.entries))

        return cut(p, even), cut(q, odd)
    return p, q
