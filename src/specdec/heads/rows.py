"""Which way of running many rows a model allows."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from specdec.heads.packed import Chunk, PackedRows
from specdec.heads.padded import PaddedRows
from specdec.targets.spec import ModelSpec

__all__ = ["Rows", "fastest_rows"]

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
COARSE = 0.15  # of the logits' spread, for number types of two bytes


class Rows(Protocol):
    """Rows of tokens of which each pass runs the new ones."""

    rows: int

    def run(self, chunks: Any) -> Tensor:
        """Logits `[chunks, vocab]` after each chunk's last token."""
        ...

    def release(self, row: int) -> None:
        """The row's tokens are needed no more."""
        ...


@torch.inference_mode()
def fastest_rows(model: Any, rows: int) -> Rows:
    """`PackedRows` where they give the logits of a plain pass over a few tokens, else `PaddedRows`.

    The model's attention is replaced in the first case; in the second the model is as it was. Raises
    UnsupportedModelError for a model that specdec cannot decode.
    """
    spec = ModelSpec.of(model)
    own = model.config._attn_implementation
    if any(size is not None for size in spec.windows.values()) or not spec.keeps_logits:
        return PaddedRows(model, rows)
    ids = [(7 * i + 3) % spec.vocab_size for i in range(9)]
    plain = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, [4, 7, 8]]
    try:
        packed = PackedRows(model, rows, spec.cache_name)
        last = rows - 1
        found = [packed.run([Chunk(last, ids[:5], 0)])[0], packed.run([Chunk(last, ids[5:8], 5)])[0]]
        found.append(packed.run([Chunk(last, ids[8:], 8)])[0])
        packed.release(last)
        apart = (torch.stack(found) - plain).abs().max() / plain.float().std().clamp_min(1e-12)
        fits = bool(apart < TOLERANCE.get(plain.dtype, COARSE))
    except Exception:  # another attention interface, or none: what a model's code raises there is its own affair
        fits = False
    if fits:
        return packed
    model.set_attn_implementation(own)
    return PaddedRows(model, rows)
