"""Draft vocabularies of published heads: offsets, target ids or membership, checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from specdec.core.errors import CheckpointError

__all__ = ["draft_ids", "offsets"]


def draft_ids(
    weights: Mapping[str, Tensor], rows: int | None, vocab_size: int | None, reading: str, where: str
) -> tuple[Tensor | None, list[str]]:
    """Target ids of the rows of the head's LM head, ascending, and remarks; None where it has every target id.

    weights: may hold `d2t` (offsets: row i is the token i + d2t[i]) and `t2d` (which ids are members). rows: of the
    LM head, None where it is the target's. vocab_size: of the target, where the checkpoint says it.
    reading: "offset", "absolute" (`d2t` holds target ids) or "auto". Raises CheckpointError, naming the id.
    """
    table, members = weights.get("d2t"), weights.get("t2d")
    remarks: list[str] = []
    if members is not None and members.dim() != 1:
        raise CheckpointError(f"{where}: t2d has shape {list(members.shape)}, expected one entry a target token")
    chosen = None if members is None else members.bool().nonzero()[:, 0]
    if table is None:
        if rows is None or vocab_size is None or rows == vocab_size:
            return None, remarks
        if chosen is None:
            raise CheckpointError(
                f"{where}: its LM head has {rows} rows for a vocabulary of {vocab_size}, and no d2t or t2d says which"
            )
        if len(chosen) != rows:
            raise CheckpointError(f"{where}: t2d marks {len(chosen)} tokens, but the LM head has {rows} rows")
        return chosen, ["it has no d2t; its draft vocabulary is what t2d marks"]
    if table.dim() != 1 or (rows is not None and len(table) != rows):
        raise CheckpointError(f"{where}: d2t has shape {list(table.shape)}, but the LM head has {rows} rows")
    table = table.long()
    ids = table if reading == "absolute" else torch.arange(len(table)) + table
    if vocab_size is not None and len(table) == vocab_size and not table.any():
        return None, remarks  # the identity, written out
    _check(ids, vocab_size, where)
    if chosen is not None and not torch.equal(ids, chosen):
        if len(chosen) != len(members) or len(ids) == len(chosen):  # type: ignore[arg-type]
            bad = next((int(i) for i in ids if not len(members) > i or not members[i]), int(ids[0]))  # type: ignore[arg-type,index]
            raise CheckpointError(f"{where}: d2t leads to token {bad}, which t2d does not have: the maps disagree")
        remarks.append("its t2d marks every token and says nothing; d2t counts")
    if not table.any():
        remarks.append(f"its d2t is all zeros: its draft vocabulary is the first {len(table)} ids")
    return ids, remarks


def _check(ids: Tensor, vocab_size: int | None, where: str) -> None:
    outside = ids < 0 if vocab_size is None else (ids < 0) | (ids >= vocab_size)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise CheckpointError(
            f"{where}: d2t leads row {at} to token {int(ids[at])}, outside the vocabulary of {vocab_size}; it has to "
            "hold offsets (row i is token i + d2t[i]), not target ids"
        )
    falling = (ids[1:] <= ids[:-1]).nonzero()
    if len(falling):
        at = int(falling[0]) + 1
        raise CheckpointError(
            f"{where}: d2t leads row {at} to token {int(ids[at])}, not after the token {int(ids[at - 1])} of the row "
            "before; draft vocabularies are in ascending order"
        )


def offsets(ids: Tensor, how: Literal["offset"] = "offset") -> Tensor:
    """`d2t` of ascending target ids."""
    return ids.long() - torch.arange(len(ids))
