"""EAGLE-3 head: tokens from states of several layers of the target, fused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specdec.heads.base import target_fields
from specdec.heads.decoder import DecoderHead
from specdec.heads.eagle3_config import Eagle3HeadConfig, default_taps

__all__ = ["Eagle3Head"]


class Eagle3Head(DecoderHead):
    """Guesses tokens directly; its states need not be like any of the target's.

    The first layer's attention reads the normed embedding and the normed state side by side. `fuse` turns the
    target's taps into states; from then on the head reads what it put out itself.
    Source: EAGLE-3 (Li et al., arXiv 2503.01840), section 3.1.
    """

    kind = "eagle3"
    config_class = Eagle3HeadConfig
    config: Eagle3HeadConfig

    def __init__(self, config: Eagle3HeadConfig, draft_ids: Sequence[int] | Tensor | None = None) -> None:
        super().__init__(config, draft_ids)
        taps, size, width = len(config.taps), config.target_hidden_size, config.width

        def norm(over: int) -> nn.Module:
            return LlamaRMSNorm(over, eps=config.rms_norm_eps)

        self.fc = nn.Linear(taps * size, width, bias=config.fc_bias)
        self.input_norm = norm(taps * size) if config.norm_before_fc else None
        self.fc_norm = nn.ModuleList(norm(size) for _ in config.taps) if config.fc_norm else None
        self.norm = norm(width) if config.final_norm else None
        first = self.layers[0]
        first.hidden_norm = norm(width)
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(first.self_attn, name)
            setattr(first.self_attn, name, nn.Linear(2 * width, old.out_features, bias=config.attention_bias))

    @classmethod
    def for_target(cls, model: nn.Module, **options: Any) -> Eagle3Head:
        """As of `DecoderHead`; by default low, middle and high taps, each with a norm of its own."""
        if "taps" not in options:
            options["taps"] = default_taps(target_fields(model)["target_layers"])
        options.setdefault("fc_norm", not options.get("norm_before_fc", False))
        return super().for_target(model, **options)

    @property
    def features(self) -> tuple[str, ...]:
        return self.config.taps

    def fuse(self, features: Tensor) -> Tensor:
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.split(self.config.target_hidden_size, -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(features)

    def run(self, embedded: Tensor, states: Tensor, shared: dict[str, Any]) -> Tensor:
        first: Any = self.layers[0]
        normed = first.hidden_norm(states)
        out, _ = first.self_attn(torch.cat([first.input_layernorm(embedded), normed], -1), **shared)
        out = out + (normed if self.config.norm_before_residual else states)
        out = out + first.mlp(first.post_attention_layernorm(out))
        for layer in self.layers[1:]:
            out = layer(out, **shared)
        return self.norm(out) if self.norm is not None and self.config.norm_output else out

    def lm_input(self, states: Tensor) -> Tensor:
        return states if self.norm is None or self.config.norm_output else self.norm(states)
