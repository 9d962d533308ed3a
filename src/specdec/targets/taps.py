"""Features by name: hidden states captured in the pass that computes them anyway."""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor, nn


class Taps:
    """Captures named features: `"embed"`, `"layer:i"` (raw output of layer i), `"final"` (input of the LM head).

    The raw output of the last layer is not among a model's hidden states (the last of those is normalised), so it
    is taken by a forward hook that is removed again whatever happens, and that listens to its own thread only.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def run(self, model: nn.Module, **kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
        """Call the model's forward; returns its output and name to `[batch, width, size]`."""
        if not self.names:
            return model(**kwargs), {}
        layers = decoder_layers(model)
        last = f"layer:{len(layers) - 1}"
        caught: list[Tensor] = []
        handle = None
        if last in self.names:
            thread = threading.get_ident()

            def catch(_: nn.Module, __: Any, output: Any) -> None:
                if threading.get_ident() == thread:
                    caught.append(output[0] if isinstance(output, tuple) else output)

            handle = layers[-1].register_forward_hook(catch)
        try:
            out = model(output_hidden_states=True, **kwargs)
        finally:
            if handle is not None:
                handle.remove()
        states = out.hidden_states
        features = {}
        for name in self.names:
            if name == last:
                features[name] = caught[-1]
            elif name == "embed":
                features[name] = states[0]
            elif name == "final":
                features[name] = states[-1]
            else:
                features[name] = states[int(name.removeprefix("layer:")) + 1]
        return out, features


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The list of decoder layers: the longest ModuleList of the base model."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    lists = [module for module in base.modules() if isinstance(module, nn.ModuleList)]
    count = base.config.get_text_config(decoder=True).num_hidden_layers
    return next(found for found in lists if len(found) == count)


def available(model: nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `names` that this model can deliver."""
    try:
        count = len(decoder_layers(model))
    except StopIteration:
        return ()
    possible = {"embed", "final", *(f"layer:{index}" for index in range(count))}
    return tuple(name for name in names if name in possible)
