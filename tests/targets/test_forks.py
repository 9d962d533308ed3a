"""Rows that go on from each other's tokens: masks change, no key is copied, and logits are those of the text."""

from __future__ import annotations

import random

import pytest
import torch

from specdec.targets.cached_lm import CachedLM
from specdec.targets.kv import SlotMap
from tests.targets import zoo


def plain(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "mistral"])
def test_rows_may_swap_end_and_live_again(family):
    model = zoo.make(family)
    prompts = [[5, 6, 7, 8, 9]] * 4 + [[3, 2]] * 2
    session = CachedLM(model).open(prompts, [0, 0, 0, 0, 1, 1], 40)
    chance = random.Random(3)
    texts = [list(prompt) for prompt in prompts]
    with torch.inference_mode():
        session.prefill()
        live = list(range(6))
        for number in range(12):
            width = chance.randint(1, 4)
            new = [[chance.randrange(zoo.VOCAB) for _ in range(width)] for _ in live]
            logits, _ = session.extend(live, torch.tensor(new), [range(-1, width - 1)] * len(live))
            for place, row in enumerate(live):
                keep = chance.randint(1, width)
                text = texts[row] + new[place][:keep]
                assert torch.allclose(logits[place, keep - 1], plain(model, text), atol=1e-4)
                session.commit(row, range(keep))
                texts[row] = text
            if number % 3 == 1:  # two rows end; one of them lives again in the next step
                session.retire([0, 2, 3, 5])
                live = [0, 2, 3, 5]
            if number % 3 == 2:
                sources = {0: 3, 3: 2, 1: 0, 4: 5} if 4 not in live else {0: 3, 3: 2}
                before = [layer.keys.data_ptr() for layer in session.cache.layers]
                session.follow(sources)
                assert before == [layer.keys.data_ptr() for layer in session.cache.layers]
                old = [list(text) for text in texts]
                for row, source in sources.items():
                    texts[row] = old[source]
                live = list(range(6))
    for row in range(6):
        cache = session.export(row)
        assert cache.get_seq_length() == len(texts[row])


def test_slots_are_counted_by_their_owners():
    slots = SlotMap([0, 0, 0])
    for row in range(3):
        slots.fill(row, 10)
    assert slots.pools[0].used == 10
    for row in range(3):
        slots.add(row, range(-1, 3))
        slots.commit(row, range(4))
    assert slots.pools[0].used == 22
    slots.follow({1: 0, 2: 0})
    assert slots.pools[0].used == 14 and slots.rows[1].slots == slots.rows[0].slots
    slots.add(1, (-1,))
    slots.commit(1, (0,))
    assert slots.pools[0].used == 15 and len(slots.rows[0].slots) == 14
    slots.follow({0: 1, 1: 0})  # a swap
    assert (len(slots.rows[0].slots), len(slots.rows[1].slots)) == (15, 14)
    slots.release(0)
    assert slots.pools[0].used == 14
    slots.release(1)
    slots.release(2)
    assert slots.pools[0].used == 0


def test_memory_grows_towards_what_all_rows_of_a_group_will_need():
    model = zoo.make("llama")
    session = CachedLM(model).open([[1] * 100] * 8, [0] * 8, 150)
    with torch.inference_mode():
        session.prefill()
        for _ in range(50):
            session.extend(range(8), torch.zeros(8, 1, dtype=torch.int64), [(-1,)] * 8)
            for row in range(8):
                session.commit(row, (0,))
    assert session.map.pools[0].used == 100 + 8 * 50
    assert session.cache.layers[0].keys.shape[0] == 1
    assert session.cache.layers[0].keys.shape[2] <= 100 + 8 * 50 + 64
