"""Config of EAGLE heads, and the sizes of all heads with decoder layers. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from specdec.heads.config import HeadConfig

__all__ = ["DecoderHeadConfig", "EagleHeadConfig"]


class DecoderHeadConfig(HeadConfig):
    """Sizes of a head that is made of Llama decoder layers, in the words of transformers' LlamaConfig."""

    intermediate_size: int = Field(ge=1, description="Width of the layers' MLP.")
    num_attention_heads: int = Field(ge=1, description="Attention heads.")
    num_key_value_heads: int | None = Field(default=None, ge=1, description="Key and value heads; null: as many.")
    head_dim: int | None = Field(default=None, ge=1, description="Width of an attention head; null: hidden / heads.")
    num_hidden_layers: int = Field(default=1, ge=1, description="Decoder layers.")
    hidden_act: str = Field(default="silu", description="Activation of the MLP.")
    rms_norm_eps: float = Field(default=1e-6, gt=0, description="Epsilon of the norms.")
    max_position_embeddings: int = Field(default=2048, ge=1, description="Positions that the head was trained for.")
    rope_parameters: dict[str, Any] = Field(
        default={"rope_type": "default", "rope_theta": 10000.0},
        description="Rotary embedding of the head itself, which is not that of the target.",
    )
    attention_bias: bool = Field(default=False, description="Whether the attention's projections have a bias.")
    mlp_bias: bool = Field(default=False, description="Whether the MLP's projections have a bias.")
    qk_norm: bool = Field(default=False, description="Whether queries and keys are normed by head, as in Qwen3.")
    fc_bias: bool = Field(default=False, description="Whether `fc` has a bias.")
    embed_scale: float = Field(
        default=1.0, gt=0, description="Factor on token embeddings: tied ones are far smaller than features."
    )
    own_embed: bool = Field(default=False, description="Whether the head has token embeddings of its own.")
    own_lm_head: bool = Field(default=False, description="Whether the head has an LM head of its own.")

    @property
    def width(self) -> int:
        """Width of the head's states."""
        return self.target_hidden_size

    @model_validator(mode="after")
    def _check_heads(self) -> DecoderHeadConfig:
        if self.num_attention_heads % (self.num_key_value_heads or self.num_attention_heads):
            raise ValueError(
                f"{self.num_attention_heads} heads cannot share {self.num_key_value_heads} heads of keys and values"
            )
        if self.head_dim is None and self.width % self.num_attention_heads:
            raise ValueError(
                f"a hidden size of {self.width} does not divide into {self.num_attention_heads} heads: give head_dim"
            )
        return self


class EagleHeadConfig(DecoderHeadConfig):
    """What an EAGLE head is: serves the drafters `eagle` and `eagle2`."""

    kind: Literal["eagle"] = Field(default="eagle", description="Kind of the head.")
