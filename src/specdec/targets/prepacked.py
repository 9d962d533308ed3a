"""Linear layers over weights in the layout of their kernels, in which each weight is kept once, beside the model's own.

On a CPU a product of a few states and a matrix spends an eighth of its time on bringing the matrix into the layout of
the kernel. The copies belong to no compiled pass: all of them share these, and torch can keep the passes on disk.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from specdec.core.mark import mark
from specdec.targets.cached_lm import CachedLM, Inputs
from specdec.targets.kv import SlotCache
from specdec.targets.taps import Taps

_FEW = 16  # rows that the layout is best for

_LIBRARY = torch.library.Library("specdec", "DEF")
_LIBRARY.define("linear(Tensor states, Tensor weight, Tensor? bias) -> Tensor")
_packed: Any = WeakIdKeyDictionary()  # weight to (mark of its contents, packed copy); entries go with their weights


def _linear(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made = _packed.get(weight)
    now = mark(weight)
    if made is None or made[0] != now:
        made = _packed[weight] = now, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _FEW)
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(states, made[1], bias, "none", [], "")
    return out


def _shape_of(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return states.new_empty(*states.shape[:-1], weight.shape[0])


_LIBRARY.impl("linear", _linear, "CPU")
torch.library.register_fake("specdec::linear", _shape_of, lib=_LIBRARY)
_linear_op = torch.ops.specdec.linear.default


class Prepacked(TorchFunctionMode):
    """Inside it, products with a model's weights on a CPU are those of `specdec::linear`, in traced passes too.

    Taken are parameters, which are there again with the next pass; a weight made for one pass stays as it is, and so
    do weights of a type of their own, such as quantised ones.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear and not kwargs and _packs(args[0], args[1]):
            return _linear_op(args[0], args[1], args[2] if len(args) > 2 else None)
        return func(*args, **kwargs)


class PrepackedLM(CachedLM):
    """A `CachedLM` whose linear layers multiply by packed weights, prompts included; no shape is padded or compiled."""

    compiles: bool | str = "weights"

    def __init__(self, plain: CachedLM) -> None:
        self.plain = plain
        self.model, self.spec, self.dtype = plain.model, plain.spec, plain.dtype
        # Weights that are brought in for every pass, as accelerate does with offloaded ones, would be packed in each.
        self._packs = not any(parameter.is_meta for parameter in self.model.parameters())

    @property
    def device(self) -> torch.device:
        return self.plain.device

    def compiled(self, how: bool | str = True) -> CachedLM:
        return self

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Any,
        cache: SlotCache,
        taps: Taps,
        keep: Tensor | None,
        inputs: Inputs | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with Prepacked() if self._packs else nullcontext():
            return self.plain.run(tokens, positions, mask, cache, taps, keep, inputs)


def _packs(states: Tensor, weight: Tensor) -> bool:
    alike = states.dtype == weight.dtype and states.device.type == weight.device.type == "cpu"
    return alike and isinstance(weight, nn.Parameter) and weight.dtype in _DTYPES


def _dtypes() -> frozenset[torch.dtype]:
    """Number types for which this machine has kernels over packed weights."""
    if not torch.backends.mkldnn.is_available():
        return frozenset()
    halves = {torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else set()
    return frozenset({torch.float32} | halves)


_DTYPES = _dtypes()  # asked once: a traced pass cannot ask
