"""Enumerate every random branch of a run: the output law as numbers, without statistics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from specdec.core.rng import Key

_SLIVER = 1e-12  # share of an interval that is no branch but rounding


class Branches:
    """A script of choices: replay it, take the first branch after it, advance like an odometer."""

    def __init__(self) -> None:
        self._script: list[tuple[int, int]] = []  # (branches, taken)
        self._next = 0
        self.weight = 1.0

    def start(self) -> None:
        self._next, self.weight = 0, 1.0

    def choose(self, weights: Sequence[float]) -> int:
        """The index of one branch of positive weight; `weights` must sum to 1."""
        total = sum(weights)
        if not 1 - 1e-6 < total < 1 + 1e-6 or min(weights) < 0:
            raise AssertionError(f"not a law: the weights {list(weights)} sum to {total}")
        options = [index for index, weight in enumerate(weights) if weight > 0]
        if len(options) == 1:
            return options[0]
        if self._next == len(self._script):
            self._script.append((len(options), 0))
        branches, taken = self._script[self._next]
        if branches != len(options):
            raise AssertionError("the run is not a function of its random choices: it branched differently")
        self._next += 1
        self.weight *= weights[options[taken]] / total
        return options[taken]

    def advance(self) -> bool:
        """Move to the next branch; False when all have been taken."""
        while self._script and self._script[-1][1] == self._script[-1][0] - 1:
            self._script.pop()
        if not self._script:
            return False
        branches, taken = self._script[-1]
        self._script[-1] = (branches, taken + 1)
        return True


class EnumeratingRng:
    """An Rng whose every draw is a branch point. Two draws with one key are an error: they would share noise.

    Looks ahead may share a key with one draw. A key's noise is one uniform whose distribution function is inverted, as
    in `TorchRng`: what has been seen of it narrows the interval in which it lies.
    """

    def __init__(self, branches: Branches, path: Key = (), used: dict[Key, _Noise] | None = None) -> None:
        self._branches, self._path = branches, path
        self._used: dict[Key, _Noise] = {} if used is None else used

    def categorical(self, p: Tensor, at: Sequence[Key] | None = None, ahead: bool = False) -> Tensor:
        weights = p.double() / p.double().sum(-1, keepdim=True)
        drawn = []
        for index, row in enumerate(weights.tolist()):
            if sum(weight > 0 for weight in row) > 1 and at is not None:  # a certainty uses no noise
                noise = self._noise(at[index]) if ahead else self._use(at, index)
                drawn.append(noise.invert(row, self._branches))
            else:
                drawn.append(self._branches.choose(row))
        return torch.tensor(drawn, device=p.device)

    def bernoulli(self, p: Tensor, at: Sequence[Key] | None = None) -> Tensor:
        drawn = []
        for index, probability in enumerate(p.double().tolist()):
            if not 0.0 <= probability <= 1.0 + 1e-12:
                raise AssertionError(f"a coin with probability {probability}")
            probability = min(probability, 1.0)
            if 0.0 < probability < 1.0:
                self._use(at, index)
            drawn.append(self._branches.choose([1.0 - probability, probability]) == 1)
        return torch.tensor(drawn, device=p.device)

    def fold(self, *key: int) -> EnumeratingRng:
        return EnumeratingRng(self._branches, (*self._path, *key), self._used)

    def _use(self, at: Sequence[Key] | None, index: int) -> _Noise:
        noise = _Noise() if at is None else self._noise(at[index])
        if noise.used:
            raise AssertionError(f"the noise of key {(*self._path, *at[index])} was used twice")  # type: ignore[index]
        noise.used = True
        return noise

    def _noise(self, key: Key) -> _Noise:
        return self._used.setdefault((*self._path, *key), _Noise())


class _Noise:
    """One uniform: the interval in which it is known to lie, and whether a draw has been made with it."""

    def __init__(self) -> None:
        self.low, self.high, self.used = 0.0, 1.0, False

    def invert(self, weights: Sequence[float], branches: Branches) -> int:
        """The index in whose bin the uniform lies; a branch point where it may lie in several."""
        edges = [0.0, *accumulate(weights)]
        edges[-1] = 1.0
        size = self.high - self.low
        inside = [
            min(up, self.high) - max(down, self.low) if weight > 0 else 0.0
            for down, up, weight in zip(edges, edges[1:], weights, strict=False)
        ]
        shares = [share / size if share > _SLIVER * size else 0.0 for share in inside]
        total = sum(shares)
        found = branches.choose([share / total for share in shares])
        self.low, self.high = max(edges[found], self.low), min(edges[found + 1], self.high)
        return found


def enumerate_law(run: Callable[[EnumeratingRng], Hashable], limit: int = 200_000) -> dict[Hashable, float]:
    """The law of `run`'s result: runs it once for every combination of random choices.

    Raises RuntimeError after `limit` runs.
    """
    law: dict[Hashable, float] = {}
    branches = Branches()
    for _ in range(limit):
        branches.start()
        result = run(EnumeratingRng(branches))
        law[result] = law.get(result, 0.0) + branches.weight
        if not branches.advance():
            return law
    raise RuntimeError(f"more than {limit} random branches; use fewer tokens or a smaller vocabulary")


def total_variation(one: dict[Hashable, float], other: dict[Hashable, float]) -> float:
    """Half the sum of absolute differences between two laws."""
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other})
