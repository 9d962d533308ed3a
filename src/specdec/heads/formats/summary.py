"""Summary: what a folder holds, for which target, and what is unusual about it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specdec.core.errors import CheckpointError
from specdec.heads import files
from specdec.heads.config import TargetFacts
from specdec.heads.formats.format import FORMATS
from specdec.heads.formats.published import identify, read_published
from specdec.heads.load import load_head

__all__ = ["Summary", "summary"]

_DRAFTERS = {"medusa": ("medusa",), "eagle": ("eagle", "eagle2"), "eagle3": ("eagle3",)}


@dataclass(frozen=True)
class Summary:
    """What `summary` found. drafters: those that take it, none where it is refused; `problem` then says why.

    facts: what there is to say of the head, in words. remarks: what is unusual about it.
    """

    where: str
    format: str
    title: str
    drafters: tuple[str, ...] = ()
    problem: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()


def summary(x: str | os.PathLike[str], revision: str | None = None) -> Summary:
    """What is in a folder or hub repository, also where it cannot be used.

    Raises ModelNotFoundError where there is nothing, and CheckpointError where its files cannot be opened at all.
    """
    where, folder = os.fspath(x), files.locate(x, revision)
    if "kind" in files.read_json(folder):
        head = load_head(folder)
        form = FORMATS["specdec"]
        return Summary(
            where, form.name, form.title, _DRAFTERS.get(head.kind, ()), "", _facts(head.config, dict(head.state_dict()))
        )
    form, _, _ = identify(folder)
    try:
        published = read_published(folder, where)
    except CheckpointError as error:
        return Summary(where, form.name, form.title, problem=str(error))
    plan = published.plan
    known = TargetFacts("", plan.hidden_size or 1, plan.vocab_size or 1, plan.layers or 1000)
    config = published.head(known).config
    fixed = {"target_vocab_size": plan.vocab_size, "target_layers": plan.layers}
    if plan.taps and plan.boundaries is None:
        fixed["taps"] = None
    facts = _facts(config, plan.weights, fixed)
    return Summary(where, form.name, form.title, _DRAFTERS[published.kind], "", facts, published.remarks)


def _facts(
    config: Any, weights: dict[str, Tensor] | Any, fixed: dict[str, Any] | None = None
) -> tuple[tuple[str, str], ...]:
    """fixed: fields whose values the target says, as the checkpoint has them."""
    said = {**config.model_dump(), **(fixed or {})}

    def known(name: str) -> str:
        return "as the target has it" if said[name] is None else str(said[name])

    parameters = sum(value.numel() for value in weights.values() if value.is_floating_point())
    types = sorted({str(value.dtype).removeprefix("torch.") for value in weights.values() if value.is_floating_point()})
    found = [
        ("kind", str(said["kind"])),
        ("made for", said["target"] or "not said"),
        ("target's width", str(said["target_hidden_size"])),
        ("target's vocabulary", known("target_vocab_size")),
        ("target's layers", known("target_layers")),
        ("draft vocabulary", str(said["draft_vocab_size"] or "all of the target's")),
        ("parameters", f"{parameters:,} in {', '.join(types)}"),
    ]
    if "heads" in said:
        found.append(("heads", f"{said['heads']} of {said['blocks']} blocks"))
        found.append(("LM heads", "of its own" if said["own_lm_head"] else "the target's"))
    else:
        key = said["num_key_value_heads"] or said["num_attention_heads"]
        found.append(("layers", f"{said['num_hidden_layers']}, {said['num_attention_heads']} heads, {key} of keys"))
        found.append(("positions", f"trained up to {said['max_position_embeddings']}"))
        for name, label in (("own_embed", "embeddings"), ("own_lm_head", "LM head")):
            found.append((label, "of its own" if said[name] else "the target's"))
    if "taps" in said:
        taps = said["taps"]
        found.append(("reads", ", ".join(taps) if taps else "low, middle and high layers, as the target has them"))
        on = [name for name in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output") if said[name]]
        found.append(("norms", ", ".join(on) or "as in the paper"))
    return tuple(found)
