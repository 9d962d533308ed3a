"""How far texts go along drafts, by depth: what schedulers plan by, and what `merge` divides nodes by."""

from __future__ import annotations

_FORGET = 0.9  # weight of the past at each new observation of a depth
_PRIOR = 2.0  # observations that the first guess of acceptance is worth
_HOPE = 0.6  # first guess of the chance that a drafted token is kept
_LIKE_ABOVE = 0.5  # observations that the chance one depth above is worth


class Acceptance:
    """Estimated chances that a drafted token is kept if all before it are, by its depth.

    Old observations fade. A depth that was hardly tried is taken to be like the one before it, or drafts would never
    grow into it.
    """

    def __init__(self) -> None:
        self._tried = [_PRIOR]  # weighted judgements at each depth
        self._kept = [_HOPE * _PRIOR]

    def observe(self, depth: int, accepted: int) -> None:
        """A draft that was `depth` deep, along which the text went `accepted` tokens."""
        for level in range(min(accepted + 1, depth)):
            if level == len(self._tried):
                self._tried.append(0.0)
                self._kept.append(0.0)
            self._tried[level] = _FORGET * self._tried[level] + 1.0
            self._kept[level] = _FORGET * self._kept[level] + (level < accepted)

    def faded(self, share: float) -> Acceptance:
        """A copy in which what was observed weighs no more than `share` of what it does here, beside first guesses."""
        new = Acceptance()
        new._tried = [share * tried for tried in self._tried]
        new._kept = [share * kept for kept in self._kept]
        new._tried[0] += _PRIOR
        new._kept[0] += _HOPE * _PRIOR
        return new

    def reach(self, depth: int) -> list[float]:
        """Chances that the text goes 1, 2, ... `depth` tokens along the next draft."""
        found, reach, chance = [], 1.0, _HOPE
        for level in range(depth):
            known = level < len(self._tried)
            tried, kept = (self._tried[level], self._kept[level]) if known else (0.0, 0.0)
            like = _LIKE_ABOVE if level else 0.0  # nothing is above the first, of which there is a first guess
            chance = (kept + like * chance) / (tried + like)
            reach *= chance
            found.append(reach)
        return found
