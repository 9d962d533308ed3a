"""The random port: uniform, independent over seeds, folds and keys, and the same wherever a row stands."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specdec.core.rng import TorchRng

pytestmark = pytest.mark.core
COUNT = 20_000


def uniforms(rng, keys):
    """The uniforms behind keyed draws, read off with a law of many thin bins."""
    bins = torch.ones(1, 1 << 12, dtype=torch.float64).expand(len(keys), -1)
    parts = [rng.categorical(bins[i : i + 2000], at=keys[i : i + 2000]) for i in range(0, len(keys), 2000)]
    return (torch.cat(parts).double() + 0.5) / (1 << 12)


def chi_square(u, cells=64):
    counts = torch.histc(u, cells, 0.0, 1.0)
    mean = len(u) / cells
    return float(((counts - mean) ** 2 / mean).sum())


def correlation(a, b):
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


STREAMS = {
    "positions": [(0, i) for i in range(COUNT)],
    "copies": [(i, 5) for i in range(COUNT)],
    "large keys": [(i << 40, -i) for i in range(COUNT)],
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("seed", [0, 1, 2**62, -1])
def test_keyed_draws_are_uniform(name, seed):
    u = uniforms(TorchRng(seed), STREAMS[name])
    assert abs(float(u.mean()) - 0.5) < 4 / math.sqrt(12 * COUNT)
    assert abs(float(u.var()) - 1 / 12) < 0.003
    assert chi_square(u) < 63 + 5 * math.sqrt(2 * 63)
    assert abs(correlation(u[:-1], u[1:])) < 4 / math.sqrt(COUNT)  # neighbours know nothing of each other


def test_streams_are_independent():
    keys = STREAMS["positions"]
    base = uniforms(TorchRng(7), keys)
    others = {
        "next seed": TorchRng(8), "far seed": TorchRng(7 << 32), "fold": TorchRng(7).fold(1),
        "other fold": TorchRng(7).fold(2), "deeper fold": TorchRng(7).fold(1).fold(1),
        "two keys": TorchRng(7).fold(1, 2),
    }  # fmt: skip
    drawn = {name: uniforms(rng, keys) for name, rng in others.items()}
    for name, u in drawn.items():
        assert abs(correlation(base, u)) < 4.5 / math.sqrt(COUNT), name
        assert float((base == u).double().mean()) < 0.002
    assert abs(correlation(drawn["fold"], drawn["other fold"])) < 4.5 / math.sqrt(COUNT)


def test_keys_of_copies_and_positions_do_not_meet():
    keys = [(copy, position) for copy in range(60) for position in range(60)]
    u = uniforms(TorchRng(3), keys)
    assert chi_square(u) < 63 + 5 * math.sqrt(2 * 63)
    swapped = uniforms(TorchRng(3), [(position, copy) for copy, position in keys])
    off = [i for i, (copy, position) in enumerate(keys) if copy != position]
    assert abs(correlation(u[off], swapped[off])) < 0.08


def test_draws_are_what_seed_and_key_say_whatever_else_is_drawn():
    p = torch.rand(4, 30, generator=torch.Generator().manual_seed(0))
    keys = [(0, 1), (0, 2), (1, 1), (5, 9)]
    together = TorchRng(9).categorical(p, at=keys)
    busy = TorchRng(9)
    busy.bernoulli(torch.rand(7))
    busy.fold(3).categorical(p)
    for row in (3, 1, 0, 2):
        assert busy.categorical(p[row : row + 1], at=[keys[row]]) == together[row]
    assert torch.equal(TorchRng(9).fold(1, 2).categorical(p, at=keys), TorchRng(9).fold(1, 2).categorical(p, at=keys))


def test_draws_without_keys_follow_one_another():
    rng, p = TorchRng(1), torch.ones(50, 1000)
    first, second = rng.categorical(p), rng.categorical(p)
    assert not torch.equal(first, second)
    again = TorchRng(1)
    assert torch.equal(torch.cat([first, second]), again.categorical(torch.ones(100, 1000)))


def test_categorical_follows_weights_and_never_draws_weight_zero():
    weights = torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0]]).expand(COUNT, -1)
    drawn = TorchRng(2).categorical(weights, at=STREAMS["positions"])
    counts = torch.bincount(drawn, minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(counts[1].item() / COUNT - 0.75) < 4 * math.sqrt(0.75 * 0.25 / COUNT)
    one = torch.zeros(COUNT, 3)
    one[:, 2] = 1e-30
    assert TorchRng(2).categorical(one).eq(2).all()


def test_coins():
    certain = TorchRng(4)
    assert not certain.bernoulli(torch.zeros(COUNT)).any()
    assert certain.bernoulli(torch.ones(COUNT)).all()
    p = torch.full((COUNT,), 0.3, dtype=torch.float64)
    assert abs(float(TorchRng(4).bernoulli(p).double().mean()) - 0.3) < 4 * math.sqrt(0.21 / COUNT)


def test_seeds_and_bounds():
    seen = {TorchRng(seed)._uniform((0, 0)) for seed in range(2000)}
    assert len(seen) == 2000 and min(seen) >= 0.0 and max(seen) < 1.0
    assert 0.45 < sum(seen) / 2000 < 0.55


def test_a_seed_is_a_whole_number_of_any_type():
    keys, bins = [(0, 1), (5, 2)], torch.ones(2, 1 << 12, dtype=torch.float64)
    want = TorchRng(3).fold(1).categorical(bins, at=keys)
    for seed in (torch.tensor(3), torch.tensor(3, dtype=torch.int32), np.int64(3), np.uint8(3)):
        assert torch.equal(TorchRng(seed).fold(1).categorical(bins, at=keys), want), type(seed)
    with pytest.raises(TypeError):
        TorchRng(1.5)
