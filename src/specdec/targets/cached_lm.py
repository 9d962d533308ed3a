"""A causal LM with a slot cache: the one way in which specdec runs a model, for targets and for drafters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from specdec.targets.cached_session import CachedSession
from specdec.targets.compat import input_device
from specdec.targets.kv import SlotCache
from specdec.targets.spec import ModelSpec, dtype_of
from specdec.targets.taps import Taps

Inputs = Mapping[str, Tensor]
"""What a pass reads beside its tokens, by name: `[rows, width, ...]`, one entry a node. An LM reads nothing more."""


class CachedLM:
    """A model and the facts about it. Holds nothing of any generation; `open` starts one.

    `run` is the one place where the model is called, so a subclass may run what is no LM, such as a draft head.
    widths: nodes of a row to which passes are padded; wider ones, and all where there are none, run as they are.
    spare: slots for nodes that wait to be judged, by which a cache grows at least. compiles: what it was asked for.
    """

    widths: tuple[int, ...] = ()
    spare = 64
    compiles: bool | str = False

    def __init__(self, model: nn.Module, spec: ModelSpec | None = None) -> None:
        self.model: Any = model
        self.spec = ModelSpec.of(model) if spec is None else spec
        self.dtype = dtype_of(model)

    @property
    def device(self) -> torch.device:
        """Where input ids go, also where layers lie on several devices."""
        return input_device(self.model)

    def open(
        self, prompts: Sequence[Sequence[int]], groups: Sequence[int] | None = None, expected: int = 0
    ) -> CachedSession:
        """Start a generation for these prompts; rows of one group have one prompt and share its slots.

        expected: tokens that the longest row will have in the end, or 0 if unknown; memory grows towards it.
        """
        return CachedSession(self, prompts, range(len(prompts)) if groups is None else groups, expected)

    def compiled(self, how: bool | str = True) -> CachedLM:
        """The same, run as a decoder's `compile` says; what was made for a model is kept as long as the model lives."""
        # Both are made of this class.
        if how == "weights":
            from specdec.targets.prepacked import PrepackedLM

            return PrepackedLM(self)
        from specdec.targets.compiled import CompiledLM

        return CompiledLM(self) if how else self

    def products(self) -> AbstractContextManager[Any]:
        """Inside it, further products, such as those of an LM head beside the model, are made as the passes' are."""
        return nullcontext()

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
        """One pass: what the model says at each node `[batch, width, size]`, logits for an LM, and its features.

        tokens: `[batch, width]`. keep: columns whose logits are wanted, where the model can leave others out.
        """
        constant: dict[str, Any] = {self.spec.cache_name: cache, "use_cache": True, "return_dict": True}
        if keep is not None and self.spec.keeps_logits:
            constant["logits_to_keep"] = keep
        out, features = taps.run(
            self.model, input_ids=tokens, position_ids=positions, attention_mask=mask, **constant, **(inputs or {})
        )
        return out.logits, features
