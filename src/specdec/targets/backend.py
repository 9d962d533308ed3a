"""What inductor compiles on a CPU: a traced pass with products and attention that suit a few tokens."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from specdec.targets.prepacked import linear, packs

_Compiled = Callable[..., Any]
_ATTENTION = functional.scaled_dot_product_attention
_INSERT = (slice(None), slice(None), None, slice(None), slice(None))
_OPERATORS = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
)
_IN_PLACE = {"setitem", *(f"i{name}" for name in _OPERATORS)}
_IN_PLACE |= {f"__{name}__" for name in _IN_PLACE}
_aten = torch.ops.aten  # methods, in their place, would keep the graph out of torch's caches


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of `torch.compile`: inductor, behind two changes of the graph that keep what it computes.

    packs: products with the model's weights are those of packed weights. Attention over keys that several query heads
    share reads them once: the heads of a group become further queries of one head. The graph is changed, rather than
    calls while it is traced, since dynamo takes a third longer with a mode in between.
    """

    packs: bool

    def __call__(self, graph: fx.GraphModule, inputs: list[Tensor]) -> _Compiled:
        lower(graph, self.packs)
        processor().join()
        return _inductor(graph, inputs)


@cache
def processor() -> threading.Thread:
    """A thread that lets inductor find out what the processor can do; it starts with the first call.

    Inductor would otherwise ask when it needs to know: in a process of its own, which imports for a second while
    this one waits. Dynamo traces meanwhile. Inductor keeps the answer, and asks by itself where there is none.
    """
    with contextlib.suppress(ImportError):
        for name in ("codecache", "cpp_builder", "cpu_vec_isa"):
            # On this thread, as two that import each other's halves may meet unfinished modules.
            import_module(f"torch._inductor.{name}")
    thread = threading.Thread(target=_ask, name="specdec-processor", daemon=True)
    thread.start()
    return thread


def _ask() -> None:
    with contextlib.suppress(Exception):  # what is wrong is said where the answer is needed
        torch._inductor.cpu_vec_isa.pick_vec_isa()


def _inductor(graph: fx.GraphModule, inputs: list[Tensor]) -> _Compiled:
    compiled: _Compiled = torch._dynamo.lookup_backend("inductor")(graph, inputs)
    return compiled


def lower(graph: fx.GraphModule, packed: bool) -> None:
    """Change a graph as dynamo traced it, in place."""
    masks: dict[tuple[fx.Node, int], fx.Node] = {}  # a mask serves all layers
    # Products of one tensor of states, as long as nothing is written to: (product, weight).
    products: dict[tuple[fx.Node, int], list[tuple[fx.Node, fx.Node]]] = {}
    writes, writes_before = 0, {}  # of each node
    written = {_root(part) for node in graph.graph.nodes if _writes(node) for part in node.all_input_nodes}
    for node in list(graph.graph.nodes):
        writes += _writes(node)
        writes_before[node] = writes
        if node.target is _ATTENTION:
            _fold(graph.graph, node, masks, writes_before, written)
        elif packed and node.target is functional.linear:
            found = _arguments(node, "input", "weight", "bias")
            states, weight, bias = found["input"], found["weight"], found.get("bias")
            if not packs(_value(states), _value(weight), bias and _value(bias)):
                continue
            if bias is None:
                products.setdefault((states, writes), []).append((node, weight))
            else:
                node.target, node.args, node.kwargs = linear, (states, [weight], bias), {}
    for parts in products.values():
        _join(graph.graph, parts)
    graph.recompile()  # what nothing uses any more goes later, where writes to memory are told from it


def _join(graph: fx.Graph, parts: Sequence[tuple[fx.Node, fx.Node]]) -> None:
    """Products of the same states as one, from which each takes its part."""
    weights, start = [weight for _, weight in parts], 0
    states = _arguments(parts[0][0], "input")["input"]  # asked now: they may be a product that was replaced
    with graph.inserting_before(parts[0][0]):
        out = graph.call_function(linear, (states, weights, None))
    for node, weight in parts:
        own, size = out, len(_value(weight))
        if len(parts) > 1:
            with graph.inserting_before(node):
                # As if it had been made alone: a view that a model takes may need it.
                part = graph.call_function(_aten.narrow.default, (out, -1, start, size))
                own = graph.call_function(_aten.contiguous.default, (part,))
        start += size
        _replace(graph, node, own)


def _fold(
    graph: fx.Graph,
    node: fx.Node,
    masks: dict[tuple[fx.Node, int], fx.Node],
    writes_before: dict[fx.Node, int],
    written: set[fx.Node],
) -> None:
    """Attention of `[batch, heads, queries, size]` as one of `[batch, key heads, group * queries, size]`."""
    found = _arguments(node, "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    key, value, mask = _shared(found["key"]), _shared(found["value"]), found.get("attn_mask")
    query = _value(found["query"])
    if key is None or value is None or not isinstance(mask, fx.Node) or found.get("is_causal") or query.dim() != 4:
        return
    late = any(writes_before[found[name]] != writes_before[node] for name in ("key", "value"))
    if late or _root(mask) in written:
        return  # a copy that was made before a write is not what is there now
    (batch, heads, queries, size), seen = query.shape, _value(mask)
    keys = _value(key).shape[1]
    group = heads // keys
    alike = _value(key).shape[0] == _value(value).shape[0] == batch and heads == keys * group
    if not alike or _value(value).shape[1] != keys or seen.dim() != 4 or seen.shape[1] != 1 or seen.shape[2] != queries:
        return
    with graph.inserting_before(node):
        if (mask, group) not in masks:
            every = graph.call_function(_aten.expand.default, (mask, [-1, group, -1, -1]))
            masks[mask, group] = _reshape(graph, every, len(seen), 1, group * queries, seen.shape[-1])
        folded = _reshape(graph, found["query"], batch, keys, group * queries, size)
        options: dict[str, Any] = {name: found[name] for name in ("dropout_p", "scale") if name in found}
        out = graph.call_function(_ATTENTION, (folded, key, value), options | {"attn_mask": masks[mask, group]})
        out = _reshape(graph, out, batch, heads, queries, _value(value).shape[-1])
    _replace(graph, node, out)


def _reshape(graph: fx.Graph, node: fx.Node, *shape: int) -> fx.Node:
    return graph.call_function(_aten.reshape.default, (node, shape))


def _replace(graph: fx.Graph, node: fx.Node, by: fx.Node) -> None:
    by.meta.update(node.meta)  # others ask what it is
    node.replace_all_uses_with(by)
    graph.erase_node(node)


def _shared(node: Any) -> fx.Node | None:
    """`[batch, key heads, keys, size]`, of which each head was repeated for its group; None if it was not so."""
    chain = [node]  # x[:, :, None].expand(...).reshape(...), from its end
    while isinstance(chain[-1], fx.Node) and len(chain) < 4 and chain[-1].args:
        chain.append(chain[-1].args[0])
    if len(chain) < 4 or not all(isinstance(part, fx.Node) and isinstance(_value(part), Tensor) for part in chain):
        return None
    repeated, wide, inserted, own = chain
    if (repeated.target, wide.target, inserted.target) != ("reshape", "expand", getitem) or inserted.args[1] != _INSERT:
        return None
    shape, group = _value(own).shape, _value(wide).shape[2]
    fits = len(shape) == 4 and _value(repeated).shape == (shape[0], shape[1] * group, *shape[2:])
    return own if fits and _value(wide).shape == (*shape[:2], group, *shape[2:]) else None


def _root(node: fx.Node) -> fx.Node:
    """Where it came from by way of first arguments: views of one tensor, and more, have one root."""
    while node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _writes(node: fx.Node) -> bool:
    """Whether it writes to memory that others may read."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return any(getattr(node.target, name)._schema.is_mutable for name in node.target.overloads())
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__") and not hasattr(operator, name))
    calls = node.op in ("call_method", "call_function")
    # Activations take `inplace` by its name or, as torch's own modules give it, at the end.
    inplace = node.kwargs.get("inplace", node.args[-1] if node.args else False) is True
    return calls and (in_place or inplace or "out" in node.kwargs)


def _arguments(node: fx.Node, *names: str) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _value(node: Any) -> Any:
    return node.meta.get("example_value")
