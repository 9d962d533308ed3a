"""Linear layers over weights in the layout of their kernels, in which each weight is kept once, beside the model's own.

On a CPU a product of a few states and a matrix spends an eighth of its time on bringing the matrix into the layout of
the kernel. The copies belong to no compiled pass: all of them share these, and torch can keep the passes on disk.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from specdec.core.mark import mark
from specdec.targets.cached_lm import CachedLM, Inputs
from specdec.targets.kv import SlotCache
from specdec.targets.taps import Taps

_FEW = 16  # rows that the layout is best for
_PLAIN = (Tensor, nn.Parameter, FakeTensor)  # the last are those of a traced pass
_SAMPLE = 1024  # elements of a weight by which it is known again


_Weights = Sequence[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Packed:
    """A packed copy of weights, one below the other, and what they were when it was made.

    guards: they remove it from `_packed` when a weight goes.
    """

    marks: list[tuple[int, int]]
    samples: list[Tensor]
    copy: Tensor
    guards: list[weakref.ref[Tensor]]

    def is_of(self, weights: _Weights) -> bool:
        """Whether the weights are still what was packed, as far as a sample of their elements tells."""
        same = all(torch.equal(old, _sample(weight)) for old, weight in zip(self.samples, weights, strict=True))
        return same and self.marks == list(map(mark, weights))


_LIBRARY = torch.library.Library("specdec", "FRAGMENT")  # no DEF, which may be there once: modules are reloaded
_LIBRARY.define("linear(Tensor states, Tensor[] weights, Tensor? bias) -> Tensor")
_packed: dict[tuple[int, ...], _Packed] = {}  # by the identities of the weights
_part_of: dict[int, tuple[int, ...]] = {}  # of each weight, by its identity, the one entry that holds a copy of it


def _linear(states: Tensor, weights: _Weights, bias: Tensor | None) -> Tensor:
    made = _packed.get(tuple(map(id, weights)))
    if made is None or made.marks != list(map(mark, weights)):
        made = _pack(weights)
    out: Tensor = _product(states, made.copy, bias, "none", [], "")
    return out


def _pack(weights: _Weights) -> _Packed:
    name = tuple(map(id, weights))

    def gone(_: object) -> None:
        _forget(name)

    for part in name:  # adapters join other products each; none of them may leave a copy of the large ones behind
        _forget(_part_of.get(part, name))
    whole = weights[0].detach() if len(weights) == 1 else torch.cat([weight.detach() for weight in weights])
    copy = torch.ops.mkldnn._reorder_linear_weight(whole, _FEW)
    guards = [weakref.ref(weight, gone) for weight in weights]
    made = _packed[name] = _Packed([*map(mark, weights)], [*map(_sample, weights)], copy, guards)
    _part_of.update(dict.fromkeys(name, name))
    return made


def _forget(name: tuple[int, ...]) -> None:
    _packed.pop(name, None)
    for part in name:
        if _part_of.get(part) == name:
            del _part_of[part]


def _sample(weight: Tensor) -> Tensor:
    """A few elements as they are in memory, so that a NaN is equal to itself."""
    flat = weight.detach().flatten()
    step = max(1, flat.numel() // _SAMPLE)
    while math.gcd(step, weight.shape[-1]) > 1:  # else only some of its columns would be seen
        step -= 1
    return flat[::step].clone().view(torch.int32 if flat.element_size() == 4 else torch.int16)


def _shape_of(states: Tensor, weights: _Weights, bias: Tensor | None) -> Tensor:
    return states.new_empty(*states.shape[:-1], sum(len(weight) for weight in weights))


_LIBRARY.impl("linear", _linear, "CPU")
torch.library.register_fake("specdec::linear", _shape_of, lib=_LIBRARY)
_product = torch.ops.mkldnn._linear_pointwise.default
linear = torch.ops.specdec.linear.default
"""`functional.linear` of states by weights one below the other, and a bias or None: the products side by side."""


class Prepacked(TorchFunctionMode):
    """Inside it, products with a model's weights on a CPU are those of `specdec::linear`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear and not kwargs:
            states, weight, bias = args if len(args) == 3 else (*args, None)
            if packs(states, weight, bias):
                return linear(states, [weight], bias)
        return func(*args, **kwargs)


class PrepackedLM(CachedLM):
    """A `CachedLM` whose linear layers multiply by packed weights, prompts included; no shape is padded or compiled.

    One is made for a generation, which is when packed copies are compared with the weights: a write that torch does not
    count, as through `.data`, is seen then, if it changed any of the sampled elements.
    """

    compiles: bool | str = "weights"

    def __init__(self, plain: CachedLM) -> None:
        self.plain = plain
        self.model, self.spec, self.dtype = plain.model, plain.spec, plain.dtype
        parameters = list(self.model.parameters())
        # Weights that are brought in for every pass, as accelerate does with offloaded ones, would be packed in each.
        self._stay = not any(parameter.is_meta for parameter in parameters)
        own = {id(parameter): parameter for parameter in parameters}
        for name, made in list(_packed.items()):
            weights = [own[part] for part in name if part in own]
            ours = len(weights) == len(name)
            if ours and not (all(map(packable, weights)) and made.is_of(weights)):
                _forget(name)

    @property
    def packs(self) -> bool:
        """Whether the next pass multiplies by packed weights; under autocast it has other number types."""
        return self._stay and not torch.is_autocast_enabled("cpu")

    @property
    def device(self) -> torch.device:
        return self.plain.device

    def products(self) -> AbstractContextManager[Any]:
        return Prepacked() if self.packs else nullcontext()

    def compiled(self, how: bool | str = True) -> CachedLM:
        return self.plain.compiled(how)

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
        with self.products():
            return self.plain.run(tokens, positions, mask, cache, taps, keep, inputs)


def packs(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `linear` takes these: states and a bias of the type of a weight that is packable."""
    if type(states) not in _PLAIN or not packable(weight):
        return False
    return states.dtype == weight.dtype and states.device.type == "cpu" and _fits(bias, weight)


def packable(weight: Tensor) -> bool:
    """Whether it is a model's own plain parameter, of a number type for which there are kernels, on a CPU.

    A weight made for one pass is none, and nor is one of a type of its own, such as a quantised one.
    """
    if type(weight) not in _PLAIN or not isinstance(weight, nn.Parameter):
        return False
    if torch.is_grad_enabled() and weight.requires_grad:
        return False
    return weight.device.type == "cpu" and weight.dtype in _DTYPES and weight.dim() == 2 and weight.numel() > 0


def _fits(bias: Tensor | None, weight: Tensor) -> bool:
    """The kernel takes a bias by its address: a row of the weight's type, one number after another."""
    if bias is None:
        return True
    alike = bias.dtype == weight.dtype and bias.device == weight.device
    return alike and bias.shape == weight.shape[:1] and bias.is_contiguous()


def _dtypes() -> frozenset[torch.dtype]:
    """Number types for which this machine has kernels over packed weights."""
    if not torch.backends.mkldnn.is_available():
        return frozenset()
    halves = {torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else set()
    return frozenset({torch.float32} | halves)


_DTYPES = _dtypes()
