"""Compiled passes: a closed set of widths over a few extents, each compiled once and used by every later call."""

from __future__ import annotations

import gc
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.clock import once
from specdec.core.errors import UnsupportedOptionError
from specdec.targets.backend import Backend, processor
from specdec.targets.cached_lm import CachedLM, Inputs
from specdec.targets.compat import min_dtype
from specdec.targets.kv import SlotCache, Write
from specdec.targets.prepacked import PrepackedLM
from specdec.targets.taps import Hooks, Taps

_NO_TAPS = Taps(())

WIDTHS = (1, 8, 16, 32, 64)
"""Nodes of a row in a compiled pass; a pass of fewer is padded, one of more runs as it is. A pass over 16 nodes takes
hardly longer than one over a few, and every width takes a while to compile."""

_FIRST_EXTENT = 256  # slots; further extents double
_SLOTS = 1 << 16  # larger caches run as they are

Pass = Callable[..., tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What one compiled pass is made for. masks, features, inputs: the names of what it takes and hands out.

    packs: its linear layers multiply by packed weights.
    """

    batch: int
    width: int
    extent: int
    dtype: torch.dtype
    masks: tuple[str, ...]
    features: tuple[str, ...]
    inputs: tuple[str, ...]
    packs: bool


class Passes:
    """The compiled passes of one model, kept as long as it lives, for all decoders that use it.

    seconds: what compiling them took. One pass runs at a time: a pass that captures features attaches hooks, which
    another thread's pass would take for a change of the model.
    """

    def __init__(self) -> None:
        self.made: dict[Shape, Pass] = {}
        self.hooks: dict[tuple[str, ...], tuple[Hooks, dict[str, Tensor]]] = {}
        self.seconds = 0.0
        self.lock = threading.RLock()


_PASSES: weakref.WeakKeyDictionary[nn.Module, Passes] = weakref.WeakKeyDictionary()


def seconds() -> float:
    """What compiling passes has taken so far, of all models that are in use."""
    return sum(passes.seconds for passes in _PASSES.values())


class CompiledLM(PrepackedLM):
    """Runs the passes of a `CachedLM` through `torch.compile`, padded to a closed set of static shapes.

    A pass outside the set runs as it is: those over prompts, which have any length, and those wider than the widest.
    On a GPU a compiled pass is a CUDA graph. On a CPU the model's weights are held once more, in the layout of
    its kernels (`Prepacked`).
    """

    widths = WIDTHS
    spare = WIDTHS[2]  # more would double the extent of many short texts, whose rare wider drafts can double it alone
    compiles = True

    @property
    def passes(self) -> Passes:
        return _PASSES.setdefault(self.model, Passes())

    @property
    def _kinds(self) -> tuple[str, ...]:
        """Names of masks: those of layers that see windows are named from the first, or a pass were compiled twice."""
        windows = self.spec.windows
        return tuple(windows) if len(windows) > 1 else ("",)

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
        batch, count = tokens.shape
        width = next((width for width in WIDTHS if width >= count), None)
        extent = _extent(max(cache.plan.capacity, cache.expected) + 1)
        if keep is not None or width is None or extent > _SLOTS or not cache.layers:
            return self.plain.run(tokens, positions, mask, cache, taps, keep, inputs)
        cache.grow(extent)
        masks = mask if isinstance(mask, dict) else dict.fromkeys(self._kinds, mask)
        shape = Shape(batch, width, extent, self.dtype, tuple(masks), taps.names, tuple(inputs or ()), self.packs)
        given = (
            _padded(tokens, width),
            _padded(positions, width),
            {name: self._padded_mask(one, count, shape, cache.plan.extent) for name, one in masks.items()},
            _slots(cache.plan, shape, count, tokens.device),
            [layer.keys for layer in cache.layers],
            [layer.values for layer in cache.layers],
            {name: _padded(values, width) for name, values in (inputs or {}).items()},
        )
        passes = self.passes
        with passes.lock:
            made = passes.made.get(shape)
            out, features = self._first(shape, given) if made is None else self._call(made, shape, given)
        return out[:, :count], {name: values[:, :count] for name, values in features.items()}

    def _call(self, made: Pass, shape: Shape, given: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        if not shape.features:
            return made(self.plain, {}, *given)
        hooks = self.passes.hooks
        if shape.features not in hooks:
            found: dict[str, Tensor] = {}
            hooks[shape.features] = Hooks(self.model, shape.features, partial(_store, found)), found
        attached, found = hooks[shape.features]
        try:
            with attached:
                return made(self.plain, found, *given)
        finally:
            found.clear()  # a pass is traced for an empty one, and is traced again where it is not

    def _first(self, shape: Shape, given: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The first pass of a shape, which compiles it."""
        start = time.perf_counter()
        text = f"compiling passes of {shape.width} nodes over {shape.extent} slots ({self.spec.name})"
        with once(), _uncollected(), _told(text):
            made = _make(shape, self.device)
            try:
                self._call(made, shape, given)
            except Exception as error:
                if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                    raise
                inner = getattr(error, "inner_exception", error)  # what a backend raised
                reason = next(iter(str(inner).strip().splitlines()), type(inner).__name__)
                raise UnsupportedOptionError(
                    f"compile=True: torch could not compile a pass of {self.spec.name}: {reason}. It needs a C++ "
                    "compiler such as g++; or leave compile=False"
                ) from error
        self.passes.seconds += time.perf_counter() - start
        self.passes.made[shape] = made
        return self._call(made, shape, given)  # writes the same once more, and says what a pass takes

    def _padded_mask(self, mask: Tensor | None, count: int, shape: Shape, seen: int) -> Tensor:
        """`[batch, 1, width, extent]`: what `mask` shows, which is all `seen` slots where there is none."""
        size = (shape.batch, 1, shape.width, shape.extent)
        out = torch.full(size, min_dtype(self.dtype), dtype=self.dtype, device=self.device)
        if mask is None:
            out[:, :, :count, :seen] = 0.0  # a single node sees all that is there
        else:
            out[:, :, :count, : mask.shape[-1]] = mask
        out[:, :, count:, 0] = 0.0  # padding sees something, or its softmax would be NaN
        return out


def _store(found: dict[str, Tensor], name: str, take: Callable[[], Any]) -> None:
    found[name] = take()


def _make(shape: Shape, device: torch.device) -> Pass:
    def run(
        lm: CachedLM,
        found: dict[str, Tensor],
        tokens: Tensor,
        positions: Tensor,
        masks: dict[str, Tensor],
        slots: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        inputs: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mask = masks.get("", masks)
        out, _ = lm.run(tokens, positions, mask, SlotCache.over(keys, values, slots), _NO_TAPS, None, inputs)
        return out, {name: found[name] for name in shape.features}

    # A code object of its own: dynamo keeps what it compiled by code object, and only a few for each.
    code = run.__code__.replace(co_name=f"pass_of_{shape.width}_over_{shape.extent}")
    own = types.FunctionType(code, run.__globals__, code.co_name, run.__defaults__, run.__closure__)
    how: dict[str, Any] = {"mode": "reduce-overhead"} if device.type == "cuda" else {}
    if device.type == "cpu":
        processor()  # it finds out while the pass is traced
        how = {"backend": Backend(shape.packs)}
    made: Pass = torch.compile(own, dynamic=False, **how)
    return made


def _extent(slots: int) -> int:
    """The smallest extent of the closed set that holds so many slots, one of which padding writes to."""
    extent = _FIRST_EXTENT
    while extent < slots:
        extent *= 2
    return extent


def _padded(values: Tensor, width: int) -> Tensor:
    """`[batch, count, ...]` to `[batch, width, ...]`, always a new tensor: a slice may have other strides."""
    out = values.new_zeros(values.shape[0], width, *values.shape[2:])
    out[:, : values.shape[1]] = values
    return out


def _slots(plan: Write, shape: Shape, count: int, device: torch.device) -> Tensor:
    """`[batch, width]`: where each node of a pass is written; padding goes to the last slot, which nothing sees."""
    out = torch.full((shape.batch, shape.width), shape.extent - 1, dtype=torch.int64, device=device)
    if plan.start is not None:
        out[:, :count] = torch.arange(plan.start, plan.start + count, device=device)
    else:
        assert plan.slots is not None
        out[:, :count] = plan.slots
    return out


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection: tracing makes many objects that live, and looking through them costs a tenth."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _told(text: str) -> Iterator[None]:
    """Say what takes long: a spinner on a terminal, then what it took."""
    from rich.console import Console

    console, start = Console(stderr=True), time.perf_counter()
    with console.status(f"specdec: {text}"):
        yield
    spent = time.perf_counter() - start
    console.print(f"specdec: {text} took {spent:.0f} s", soft_wrap=True, highlight=False)
