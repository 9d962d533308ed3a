"""`SuffixAutomaton`: every substring of a growing text, and how often each token followed it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class SuffixAutomaton:
    """The smallest automaton of all substrings of a text, built one token after another.

    A state is a set of substrings that end at the same places of the text; `length` is that of its longest one,
    `link` leads to the state of the longest shorter substring that ends at more places. State 0 is the empty
    string. `append` takes amortised constant time; a text of n tokens has at most 2 n states and 3 n transitions.

    Each transition counts how often its token followed. One append adds to the counts of every context that had
    not been followed by that token, and to the `reach` longest of those that had, so that a text of one repeated
    token, where every suffix is a context, costs constant time too. With `reach` of the text's length counts are
    exact.
    """

    def __init__(self, reach: int = 32) -> None:
        self._reach = reach
        self._next: list[dict[int, list[int]]] = [{}]  # token to [state, count]
        self._link = [-1]
        self._length = [0]
        self._total = [0]  # sum of the counts of a state's transitions
        self._best = [-1]  # the token that followed most often, of equals the latest; of no meaning where there is none
        self._last = 0
        self._tokens = 0

    def __len__(self) -> int:
        """Number of tokens appended."""
        return self._tokens

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self._link)

    def append(self, token: int) -> None:
        """Add one token at the end of the text."""
        new = self._state(self._length[self._last] + 1)
        at = self._last
        while at >= 0 and token not in self._next[at]:
            self._next[at][token] = [new, 1]
            self._note(at, token, 1)
            at = self._link[at]
        if at < 0:
            self._link[new] = 0
        else:
            known = self._next[at][token][0]
            if self._length[at] + 1 == self._length[known]:
                self._link[new] = known
            else:
                self._link[new] = self._split(known, at, token)
            for _ in range(self._reach):
                if at < 0:
                    break
                edge = self._next[at][token]
                edge[1] += 1
                self._note(at, token, edge[1])
                at = self._link[at]
        self._last = new
        self._tokens += 1

    def extend(self, tokens: Iterable[int]) -> None:
        """Add several tokens at the end of the text."""
        for token in tokens:
            self.append(token)

    def longest_repeat(self) -> Cursor:
        """The longest suffix of the text that also stands elsewhere in it."""
        state = max(self._link[self._last], 0)
        return Cursor(state, self._length[state])

    def advance(self, cursor: Cursor, token: int) -> Cursor:
        """The longest suffix of (the cursor's match, then `token`) that stands in the text; amortised constant time."""
        state, length = self._current(cursor)
        while state > 0 and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        edge = self._next[state].get(token)
        return Cursor(0, 0) if edge is None else Cursor(edge[0], length + 1)

    def counts(self, cursor: Cursor) -> dict[int, int]:
        """How often each token followed the cursor's match."""
        state, _ = self._current(cursor)
        return {token: count for token, (_, count) in self._next[state].items()}

    def follow(self, cursor: Cursor, most: int, least: float = 0.0, stop: int | None = None) -> list[int]:
        """Up to `most` tokens, each the most frequent one after the match and the tokens before it.

        Ends before the token at which the product of the shares in the counts would fall below `least`, and
        before the token `stop`. Takes constant time a token.
        """
        state, _ = self._current(cursor)
        found: list[int] = []
        chance = 1.0
        while len(found) < most and self._total[state]:
            token = self._best[state]
            below, count = self._next[state][token]
            chance *= count / self._total[state]
            if token == stop or chance < least:
                break
            found.append(token)
            state = below
        return found

    def _current(self, cursor: Cursor) -> tuple[int, int]:
        # Since the cursor was made, its state may have been split; the shorter strings of it moved to the new link.
        state = cursor.state
        while state > 0 and cursor.length <= self._length[self._link[state]]:
            state = self._link[state]
        return state, cursor.length

    def _state(self, length: int) -> int:
        self._next.append({})
        self._link.append(-1)
        self._length.append(length)
        self._total.append(0)
        self._best.append(-1)
        return len(self._link) - 1

    def _split(self, state: int, at: int, token: int) -> int:
        """Move the substrings of `state` that are no longer than the match at `at` to a state of their own."""
        half = self._state(self._length[at] + 1)
        # What followed `state` so far followed these substrings at the same places, so the counts are theirs too.
        self._next[half] = {follower: list(edge) for follower, edge in self._next[state].items()}
        self._total[half], self._best[half] = self._total[state], self._best[state]
        self._link[half], self._link[state] = self._link[state], half
        while at >= 0 and (edge := self._next[at].get(token)) is not None and edge[0] == state:
            edge[0] = half
            at = self._link[at]
        return half

    def _note(self, state: int, token: int, count: int) -> None:
        if not self._total[state] or count >= self._next[state][self._best[state]][1]:
            self._best[state] = token
        self._total[state] += 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """A match: its last `length` tokens are a substring in `state`. Stays right while the automaton grows."""

    state: int = 0
    length: int = 0
