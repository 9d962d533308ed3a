"""What inductor compiles on a CPU: a traced pass with products and attention that suit a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from specdec.targets.prepacked import linear, packs

_Compiled = Callable[..., Any]
_ATTENTION = functional.scaled_dot_product_attention
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
        return _inductor(graph, inputs)


def _inductor(graph: fx.GraphModule, inputs: list[Tensor]) -> _Compiled:
    compiled: _Compiled = torch._dynamo.lookup_backend("inductor")(graph, inputs)
    return compiled


def lower(graph: fx.GraphModule, packed: bool) -> None:
    """Change a graph as dynamo traced it, in place."""
    masks: dict[tuple[fx.Node, int], fx.Node] = {}  # a mask serves all layers
    products: dict[fx.Node, list[tuple[fx.Node, fx.Node]]] = {}  # of one tensor of states: (product, weight)
    for node in list(graph.graph.nodes):
        if node.target is _ATTENTION:
            _fold(graph.graph, node, masks)
        elif packed and node.target is functional.linear:
            found = _arguments(node, "input", "weight", "bias")
            states, weight, bias = found["input"], found["weight"], found.get("bias")
            if not packs(_value(states), _value(weight), bias and _value(bias)):
                continue
            if bias is None:
                products.setdefault(states, []).append((node, weight))
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


def _fold(graph: fx.Graph, node: fx.Node, masks: dict[tuple[fx.Node, int], fx.Node]) -> None:
    """Attention of `[batch, heads, queries, size]` as one of `[batch, key heads, group * queries, size]`."""
    found = _arguments(node, "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    key, value, mask = _shared(found["key"]), _shared(found["value"]), found.get("attn_mask")
    query = _value(found["query"])
    if key is None or value is None or not isinstance(mask, fx.Node) or found.get("is_causal") or query.dim() != 4:
        return
    (batch, heads, queries, size), seen = query.shape, _value(mask)
    keys = _value(key).shape[1]
    group = heads // keys
    if _value(value).shape[1] != keys or seen.dim() != 4 or seen.shape[1] != 1 or seen.shape[2] != queries:
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
    reshape = node if isinstance(node, fx.Node) and node.target == "reshape" else None
    expand = reshape.args[0] if reshape is not None else None
    if not isinstance(expand, fx.Node) or expand.target != "expand" or not isinstance(expand.args[0], fx.Node):
        return None
    assert reshape is not None
    own = expand.args[0].args[0]  # of x[:, :, None]
    if not isinstance(own, fx.Node) or not isinstance(_value(own), Tensor):
        return None
    shape, wide = _value(own).shape, _value(expand).shape
    alike = len(shape) == 4 and len(wide) == 5 and (*wide[:2], *wide[3:]) == tuple(shape)
    fits = alike and tuple(_value(reshape).shape) == (shape[0], wide[1] * wide[2], *shape[2:])
    # The inserted axis has one element in each head, so what was expanded is the head itself.
    one = _value(expand.args[0]).shape == (*shape[:2], 1, *shape[2:])
    return own if fits and one else None


def _arguments(node: fx.Node, *names: str) -> dict[str, Any]:
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _value(node: Any) -> Any:
    return node.meta.get("example_value")
