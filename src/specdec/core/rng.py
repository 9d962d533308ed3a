"""Randomness as a port of two operations, so that a test can enumerate every random branch of the real engine."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specdec.core import host

Key = tuple[int, ...]
"""Names one draw. Two draws of one stream with equal keys get equal noise; different keys are independent."""

_MASK = (1 << 64) - 1


class Rng(Protocol):
    """The only source of randomness a part may use.

    `at` gives one key a batch row. Keyed draws do not depend on what else was drawn, so a row's text does not
    depend on the batch it stands in. Without `at`, draws follow one another in a stream of their own.
    """

    def categorical(self, p: Tensor, at: Sequence[Key] | None = None, ahead: bool = False) -> Tensor:
        """Draw one index a row from `p` `[rows, vocab]`, non-negative weights; returns `[rows]` int64.

        ahead: a look at what the draw of these keys gives, or gave, with this `p`; it may be made again.
        """
        ...

    def bernoulli(self, p: Tensor, at: Sequence[Key] | None = None) -> Tensor:
        """Flip one coin a row with success probability `p` `[rows]`; returns `[rows]` bool."""
        ...

    def fold(self, *key: int) -> Rng:
        """A stream of its own, named by `key` under this one."""
        ...


class TorchRng:
    """Counter-based noise: each uniform is a hash of seed and key, computed on the host and sent to the device.

    Uniforms have 52 random bits and lie in [0, 1). Categorical draws invert the distribution function in float64,
    one uniform a draw, and can never return a token of weight zero.
    """

    def __init__(self, seed: int, *key: int) -> None:
        self._state = _mix(operator.index(seed) & _MASK)  # a tensor's bits would wrap
        for part in key:
            self._state = _mix(self._state ^ _mix(part & _MASK))
        self._drawn = 0

    def categorical(self, p: Tensor, at: Sequence[Key] | None = None, ahead: bool = False) -> Tensor:
        cdf = p.double().cumsum(-1)  # [rows, vocab]
        u = self._uniforms(len(p), at, p.device)  # [rows]
        # right=True skips bins of width zero; u < 1 keeps the result inside the support.
        return torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0]

    def bernoulli(self, p: Tensor, at: Sequence[Key] | None = None) -> Tensor:
        # Strict: a coin of probability zero never succeeds, one of probability one always does.
        return self._uniforms(len(p), at, p.device) < p

    def fold(self, *key: int) -> TorchRng:
        return TorchRng(self._state, *key)

    def _uniforms(self, count: int, at: Sequence[Key] | None, device: torch.device) -> Tensor:
        if at is None:
            at = [(-1, self._drawn + i) for i in range(count)]
            self._drawn += count
        return host.send([self._uniform(key) for key in at], device, torch.float64)

    def _uniform(self, key: Key) -> float:
        state = self._state
        for part in key:
            state = _mix(state ^ _mix(part & _MASK))
        return (state >> 12) * 2.0**-52


def _mix(x: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014) after its golden-ratio step."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
