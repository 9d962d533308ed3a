"""The slot cache: after every round it is what a fresh prefill would give, it leaks nothing and can be handed over."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from specdec.drafters.none import NoDraft
from specdec.targets import compat
from specdec.targets.cached_lm import CachedLM
from specdec.targets.cached_session import CachedSession
from tests.targets import zoo
from tests.targets.scripted import PROMPTS, Scripted, run, start

CLOSE = {"atol": 3e-5, "rtol": 1e-5}  # float32; the weights of the zoo are large, keys reach 10
WINDOWED = ("mistral", "gemma3", "llama4")
FAMILIES = ("llama", "gpt2", "deepseek-v3", "gpt-oss", *WINDOWED)


def full_texts(model: nn.Module, prompts: Sequence[tuple[int, ...]], count: int) -> dict[tuple[int, ...], tuple]:
    return {prompt: prompt + zoo.greedy(model, prompt, count) for prompt in dict.fromkeys(prompts)}


def held(session: CachedSession, row: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values `[heads, tokens, size]` a layer of the row's committed tokens, in order."""
    rows = session.map.rows[row]
    batch = [*session.map.pools].index(rows.group)
    at = torch.tensor(rows.slots)
    return [(layer.keys[batch, :, at], layer.values[batch, :, at]) for layer in session.cache.layers]


def prefilled(model: nn.Module, tokens: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """The same from one plain pass over a cache that drops nothing."""
    cache, keyword = DynamicCache(), compat.cache_keyword(compat.parameters(model))
    with torch.no_grad():
        model(input_ids=torch.tensor([list(tokens)]), use_cache=True, **{keyword: cache})
    return [(layer.keys[0], layer.values[0]) for layer in cache.layers]


@pytest.mark.parametrize("shape", ["chain", "tree", "ragged chain", "ragged tree", "none"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_round_leaves_what_a_fresh_prefill_gives(name: str, shape: str) -> None:
    model = zoo.shared(name)
    prompts = PROMPTS[:3] if "ragged" in shape else PROMPTS[:1]
    drafter = NoDraft() if shape == "none" else Scripted(full_texts(model, prompts, 20), "tree" in shape)
    # Rows end at different rounds, so that some are dropped while the others go on.
    generation = start(model, drafter, prompts, [20, 11, 16][: len(prompts)])
    rounds = 0
    for event in generation.rounds():
        session = generation.session.lm
        rounds += 1
        for outcome in event.rows:
            row = outcome.row
            if row.done and len(prompts) > 1:
                assert session.map.rows[row.index].slots == []
                continue
            assert session.length(row.index) == len(row.tokens) - 1
            assert not session.map.rows[row.index].pending
            for got, want in zip(held(session, row.index), prefilled(model, row.tokens[:-1]), strict=True):
                torch.testing.assert_close(got, want, **CLOSE)
    assert rounds > 3


def test_cache_in_float64_is_the_prefill_to_ten_digits() -> None:
    model = zoo.make("llama").double()
    prompt = PROMPTS[0]
    generation = start(model, Scripted(full_texts(model, [prompt], 20), branching=True), [prompt], 20)
    for event in generation.rounds():
        tokens = event.rows[0].row.tokens[:-1]
        for got, want in zip(held(generation.session.lm, 0), prefilled(model, tokens), strict=True):
            torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_chain_keeps_each_token_in_the_slot_of_its_position(name: str) -> None:
    model, prompt = zoo.shared(name), PROMPTS[0]
    generation = start(model, Scripted(full_texts(model, [prompt], 30), branching=False), [prompt], 30)
    for _ in generation.rounds():
        rows = generation.session.lm.map.rows[0]
        assert rows.dense
        assert rows.slots == list(range(len(rows.slots)))


@pytest.mark.parametrize("branching", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_rows_of_a_group_share_their_prompt_and_part_afterwards(name: str, branching: bool) -> None:
    """Three rows of one prompt and two of another are forced apart; each scores as it would alone."""
    model, lm = zoo.shared(name), CachedLM(zoo.shared(name))
    first, second = PROMPTS[0], PROMPTS[1]
    prompts, groups = [first, first, first, second, second], [0, 0, 0, 1, 1]
    session = lm.open(prompts, groups)
    with torch.inference_mode():
        logits, _ = session.prefill()
        assert [pool.used for pool in session.map.pools.values()] == [len(first), len(second)]
        assert torch.equal(logits[0], logits[2])
        texts = [list(prompt) for prompt in prompts]
        generator = torch.Generator().manual_seed(5)
        parents = (-1, 0, 0, 1) if branching else (-1, 0, 1, 2)
        for round_ in range(6):
            tokens = torch.randint(zoo.VOCAB, (5, 4), generator=generator)
            logits, _ = session.extend(range(5), tokens, [parents] * 5)
            paths: list[tuple[int, ...]] = [(0, 2), (0,), (0, 1, 3)] if branching else [(0, 1), (0,), (0, 1, 2, 3)]
            for row in range(5):
                path = paths[(row + round_) % 3]
                alone = plain_logits(model, texts[row] + [int(tokens[row, node]) for node in path])
                for depth, node in enumerate(path):
                    torch.testing.assert_close(logits[row, node], alone[len(texts[row]) + depth], atol=1e-4, rtol=1e-4)
                session.commit(row, path)
                texts[row] += [int(tokens[row, node]) for node in path]
            new = [len(text) - len(prompt) for text, prompt in zip(texts, prompts, strict=True)]
            used = [pool.used for pool in session.map.pools.values()]
            assert used == [len(first) + sum(new[:3]), len(second) + sum(new[3:])]


def plain_logits(model: nn.Module, tokens: Sequence[int]) -> Tensor:
    return model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]


def test_groups_through_the_engine_are_generate() -> None:
    model = zoo.shared("llama")
    prompts = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 2
    texts = full_texts(model, prompts, 24)
    got, _ = run(model, Scripted(texts, branching=True), prompts, 24, groups=[0, 0, 0, 1, 1])
    assert got == [texts[prompt][len(prompt) :] for prompt in prompts]


def test_retiring_rows_frees_their_slots_and_leaves_the_others_right() -> None:
    model = zoo.shared("gemma3")
    texts = full_texts(model, PROMPTS, 40)
    counts = [6, 40, 3, 22, 1]
    generation = start(model, Scripted(texts, branching=True), PROMPTS, counts)
    sizes = []
    for event in generation.rounds():
        live = sum(not outcome.done for outcome in event.rows)
        layer = generation.session.lm.cache.layers[0]
        sizes.append(layer.keys.shape[0])
        assert sizes[-1] == max(live, 1)
        used = [pool.used for pool in generation.session.lm.map.pools.values()]
        assert live == 0 or used == [len(row.tokens) - 1 for row in generation.rows if not row.done]
    assert len(set(sizes)) > 3
    for row, prompt, count in zip(generation.rows, PROMPTS, counts, strict=True):
        assert tuple(row.tokens) == texts[prompt][: len(prompt) + count]


@pytest.mark.slow
def test_memory_is_what_the_tokens_need() -> None:
    model = zoo.make("llama", max_position_embeddings=4096)
    prompt, count = PROMPTS[0], 2000
    texts = full_texts(model, [prompt], count)
    got, generation = run(model, Scripted(texts, branching=True), [prompt], count)
    assert got == [texts[prompt][len(prompt) :]]
    config = model.config
    a_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert generation.session.lm.nbytes <= 1.35 * a_token * (len(prompt) + count)


def test_memory_without_a_length_to_grow_towards() -> None:
    """A drafter's cache does not know how long the text gets."""
    lm = CachedLM(zoo.shared("llama"))
    session = lm.open([PROMPTS[0]])
    session.prefill()
    with torch.inference_mode():
        for _ in range(300):
            session.extend([0], torch.tensor([[4, 5, 6]]), [(-1, 0, 0)])
            session.commit(0, (0, 2))
    tokens = session.length(0)
    assert tokens == len(PROMPTS[0]) + 600
    config = lm.model.config
    a_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert session.nbytes <= 1.35 * a_token * tokens


def test_twenty_generations_leave_nothing_behind() -> None:
    model = zoo.shared("llama")
    texts = full_texts(model, PROMPTS, 20)

    def live() -> int:
        gc.collect()
        return sum(o.nbytes for o in gc.get_objects() if type(o) is Tensor or type(o) is nn.Parameter)

    def twenty() -> None:
        for seed in range(20):
            run(model, Scripted(texts, branching=True, seed=seed), PROMPTS, 20)

    twenty()  # fills the bounded caches of forest shapes
    before = live()
    twenty()
    assert live() == before


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek-v3", *WINDOWED])
def test_an_exported_cache_continues_in_plain_generate(name: str) -> None:
    model, prompt = zoo.shared(name), PROMPTS[0]
    texts = full_texts(model, [prompt], 40)
    _, generation = run(model, Scripted(texts, branching=True), [prompt], 20)
    cache = generation.session.lm.export(0)
    ids = torch.tensor([generation.rows[0].tokens])
    keyword = "cache" if "cache" in compat.parameters(model) else "past_key_values"
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, **{keyword: cache}
    )
    assert tuple(out[0].tolist()) == texts[prompt]


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma3"])
def test_a_users_cache_is_adopted(name: str) -> None:
    """A left-padded cache that dropped nothing: its real places are taken, its padding is not."""
    model, prompt = zoo.shared(name), PROMPTS[0]
    text = full_texts(model, [prompt], 12)[prompt]
    pad = 3
    ids = torch.tensor([[0] * pad + list(text[:-1])])
    mask = torch.tensor([[0] * pad + [1] * (len(text) - 1)])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache, keyword = DynamicCache(), compat.cache_keyword(compat.parameters(model))
    with torch.no_grad():
        model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **{keyword: cache})
    layers = compat.cached_layers(cache)
    assert layers is not None
    before = [keys.clone() for keys, _ in layers]
    session = CachedLM(model).open([text])
    session.adopt(0, layers, range(pad, pad + len(text) - 1))
    tokens = torch.tensor([[text[-1], 7, 8]])
    with torch.inference_mode():
        logits, _ = session.extend([0], tokens, [(-1, 0, 0)])
    for node, path in enumerate(([], [7], [8])):
        torch.testing.assert_close(logits[0, node], plain_logits(model, [*text, *path])[-1], atol=1e-4, rtol=1e-4)
    assert all(torch.equal(keys, old) for (keys, _), old in zip(layers, before, strict=True))


def test_a_cache_that_dropped_positions_is_not_taken_for_whole() -> None:
    model, prompt = zoo.shared("mistral"), PROMPTS[0]
    ids = torch.tensor([prompt])
    keyword = compat.cache_keyword(compat.parameters(model))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids, use_cache=True, **{keyword: cache})
    assert compat.cached_layers(cache) is None


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize("name", ["llama", "gpt2", *WINDOWED])
def test_prefill_in_chunks_is_prefill(name: str, chunk: int) -> None:
    lm = CachedLM(zoo.shared(name))
    with torch.inference_mode():
        whole, pieces = lm.open(PROMPTS), lm.open(PROMPTS)
        want, _ = whole.prefill()
        got, _ = pieces.prefill(chunk=chunk)
    torch.testing.assert_close(got, want, **CLOSE)
    for row in range(len(PROMPTS)):
        for a, b in zip(held(pieces, row), held(whole, row), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
    assert pieces.passes == -(-max(map(len, PROMPTS)) // chunk)
