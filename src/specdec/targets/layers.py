"""A model with only some of its layers, made of the model's own modules; nothing on the model is changed."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from specdec.core.errors import UnsupportedModelError
from specdec.targets.cached_lm import CachedLM
from specdec.targets.cached_session import CachedSession
from specdec.targets.taps import decoder_layers

# What a view was made of, and the view; by model and layers. A view does not hold its model, only the modules in it.
_Made = dict[tuple[int, ...], tuple[tuple[object, ...], CachedLM]]
_VIEWS: weakref.WeakKeyDictionary[nn.Module, _Made] = weakref.WeakKeyDictionary()


def layers_of(model: nn.Module) -> nn.ModuleList | None:
    """The model's list of decoder layers, or None where none is found."""
    try:
        return decoder_layers(model)
    except StopIteration:
        return None


def with_layers(model: nn.Module, kept: Sequence[int]) -> CachedLM:
    """`model` as if it had only the layers `kept`, in order: its embedding, these layers, its norm and its LM head.

    Copies of the few modules above the layers, sharing all that is below them; no weight is copied, and neither
    the model nor its config is written to. Layers keep the number under which they use a cache, so a cache of the
    model serves. Raises UnsupportedModelError where the model's forward is not that of its class.
    """
    made, key, state = _VIEWS.setdefault(model, {}), tuple(kept), _state(model)
    if key not in made or made[key][0] != state:
        made[key] = state, CachedLM(_view(model, key))
    return made[key][1]


def _view(model: nn.Module, kept: tuple[int, ...]) -> nn.Module:
    layers = decoder_layers(model)
    chain = _chain(model, layers)
    view: nn.Module = _copied(model)
    inner = view
    for name in chain[:-1]:
        inner._modules[name] = _copied(inner._modules[name])
        inner = inner._modules[name]  # type: ignore[assignment]
    shorter = inner._modules[chain[-1]] = nn.ModuleList([layers[index] for index in kept])
    shorter.training = layers.training
    if (config := getattr(inner, "config", None)) is not None:
        own = copy.copy(config)
        if kinds := getattr(config, "layer_types", None):
            vars(own)["layer_types"] = [kinds[index] for index in kept]
        own.num_hidden_layers = len(kept)
        inner.config = own
    return view


def _chain(model: nn.Module, layers: nn.Module) -> list[str]:
    """Names of the modules from `model` down to `layers`."""
    return next(name for name, module in model.named_modules() if module is layers).split(".")


def _copied(module: Any) -> Any:
    if "forward" in vars(module):
        raise UnsupportedModelError(
            f"the forward of {type(module).__name__} was replaced on this model, as accelerate and torch.compile do, "
            "so it cannot be run with fewer layers. Load it without a device map, or pass the model as it was before"
        )
    own = copy.copy(module)
    own._modules = dict(module._modules)
    return own


def _state(model: Any) -> tuple[object, ...]:
    """What a view would be outdated by: other modules above the layers, another mode or attention implementation."""
    found: list[object] = [getattr(model.config, "_attn_implementation", None)]
    module: Any = model
    for name in _chain(model, decoder_layers(model)):
        found += [module.training, *map(id, module._modules.values())]
        module = module._modules[name]
    return tuple(found)


class Lent:
    """Passes of a view of a target's layers over the target's own slots, for drafters.

    Committed tokens are there already: nothing is run over a prompt and nothing is stored twice. What a drafter runs
    becomes pending nodes of the rows, which it drops before the target's next pass. Rows are named by their index.
    """

    def __init__(self, session: CachedSession, lm: CachedLM, rows: Mapping[int, int]) -> None:
        self._session, self._rows = session, rows
        self.lm = lm

    def length(self, row: int) -> int:
        """Number of tokens of the row whose keys and values are there."""
        return self._session.length(self._rows[row])

    def extend(self, rows: Sequence[int], tokens: Tensor, parents: Sequence[Sequence[int]]) -> Tensor:
        """ONE pass over new pending nodes; returns logits `[rows, width, vocab]`.

        tokens: `[rows, width]`. parents: for each row its nodes' parents, indices of the row's pending nodes or -1.
        """
        session, numbers = self._session, [self._rows[row] for row in rows]
        own, passes = session.lm, session.passes
        session.lm = self.lm
        try:
            # Not the session's own method, which may hold passes to one width.
            logits, _ = CachedSession.extend(session, numbers, tokens, parents)
        finally:
            session.lm, session.passes = own, passes
        return logits

    def drop(self, rows: Sequence[int]) -> None:
        """Forget all pending nodes of these rows."""
        for row in rows:
            self._session.map.commit(self._rows[row], ())
