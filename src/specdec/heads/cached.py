"""A draft head run with the slot cache of targets and draft models: batches, trees and groups as theirs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdec.heads.decoder import DecoderHead
from specdec.targets.cached_lm import CachedLM, Inputs
from specdec.targets.kv import SlotCache
from specdec.targets.spec import ModelSpec
from specdec.targets.taps import Taps


class CachedHead(CachedLM):
    """Runs a head that is bound to a target. A pass reads `inputs["states"]` `[rows, width, size]` beside the tokens.

    What it says at a node is the head's state, not logits: `head.logits` makes those, of the states that need them.
    A session's entry t is the pair (token t + 1, state t), so it holds one entry fewer than the text has tokens.
    """

    def __init__(self, head: DecoderHead) -> None:
        spec = ModelSpec(
            name=f"{head.kind} head",
            cache_name="cache",
            keeps_logits=False,
            windows={"full_attention": None},
            takes_mask=True,
            vocab_size=head.config.target_vocab_size,
        )
        super().__init__(head, spec)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

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
        assert inputs is not None
        states = self.model(tokens, inputs["states"], position_ids=positions, attention_mask=mask, cache=cache)
        return states, {}
