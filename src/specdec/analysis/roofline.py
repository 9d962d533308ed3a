"""Roofline: what a pass takes on a machine, from sizes and data-sheet figures alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.analysis.checked import Numbers, counts, numbers

__all__ = ["Machine", "ModelSize", "cost_ratio", "free_tokens", "pass_seconds", "roofline_speedup"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine can do, from its data sheet, or measured.

    flops: floating-point operations a second in the dtype of the weights. bandwidth: bytes a second from the memory
    that holds the weights. overhead: seconds of a pass that depend on neither, such as kernel launches.
    """

    flops: float
    bandwidth: float
    overhead: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a positive number")
        numbers(self.overhead, "overhead", least=0.0)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What of a model decides how long a pass takes.

    parameters: weights that a pass multiplies by: with the LM head, without the embedding table. bytes: of one weight.
    cache: bytes of keys and values that each token of the context adds to what is read; 0 leaves the context out.
    """

    parameters: float
    bytes: float = 2.0
    cache: float = 0.0

    def __post_init__(self) -> None:
        for name in ("parameters", "bytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a positive number")
        numbers(self.cache, "cache", least=0.0)

    @classmethod
    def of(cls, model: Any) -> ModelSize:
        """The size of a causal LM of transformers, all of whose weights take part in every pass."""
        weights = {id(weight): weight for weight in model.parameters()}
        table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        if table is not head:
            weights.pop(id(table), None)  # looked up, not multiplied by
        count = sum(weight.numel() for weight in weights.values())
        size = sum(weight.numel() * weight.element_size() for weight in weights.values()) / count
        config = model.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(count, size, 2.0 * config.num_hidden_layers * heads * width * head.element_size())


def pass_seconds(model: ModelSize, machine: Machine, tokens: Numbers = 1, context: Numbers = 0) -> Tensor:
    """Seconds of a pass over `tokens` tokens in all rows together: the slower of reading and computing, float64.

    Reading: all weights once, and keys and values of `context` tokens (of all rows together). Computing: 2 operations
    a weight and token. An estimate from below, which real kernels come to within a factor of a few.
    Source: Williams, Waterman and Patterson, "Roofline", 2009. Raises ValueError for negative sizes.
    """
    n, length = counts(tokens, "tokens"), counts(context, "context")
    reading = (model.parameters * model.bytes + model.cache * length) / machine.bandwidth
    computing = 2.0 * model.parameters * n / machine.flops
    return torch.maximum(*torch.broadcast_tensors(reading, computing)) + machine.overhead


def free_tokens(model: ModelSize, machine: Machine, context: Numbers = 0) -> Tensor:
    """How many tokens a pass may hold, in all rows together, before it takes longer than one over a single token.

    Where reading and computing take equally long: flops * bytes / (2 * bandwidth) tokens for a model without
    context. float64, not rounded.
    """
    length = counts(context, "context")
    reading = (model.parameters * model.bytes + model.cache * length) / machine.bandwidth
    return reading * machine.flops / (2.0 * model.parameters)


def cost_ratio(draft: ModelSize, target: ModelSize, machine: Machine, context: Numbers = 0) -> Tensor:
    """What a pass of the draft model over one token costs, in passes of the target over one: c of the formulas."""
    return pass_seconds(draft, machine, 1, context) / pass_seconds(target, machine, 1, context)


def roofline_speedup(
    tokens_per_pass: Numbers,
    nodes: Numbers,
    target: ModelSize,
    machine: Machine,
    *,
    draft_seconds: Numbers = 0.0,
    rows: Numbers = 1,
    context: Numbers = 0,
) -> Tensor:
    """Speed in units of plain decoding where a round verifies `nodes` drafted nodes a row, float64.

    tokens_per_pass: emitted a row and round. draft_seconds: of drafting, a round. rows: of the batch. context: tokens
    of all rows together. Falls below 1 where a batch leaves no computing over for guesses.
    Raises ValueError for negative sizes.
    """
    batch = counts(rows, "rows", least=1)
    plain = pass_seconds(target, machine, batch, context)
    verified = pass_seconds(target, machine, batch * (counts(nodes, "nodes") + 1.0), context)
    return (
        numbers(tokens_per_pass, "tokens_per_pass", 0.0)
        * plain
        / (verified + numbers(draft_seconds, "draft_seconds", 0.0))
    )
