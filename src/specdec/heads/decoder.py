"""What EAGLE heads share: decoder layers of transformers' Llama over pairs of a state and the token after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specdec.heads.base import Head, target_fields
from specdec.heads.eagle_config import DecoderHeadConfig
from specdec.targets import compat

_CACHE = compat.cache_keyword(compat.parameters(LlamaAttention)) or "cache"
_Self = TypeVar("_Self", bound="DecoderHead")


class DecoderHead(Head):
    """A head that runs along a sequence, one state a token: `head(tokens, states) -> states`.

    The token of a pair is the one after its state: the pair of position t is (x[t+1], state t), and its output stands
    for the state at t + 1, whose `logits` guess x[t+2]. So its cache holds one entry fewer than there are tokens.
    """

    config: DecoderHeadConfig
    config_class: ClassVar[type[DecoderHeadConfig]]

    def __init__(self, config: DecoderHeadConfig, draft_ids: Sequence[int] | Tensor | None = None) -> None:
        super().__init__(config, draft_ids)
        self.layer_config = layer_config(config)
        layer: Any = Qwen3DecoderLayer if config.qk_norm else LlamaDecoderLayer
        self.layers = nn.ModuleList(layer(self.layer_config, index) for index in range(config.num_hidden_layers))
        self.rotary_emb = LlamaRotaryEmbedding(self.layer_config)
        self.embed_tokens = nn.Embedding(config.target_vocab_size, config.width) if config.own_embed else None
        self.lm_head = nn.Linear(config.width, self.vocab_size, bias=False) if config.own_lm_head else None

    @classmethod
    def for_target(
        cls: type[_Self],
        model: nn.Module,
        *,
        draft_ids: Sequence[int] | Tensor | None = None,
        name: str = "",
        tokenizer: str | None = None,
        **options: Any,
    ) -> _Self:
        """A fresh head for a transformers model, bound to it, in its dtype and on its device.

        Its layers have the sizes of the model's own; `options` are fields of the head's config that say otherwise.
        draft_ids: target ids of a trimmed draft vocabulary. name: that of the model, if not the one it was loaded
        under. tokenizer: its fingerprint. Embeddings and LM head of the head's own, where asked for, begin as copies.
        """
        text = model.config.get_text_config(decoder=True)  # type: ignore[union-attr,operator]
        fields = target_fields(model, name) | {
            "draft_vocab_size": None if draft_ids is None else len(draft_ids),
            "tokenizer": tokenizer,
            "intermediate_size": getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            "num_attention_heads": text.num_attention_heads,
            "num_key_value_heads": getattr(text, "num_key_value_heads", None),
            "head_dim": getattr(text, "head_dim", None),
            "rms_norm_eps": getattr(text, "rms_norm_eps", None) or 1e-6,
            "max_position_embeddings": getattr(text, "max_position_embeddings", None) or 2048,
        }
        lm_head: Any = model.get_output_embeddings()  # type: ignore[operator]
        embed: Any = model.get_input_embeddings()  # type: ignore[operator]
        head = cls(cls.config_class(**{**fields, **options}), draft_ids)
        head = head.to(device=lm_head.weight.device, dtype=lm_head.weight.dtype)
        head.bind(embed, lm_head)
        with torch.no_grad():
            if head.embed_tokens is not None and embed.weight.shape == head.embed_tokens.weight.shape:
                head.embed_tokens.weight.copy_(embed.weight)
            if head.lm_head is not None and lm_head.weight.shape[1] == head.lm_head.in_features:
                head.lm_head.weight.copy_(lm_head.weight if head.draft_ids is None else lm_head.weight[head.draft_ids])
        return head

    def fuse(self, features: Tensor) -> Tensor:
        """The target's `features`, side by side `[..., sizes]`, as states `[..., width]`."""
        return features

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """`tokens` `[batch, n]`, each one ahead of its state, and `states` `[batch, n, width]` to `[batch, n, width]`.

        position_ids: `[batch or 1, n]` of the states; by default 0, 1, ... attention_mask: additive,
        `[batch or 1, 1, n, keys]`; None is causal. cache: transformers' cache of keys and values.
        """
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device)[None]
        rotary = self.rotary_emb(states, position_ids)
        shared = {"attention_mask": attention_mask, "position_embeddings": rotary, _CACHE: cache}
        return self.run(self.embedded(tokens, states), states, shared)

    def run(self, embedded: Tensor, states: Tensor, shared: dict[str, Any]) -> Tensor:
        """The layers over fused inputs; `shared` are the arguments that every layer and its attention take."""
        raise NotImplementedError

    def embedded(self, tokens: Tensor, like: Tensor) -> Tensor:
        """Scaled embeddings `[batch, n, width]` in the dtype of `like`."""
        # The target's embedding is frozen: what trains a head must not gather gradients there.
        found = self.embed(tokens).detach() if self.embed_tokens is None else self.embed_tokens(tokens)
        found = found.to(device=like.device, dtype=like.dtype)
        return found if self.config.embed_scale == 1.0 else found * self.config.embed_scale

    def lm_input(self, states: Tensor) -> Tensor:
        """What the LM head multiplies: the states, normed where the head has a norm for that."""
        return states

    def lm_rows(self) -> tuple[Tensor, Tensor | None]:
        return super().lm_rows() if self.lm_head is None else (self.lm_head.weight, None)

    def logits(self, states: Tensor) -> Tensor:
        states = self.lm_input(states)
        return super().logits(states) if self.lm_head is None else self.lm_head(states)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DecoderHead:
        # Rotary frequencies stay as they are in a head that is moved to bfloat16: rounded, they would turn
        # far positions by whole radians.
        exact = dict(self.rotary_emb.named_buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, values in exact.items():
            setattr(self.rotary_emb, name, values.to(getattr(self.rotary_emb, name).device))
        return self


def layer_config(config: DecoderHeadConfig) -> PretrainedConfig:
    """The config of the head's layers, as transformers knows it."""
    # Qwen3's layers are Llama's with norms of queries and keys, and have no biases in the MLP.
    family: Any = Qwen3Config if config.qk_norm else LlamaConfig
    return family(
        hidden_size=config.width,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim or config.width // config.num_attention_heads,
        hidden_act=config.hidden_act,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.rope_parameters),
        attention_bias=config.attention_bias,
        **({} if config.qk_norm else {"mlp_bias": config.mlp_bias}),
        vocab_size=config.target_vocab_size,
        attn_implementation="sdpa",
    )
