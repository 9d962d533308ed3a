"""Features by name: hidden states captured in the pass that computes them anyway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

Store = Callable[[str, Callable[[], Any]], None]
"""Takes a feature's name and what gives its value."""


class Taps:
    """Captures named features: `"embed"`, `"layer:i"` (raw output of layer i), `"final"` (input of the LM head).

    By forward hooks that are removed again whatever happens, and that listen to their own thread only. Not by
    `output_hidden_states`: that keeps every layer's states, never the raw one of the last layer, leaves hooks behind
    and replaces methods for the time of the call in early 5.x, which two threads cannot do at once.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def run(self, model: nn.Module, **kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """Call the model's forward; returns its output and name to `[batch, width, size]`."""
        if not self.names:
            return model(**kwargs), {}
        found: dict[str, Tensor] = {}
        thread = threading.get_ident()

        def store(name: str, take: Callable[[], Any]) -> None:
            if threading.get_ident() == thread:
                found[name] = take()

        with Hooks(model, self.names, store):
            out = model(**kwargs)
        return out, {name: found[name] for name in self.names}


class Hooks:
    """Hooks that hand the features `names` of a model to `store`, attached inside each `with`."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], store: Store) -> None:
        layers = decoder_layers(model) if names else nn.ModuleList()
        self._ways = [_way(name, model, layers, store) for name in names]
        self._handles = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as handles:
            for attach in self._ways:
                handles.callback(attach().remove)
            self._handles = handles.pop_all()

    def __exit__(self, *error: object) -> None:
        self._handles.close()


def _way(name: str, model: nn.Module, layers: nn.ModuleList, store: Store) -> Callable[[], Any]:
    """What registers the hook of one feature and returns its handle."""

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        store(name, lambda: args[0] if args else kwargs["hidden_states"])

    def after(_: nn.Module, __: Any, output: Any) -> None:
        # Layers return a tensor or a tuple that it heads; the output of a whole model is headed by it, too.
        store(name, lambda: output if isinstance(output, Tensor) else output[0])

    if name == "embed":
        return lambda: layers[0].register_forward_pre_hook(before, with_kwargs=True)
    if name == "final":
        # The module that runs the layers also ends with their norm; `base_model` is not it in OPT and Llama 4.
        owner = next(module for module in model.modules() if any(child is layers for child in module.children()))
        return lambda: owner.register_forward_hook(after)
    return lambda: layers[int(name.removeprefix("layer:"))].register_forward_hook(after)


def decoder_layers(model: Any) -> nn.ModuleList:
    """The list of decoder layers: the first ModuleList of the base model with one entry a layer of the config."""
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # below a PEFT wrapper
    count = base.config.get_text_config(decoder=True).num_hidden_layers
    lists = (module for module in base.modules() if isinstance(module, nn.ModuleList))
    return next(found for found in lists if len(found) == count)


def available(model: nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `names` that this model can deliver."""
    try:
        count = len(decoder_layers(model))
    except StopIteration:
        return ()
    possible = {"embed", "final", *(f"layer:{index}" for index in range(count))}
    return tuple(name for name in names if name in possible)
