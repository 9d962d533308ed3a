"""Linear layers over weights in the layout of their kernels, in which each weight is kept once, beside the model's own.

On a CPU a product of a few states and a matrix spends an eighth of its time on bringing the matrix into the layout of
the kernel. The copies belong to no compiled pass: all of them share these, and torch can keep the passes on disk.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
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
_PLAIN = (Tensor, nn.Parameter)
_SAMPLE = 1024  # elements of a weight by which it is known again


@dataclass(frozen=True, slots=True, eq=False)
class _Packed:
    """A packed copy, and what its weight was when it was made."""

    mark: tuple[int, int]
    sample: Tensor
    copy: Tensor

    def is_of(self, weight: Tensor) -> bool:
        """Whether the weight is still what was packed, as far as a sample of its elements tells."""
        return self.mark == mark(weight) and torch.equal(self.sample, _sample(weight))


_LIBRARY = torch.library.Library("specdec", "FRAGMENT")  # no DEF, which may be there once: modules are reloaded
_LIBRARY.define("linear(Tensor states, Tensor weight, Tensor? bias) -> Tensor")
_packed: Any = WeakIdKeyDictionary()  # weight to its `_Packed`; entries go with their weights


def _linear(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made, now = _packed.get(weight), mark(weight)
    if made is None or made.mark != now:
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _FEW)
        made = _packed[weight] = _Packed(now, _sample(weight), copy)
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(states, made.copy, bias, "none", [], "")
    return out


def _sample(weight: Tensor) -> Tensor:
    """A few elements as they are in memory, so that a NaN is equal to itself."""
    flat = weight.detach().flatten()
    step = max(1, flat.numel() // _SAMPLE)
    return flat[::step].clone().view(torch.int32 if flat.element_size() == 4 else torch.int16)


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
        if func is functional.linear and not kwargs:
            states, weight, bias = args if len(args) == 3 else (*args, None)
            if _packs(states, weight) and _fits(bias, weight):
                return _linear_op(states, weight, bias)
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
        for weight in parameters:
            made = _packed.get(weight)
            if made is not None and not (_packs(weight, weight) and made.is_of(weight)):
                del _packed[weight]

    @property
    def packs(self) -> bool:
        """Whether the next pass multiplies by packed weights; under autocast it has other number types."""
        return self._stay and not torch.is_autocast_enabled("cpu")

    @property
    def device(self) -> torch.device:
        return self.plain.device

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
        with Prepacked() if self.packs else nullcontext():
            return self.plain.run(tokens, positions, mask, cache, taps, keep, inputs)


def _packs(states: Tensor, weight: Tensor) -> bool:
    if (
        type(weight) is not nn.Parameter
        or type(states) not in _PLAIN
        or (torch.is_grad_enabled() and weight.requires_grad)
    ):
        return False
    alike = states.dtype == weight.dtype and states.device.type == weight.device.type == "cpu"
    return alike and weight.dtype in _DTYPES and weight.dim() == 2 and weight.numel() > 0


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


_DTYPES = _dtypes()  # asked once: a traced pass cannot ask
