"""EAGLE head: the next feature from a feature and the token one step ahead of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec.heads.decoder import DecoderHead
from specdec.heads.eagle_config import EagleHeadConfig

__all__ = ["EagleHead"]


class EagleHead(DecoderHead):
    """Guesses the target's feature after the next token; the target's own LM head turns it into a token.

    `fc` joins the token's embedding and the feature, one decoder layer follows, without a norm before its attention
    and without one at the end: what comes out is like the feature that the LM head reads.
    Source: EAGLE (Li et al., arXiv 2401.15077), section 4.1; EAGLE-2 uses the same head.
    """

    kind = "eagle"
    config_class = EagleHeadConfig
    config: EagleHeadConfig

    def __init__(self, config: EagleHeadConfig, draft_ids: Sequence[int] | Tensor | None = None) -> None:
        super().__init__(config, draft_ids)
        self.fc = nn.Linear(2 * config.width, config.width, bias=config.fc_bias)
        self.layers[0].input_layernorm = nn.Identity()

    def run(self, embedded: Tensor, states: Tensor, shared: dict[str, Any]) -> Tensor:
        out = self.fc(torch.cat([embedded, states], -1))
        for layer in self.layers:
            out = layer(out, **shared)
        return out
