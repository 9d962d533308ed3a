"""Reader of EAGLE-1, EAGLE-2 and HASS checkpoints, which share one layout, and of its early serialisations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from specdec.core.errors import CheckpointError
from specdec.heads.formats.conventions import Conventions
from specdec.heads.formats.format import Format
from specdec.heads.formats.layers import base_name, head_dim, layer_fields, with_output_bias
from specdec.heads.formats.names import split_fused
from specdec.heads.formats.plan import Plan

__all__ = ["read_eagle"]

_NORMS = ("embedding_layernorm.weight", "hidden_states_layernorm.weight", "pre_lm_head_layernorm.weight")


def read_eagle(
    form: Format, config: Mapping[str, Any], weights: Mapping[str, Tensor], conventions: Conventions, where: str
) -> Plan:
    """Biases by presence, embeddings where there are some, no norm before the first layer's attention."""
    inner = config.get("transformer_layer_config") or config.get("model")
    config = {**config, **(inner if isinstance(inner, Mapping) else {})}
    if form.name == "eagle-speculators":
        weights = {
            name.replace("fusion_fc.", "fc.").replace("transformer.", "layers.0."): value
            for name, value in weights.items()
        }
    if found := [name for name in _NORMS if name in weights]:
        raise CheckpointError(f"{where}: it has {', '.join(found)}, norms that specdec's EAGLE head does not have")
    weights = split_fused(weights, config.get("num_attention_heads") or 1, head_dim(config), where)
    if "fc.weight" not in weights:
        raise CheckpointError(f"{where}: fc.weight is missing")
    fields, remarks = layer_fields(config, weights, where)
    fields |= {"fc_bias": "fc.bias" in weights}
    fields |= {"own_embed": "embed_tokens.weight" in weights, "own_lm_head": "lm_head.weight" in weights}
    said = config.get("bias", config.get("eagle_fc_bias"))
    if said is not None and bool(said) != fields["fc_bias"]:
        remarks.append(
            f"its config says bias {said}, and there is {'one' if fields['fc_bias'] else 'none'} in its weights"
        )
    vocab = config.get("vocab_size")
    if fields["own_embed"]:
        vocab = int(weights["embed_tokens.weight"].shape[0])
    return Plan(
        "eagle",
        fields,
        with_output_bias(weights, fields["attention_bias"]),
        hidden_size=int(weights["fc.weight"].shape[0]),
        vocab_size=vocab if isinstance(vocab, int) else None,
        base=base_name(config),
        remarks=tuple(remarks),
    )
