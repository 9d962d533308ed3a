"""Readers of Medusa checkpoints: every layout becomes stacked blocks and, where it has them, stacked LM heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specdec.core.errors import CheckpointError
from specdec.heads.formats.conventions import Conventions
from specdec.heads.formats.format import Format
from specdec.heads.formats.plan import Plan

__all__ = ["read_medusa"]

_BLOCK = re.compile(r"(?:(\d+)\.(\d+)\.linear|blocks\.(\d+)\.layers\.(\d+))\.(weight|bias)")
_LM = re.compile(r"(\d+)\.\d+\.weight|lm_heads\.(\d+)\.weight|lm_head\.weight")
_PREFIX = re.compile(r"^medusa_heads?\.")


def read_medusa(
    form: Format, config: Mapping[str, Any], weights: Mapping[str, Tensor], conventions: Conventions, where: str
) -> Plan:
    """Heads, blocks and vocabulary are counted from the weights; raises CheckpointError for any tensor too many."""
    remarks: list[str] = []
    if form.name == "medusa-2":
        remarks.append("its heads were trained along with the model in its own files: that model is their target")
    blocks: dict[tuple[int, int, str], Tensor] = {}
    lm: dict[int | None, Tensor] = {}
    unknown: list[str] = []
    for stored, value in weights.items():
        name = _PREFIX.sub("", stored)
        if match := _BLOCK.fullmatch(name):
            numbers = [int(part) for part in match.groups()[:4] if part is not None]
            blocks[numbers[0], numbers[1], match[5]] = value
        elif match := _LM.fullmatch(name):
            number = match[1] or match[2]
            lm[None if number is None else int(number)] = value
        elif name != "token_map":
            unknown.append(f"{stored} is not known")
    heads = 1 + max((head for head, _, _ in blocks), default=-1)
    depth = 1 + max((layer for _, layer, _ in blocks), default=-1)
    missing = [
        f"block {layer} of head {head} is missing"
        for head in range(heads)
        for layer in range(depth)
        if (head, layer, "weight") not in blocks
    ]
    if config.get("original_lm_head") and set(lm) == {0}:
        lm = {None: lm[0]}  # vLLM's other spelling of one for all
    if lm and None not in lm:
        missing += [f"the LM head of head {head} is missing" for head in range(heads) if head not in lm]
        unknown += [f"an LM head {head} of {heads} heads is not known" for head in lm if head not in range(heads)]
    elif len(lm) > 1:
        unknown.append("LM heads of single heads beside a shared one are not known")
    biased = any(part == "bias" for _, _, part in blocks)
    if biased:
        missing += [
            f"the bias of block {layer} of head {head} is missing"
            for head in range(heads)
            for layer in range(depth)
            if (head, layer, "bias") not in blocks
        ]
    if not heads:
        missing.append("there is no block of any head")
    if found := missing + unknown:
        raise CheckpointError(f"{where}: these are not the weights of Medusa heads: {'; '.join(found[:8])}")
    size = int(blocks[0, 0, "weight"].shape[-1])
    stack = _stacked(blocks, heads, depth, "weight", [size, size], where)
    bias = _stacked(blocks, heads, depth, "bias", [size], where) if biased else torch.zeros(stack.shape[:-1])
    out = {"weight": stack, "bias": bias.to(stack.dtype)}
    rows = _lm_heads(lm, heads, size, where)
    said = config.get("medusa_num_heads", config.get("num_heads"))
    if isinstance(said, int) and said != heads:
        remarks.append(f"its config says {said} heads, its weights hold {heads}")
    vocab = config.get("vocab_size")
    if rows is not None:
        ids = weights.get("token_map")
        if ids is not None:
            order = _order(ids, rows.shape[1], vocab, where)
            out["draft_ids"], rows = ids.long()[order], rows[:, order]
        elif not isinstance(vocab, int) or form.name == "medusa-2":
            vocab = int(rows.shape[1])
        elif rows.shape[1] < vocab:
            out["draft_ids"] = torch.arange(rows.shape[1])
            remarks.append(f"it has no token_map: its draft vocabulary is the first {rows.shape[1]} ids")
        out["lm_head"] = rows
    return Plan(
        "medusa",
        {"heads": heads, "blocks": depth, "own_lm_head": rows is not None},
        out,
        hidden_size=size,
        vocab_size=vocab if isinstance(vocab, int) else None,
        base=str(config.get("base_model_name_or_path") or ""),
        remarks=tuple(remarks),
    )


def _stacked(
    blocks: Mapping[tuple[int, int, str], Tensor], heads: int, depth: int, part: str, shape: list[int], where: str
) -> Tensor:
    """`[blocks, heads, ...]`."""
    for (head, layer, which), value in blocks.items():
        if which == part and list(value.shape) != shape:
            raise CheckpointError(
                f"{where}: the {part} of block {layer} of head {head} has shape {list(value.shape)}, expected {shape}"
            )
    return torch.stack([torch.stack([blocks[head, layer, part] for head in range(heads)]) for layer in range(depth)])


def _lm_heads(lm: Mapping[int | None, Tensor], heads: int, size: int, where: str) -> Tensor | None:
    """`[heads, vocabulary, d]`, or None where the heads use the target's."""
    if not lm:
        return None
    found = [lm[head if None not in lm else None] for head in range(heads)]
    for head, value in enumerate(found):
        if list(value.shape) != [found[0].shape[0], size]:
            raise CheckpointError(
                f"{where}: the LM head of head {head} has shape {list(value.shape)}, expected "
                f"{[found[0].shape[0], size]}"
            )
    return torch.stack(found)


def _order(ids: Tensor, rows: int, vocab: Any, where: str) -> Tensor:
    """The order in which the ids of `token_map` ascend."""
    if list(ids.shape) != [rows]:
        raise CheckpointError(f"{where}: token_map has shape {list(ids.shape)}, but the LM heads have {rows} rows")
    ids = ids.long()
    if int(ids.min()) < 0 or (isinstance(vocab, int) and int(ids.max()) >= vocab):
        bad = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise CheckpointError(f"{where}: token_map holds the id {bad}, outside the vocabulary of {vocab}")
    if len(ids.unique()) < len(ids):
        raise CheckpointError(f"{where}: token_map holds an id twice")
    return ids.argsort()
