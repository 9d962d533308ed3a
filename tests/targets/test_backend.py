"""The graph that inductor is given computes what was traced, with fewer products and no copies of keys and values."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.codecache  # whoever takes functions of the next does so before a test changes them
import torch._inductor.cpp_builder
import torch._inductor.cpu_vec_isa
from torch import Tensor, fx, nn
from torch.nn import functional

from specdec.targets import backend, prepacked
from specdec.targets.backend import Backend

ATTENTION = functional.scaled_dot_product_attention
needs_packs = pytest.mark.skipif(not prepacked._DTYPES, reason="torch was built without oneDNN: no packed weights")


def test_inductor_knows_the_processor_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.pick_vec_isa", lambda: asked.append(threading.current_thread()))
    thread = backend.processor.__wrapped__()
    thread.join()
    assert asked == [thread] and thread is not threading.current_thread()
    assert backend.processor() is backend.processor()  # once a process


def test_inductor_keeps_what_it_found_out_before_it_was_needed() -> None:
    code = (
        "from specdec.targets.backend import processor\n"
        "processor().join()\n"
        "from torch._inductor.cpu_vec_isa import valid_vec_isa_list\n"
        "print(valid_vec_isa_list.cache_info().currsize)"
    )
    # In a process of its own: here, tests have imported inductor, which nobody has where a pass is compiled first.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1"], done.stderr


def test_a_processor_that_cannot_be_asked_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", problems.append)
    monkeypatch.delattr("torch._inductor.cpu_vec_isa.pick_vec_isa")
    backend.processor.__wrapped__().join()
    assert not problems


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[fx.GraphModule]:
    """Graphs as inductor would get them; they are run as they are."""
    torch._dynamo.reset()
    seen: list[fx.GraphModule] = []

    def kept(graph: fx.GraphModule, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(backend, "_inductor", kept)
    return seen


@torch.no_grad()
def run(function: Callable[..., Tensor], *inputs: Tensor, packs: bool = True) -> None:
    compiled = torch.compile(function, backend=Backend(packs), dynamic=False)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))


def calls(graphs: list[fx.GraphModule], target: Any) -> list[fx.Node]:
    return [node for graph in graphs for node in graph.graph.nodes if node.target is target]


# --- products


class Block(nn.Module):
    """The products of a decoder layer; `first` feeds others with nothing in between, as in an EAGLE head."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 8, bias=bias), nn.Linear(12, 8, bias=bias)
        self.q, self.k, self.gate = (nn.Linear(8, size, bias=bias) for size in (12, 4, 12))

    def forward(self, states: Tensor) -> Tensor:
        states = self.first(states)
        q, k = self.q(states), self.k(states)
        keys = k.view(*k.shape[:-1], 2, 2).transpose(1, 2)  # a view that only a row of numbers allows
        return self.last(q * self.gate(states)) + keys.sum()


@needs_packs
def test_products_of_the_same_states_are_one(graphs: list[fx.GraphModule]) -> None:
    run(Block(), torch.randn(1, 5, 16))
    assert not calls(graphs, functional.linear)
    assert [len(node.args[1]) for node in calls(graphs, prepacked.linear)] == [1, 3, 1]  # type: ignore[arg-type]


@needs_packs
def test_products_with_a_bias_stay_apart(graphs: list[fx.GraphModule]) -> None:
    run(Block(bias=True), torch.randn(2, 5, 16))
    assert [len(node.args[1]) for node in calls(graphs, prepacked.linear)] == [1] * 5  # type: ignore[arg-type]


@needs_packs
def test_the_joint_copy_follows_each_of_its_weights(graphs: list[fx.GraphModule]) -> None:
    block, states = Block(), torch.randn(1, 5, 16)
    compiled = torch.compile(block, backend=Backend(True), dynamic=False)
    with torch.no_grad():
        compiled(states)
        for layer in (block.q, block.k, block.gate):
            layer.weight.mul_(-2.0)
            torch.testing.assert_close(compiled(states), block(states))
    assert len(graphs) == 1


def test_what_is_no_weight_of_the_model_is_multiplied_as_it_is(graphs: list[fx.GraphModule]) -> None:
    block = Block()
    run(lambda states: functional.linear(states, block.q.weight * 2.0), torch.randn(3, 8))
    run(lambda states, made: functional.linear(states, made), torch.randn(3, 8), torch.randn(4, 8))
    run(nn.Linear(8, 4).double(), torch.randn(3, 8).double())
    run(block, torch.randn(1, 5, 16), packs=False)
    assert not calls(graphs, prepacked.linear) and len(calls(graphs, functional.linear)) == 8


# --- attention


def grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
    """As transformers' sdpa attention has it."""
    group = query.shape[1] // key.shape[1]

    def repeated(states: Tensor) -> Tensor:
        batch, heads, length, size = states.shape
        states = states[:, :, None, :, :].expand(batch, heads, group, length, size)
        return states.reshape(batch, heads * group, length, size)

    return ATTENTION(query, repeated(key), repeated(value), attn_mask=mask, scale=0.5, **options)


def parts(batch: int = 2, heads: int = 6, keys: int = 2, width: int = 3, extent: int = 7) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    query = torch.randn(batch, width, heads, 4).transpose(1, 2)
    mask = torch.where(torch.rand(batch, 1, width, extent) < 0.6, 0.0, -1e9)
    return query, torch.randn(batch, keys, extent, 4), torch.randn(batch, keys, extent, 4), mask


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_heads_of_a_group_become_queries_of_one(width: int, batch: int, graphs: list[fx.GraphModule]) -> None:
    run(grouped, *parts(batch=batch, width=width))
    (node,) = calls(graphs, ATTENTION)
    assert [tuple(part.meta["example_value"].shape)[1] for part in node.args[1:3]] == [2, 2]  # type: ignore[union-attr]


def test_one_mask_for_all_rows_of_a_batch_and_all_layers(graphs: list[fx.GraphModule]) -> None:
    query, key, value, mask = parts()
    run(lambda q, k, v, m: grouped(grouped(q, k, v, m), k, v, m), query, key, value, mask[:1])
    first, second = calls(graphs, ATTENTION)
    assert first.kwargs["attn_mask"] is second.kwargs["attn_mask"]


def test_attention_of_another_kind_stays_as_it_is(graphs: list[fx.GraphModule]) -> None:
    query, key, value, mask = parts()
    run(grouped, query, key, value, mask.repeat(1, 6, 1, 1))  # a mask for each head
    run(lambda q, k, v: grouped(q, k, v, None), query, key, value)
    square = parts(width=7)
    run(lambda q, k, v: grouped(q, k, v, None, is_causal=True), *square[:3])
    run(lambda q, k, v, m: ATTENTION(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), m), *parts())
    run(lambda q, k, v, m: ATTENTION(q, k.expand(2, 6, 7, 4), v.expand(2, 6, 7, 4), m), *parts(keys=1))
    assert [len(node.args[0].meta["example_value"].shape) for node in calls(graphs, ATTENTION)] == [4] * 5  # type: ignore[union-attr]
    assert all(node.args[0].meta["example_value"].shape[1] == 6 for node in calls(graphs, ATTENTION))  # type: ignore[union-attr]


# --- writes in between


@needs_packs
def test_products_on_both_sides_of_a_write_are_two(graphs: list[fx.GraphModule]) -> None:
    block = Block()

    def written(states: Tensor) -> Tensor:
        states = states + 0.0
        q = block.q(states)
        states.mul_(2.0)
        return q * block.gate(states)

    def assigned(states: Tensor) -> Tensor:
        states = states + 0.0
        q = block.q(states)
        states[:, 0] = 1.0
        states += 1.0
        return q * block.gate(functional.silu(states, inplace=True))

    run(written, torch.randn(3, 8))
    run(assigned, torch.randn(3, 8))
    assert [len(node.args[1]) for node in calls(graphs, prepacked.linear)] == [1] * 4  # type: ignore[arg-type]


def test_keys_that_were_repeated_before_a_write_stay_repeated(graphs: list[fx.GraphModule]) -> None:
    query, key, value, mask = parts()

    def late(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        k = k + 0.0
        repeated = k[:, :, None, :, :].expand(2, 2, 3, 7, 4).reshape(2, 6, 7, 4)
        k[:, :, 0] = 0.0
        return grouped(q, k, v, m) + ATTENTION(q, repeated, repeated, m)

    def masked(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        m = m + 0.0
        first = grouped(q, k, v, m)
        m[..., 0] = -1e9
        return first + grouped(q, k, v, m)

    run(late, query, key, value, mask)
    run(masked, query, key, value, mask)
    heads = [node.args[1].meta["example_value"].shape[1] for node in calls(graphs, ATTENTION)]  # type: ignore[union-attr]
    assert heads == [2, 6, 6, 6]


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "leaky-relu": nn.LeakyReLU(inplace=True),
    "elu": nn.ELU(inplace=True),
    "hardtanh": nn.Hardtanh(inplace=True),
    "relu": nn.ReLU(inplace=True),
    "silu": lambda states: functional.silu(states, True),
    "iadd": lambda states: Tensor.__iadd__(states, 1.0),
    "out": lambda states: torch.add(states, 1.0, out=states),
}


@needs_packs
@pytest.mark.parametrize("name", WRITES)
def test_every_way_of_writing_is_seen(name: str, graphs: list[fx.GraphModule]) -> None:
    block = Block()

    def between(states: Tensor) -> Tensor:
        states = states + 0.0
        q = block.q(states)
        WRITES[name](states)
        return q * block.gate(states)

    run(between, torch.randn(3, 8))


@needs_packs
def test_turning_a_mask_around_is_no_write(graphs: list[fx.GraphModule]) -> None:
    block = Block()
    run(lambda states: block.q(states) * (~(states > 0)).sum() * block.gate(states), torch.randn(3, 8))
    assert [len(node.args[1]) for node in calls(graphs, prepacked.linear)] == [2]  # type: ignore[arg-type]


def test_a_mask_that_is_written_to_through_a_view_or_its_base_is_read_each_time(graphs: list[fx.GraphModule]) -> None:
    def through_a_view(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        m = m + 0.0
        first = grouped(q, k, v, m)
        m[:, :, 0].fill_(-3.0)
        return first + grouped(q, k, v, m)

    def through_the_base(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        m = m + 0.0
        seen = m[..., :7]
        first = grouped(q, k, v, seen)
        m += torch.arange(7.0)
        return first + grouped(q, k, v, seen)

    run(through_a_view, *parts())
    run(through_the_base, *parts())


def test_one_query_batch_or_head_for_several_of_keys_stays_as_it_is(graphs: list[fx.GraphModule]) -> None:
    query, key, value, mask = parts()

    def repeated(states: Tensor) -> Tensor:
        return states[:, :, None, :, :].expand(2, 2, 3, 7, 4).reshape(2, 6, 7, 4)

    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return ATTENTION(q, repeated(k), repeated(v), attn_mask=m)

    run(attend, query[:1], key, value, mask)
    run(attend, query[:, :1], key, value, mask)
