"""The n-gram pool of one row: what has followed each token, the latest last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from specdec.core.draft import ANCHOR

__all__ = ["NGramPool", "trie"]


class NGramPool:
    """Maps a token to at most `size` different continuations of `length` tokens; the least recently added go first."""

    def __init__(self, length: int, size: int) -> None:
        self._length, self._size = length, size
        self._entries: dict[int, OrderedDict[tuple[int, ...], None]] = {}
        self._read = 0  # tokens of the text whose n-grams are in the pool

    def add(self, key: int, continuation: Sequence[int]) -> None:
        """Note that `continuation`, of the pool's length, follows `key`."""
        held = self._entries.pop(key, None) or OrderedDict()
        self._entries[key] = held  # last
        entry = tuple(continuation)
        held[entry] = None
        held.move_to_end(entry)
        if len(held) > self._size:
            held.popitem(last=False)

    def read(self, text: Sequence[int], start: int = 0) -> None:
        """Add the n-grams of `text` that are complete by now and have not been read, the first beginning at `start`."""
        complete = len(text) - self._length
        for place in range(max(start, self._read), complete):
            self.add(text[place], text[place + 1 : place + 1 + self._length])
        self._read = max(self._read, complete)

    def get(self, key: int) -> list[tuple[int, ...]]:
        """Continuations of `key`, the latest first."""
        return list(reversed(self._entries.get(key, ())))

    def entries(self) -> list[tuple[int, tuple[int, ...]]]:
        """Every key with each of its continuations, the key added to last first."""
        return [(key, entry) for key, held in reversed(self._entries.items()) for entry in reversed(held)]

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))


def trie(chains: Sequence[Sequence[int]], depth: int, nodes: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of the forest of `chains` cut to `depth`, shared prefixes once; at most `nodes` nodes.

    Chains come one after another, so the nodes of the first are numbered as a chain.
    """
    tokens: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    for chain in chains:
        parent = ANCHOR
        for token in chain[:depth]:
            node = children.get((parent, token))
            if node is None:
                if len(tokens) >= nodes:
                    break
                node = children[parent, token] = len(tokens)
                tokens.append(token)
                parents.append(parent)
            parent = node
    return tokens, parents
