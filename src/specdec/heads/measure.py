"""How often each guess of Medusa heads is right on text of the target, by which their tree is searched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.errors import IncompatibleError
from specdec.heads.base import facts_of
from specdec.heads.load import load_head
from specdec.heads.medusa import MedusaHead
from specdec.heads.trees import StaticTree, search, search_ranks
from specdec.targets import compat
from specdec.targets.taps import Taps

__all__ = ["accuracies", "best_tree", "plant", "ranks_of"]

_ENOUGH = 2000  # positions from which whole paths are counted, and not each head for itself

Text = tuple[Sequence[int], Sequence[tuple[int, int]]]
"""Ids of a dialogue, and where the target's own answers lie in it, (start, end) each."""


@torch.inference_mode()
def ranks_of(model: nn.Module, head: MedusaHead, texts: Sequence[Text], count: int = 10) -> Tensor:
    """`[positions, heads]` int64: which of each head's `count` likeliest guesses is the token that stands there.

    -1 where none of them is. Positions are those from which a decoder could draft: every token of an answer behind
    which as many tokens follow as there are heads. The target reads each text once, as a whole.

    Raises IncompatibleError where the head was made for another model.
    """
    if found := head.fit_problems(facts_of(model)):
        raise IncompatibleError(found)
    target: Any = model
    taps, heads = Taps(("final",)), head.config.heads
    shared = {"lm_head": target.get_output_embeddings()}
    extra = {"logits_to_keep": 1} if "logits_to_keep" in compat.parameters(model) else {}
    rows = [torch.zeros(0, heads, dtype=torch.int64)]
    for ids, spans in texts:
        # The state at t gave token t + 1, the anchor, which is an answer's first at the earliest.
        states = [t for start, end in spans for t in range(max(0, start - 1), end - 1 - heads)]
        if not states:
            continue
        text = torch.as_tensor(ids)[None].to(compat.input_device(model))
        final = taps.run(model, input_ids=text, use_cache=False, **extra)[1]["final"][0]
        served: Any = head.serving(shared, final.device, final.dtype)
        at = torch.tensor(states, device=final.device)
        guesses = served.guesses(final[at], count)  # [positions, heads, count]
        ahead = at[:, None] + 2 + torch.arange(heads, device=at.device)  # [positions, heads]
        right = guesses == text[0].to(guesses.device)[ahead.to(guesses.device)][..., None]
        rows.append(torch.where(right.any(-1), right.int().argmax(-1), -1).cpu())
    return torch.cat(rows)


def accuracies(ranks: Tensor, count: int = 10) -> list[list[float]]:
    """`[heads][count]`: the share of positions at which the guess of that rank is right; what `search` takes.

    ranks: `[positions, heads]`, of `ranks_of`. Raises ValueError where there are no positions.
    """
    if not len(ranks):
        raise ValueError("no positions were measured: every text was shorter than the heads look ahead")
    return [[float((column == rank).double().mean()) for rank in range(count)] for column in ranks.T]


def best_tree(ranks: Tensor, nodes: int, *, joint: bool | None = None) -> StaticTree:
    """The static tree of at most `nodes` nodes that keeps the most tokens where `ranks` were measured.

    joint: value a path by how often all of it was right, not by the product of its heads' accuracies, for heads are
    right together more often than that. By default where there are 2000 positions or more: with fewer, products are
    steadier.
    """
    if len(ranks) >= _ENOUGH if joint is None else joint:
        return search_ranks(ranks.tolist(), nodes)
    return search(accuracies(ranks, max(1, int(ranks.max()) + 1) if len(ranks) else 1), nodes)


def plant(
    model: nn.Module, folder: str | os.PathLike[str], texts: Sequence[Text], nodes: int = 64
) -> StaticTree | None:
    """Search the tree of the Medusa heads saved in `folder` on texts of their target, and keep it beside them.

    Texts are best such as the heads were not trained on. None, and nothing is written, where all are too short.
    """
    head = load_head(folder, kind="medusa")
    assert isinstance(head, MedusaHead)
    ranks = ranks_of(model, head, texts)
    if not len(ranks):
        return None
    head.tree = best_tree(ranks, nodes)
    head.save(folder)
    return head.tree
