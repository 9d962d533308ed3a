"""Published: a checkpoint that somebody else's trainer wrote, read and checked, which a target completes to a head."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from specdec.core.errors import CheckpointError, IncompatibleError
from specdec.heads import files
from specdec.heads.base import Head
from specdec.heads.config import TargetFacts
from specdec.heads.eagle3_config import default_taps
from specdec.heads.formats.boundaries import taps_of
from specdec.heads.formats.conventions import AS_WRITTEN, Conventions
from specdec.heads.formats.detector import detect
from specdec.heads.formats.eagle import read_eagle
from specdec.heads.formats.eagle3 import read_eagle3
from specdec.heads.formats.format import Format
from specdec.heads.formats.medusa import read_medusa
from specdec.heads.formats.names import cleaned, quantised
from specdec.heads.formats.plan import Plan
from specdec.heads.formats.stored import Stored, open_weights

__all__ = ["Published", "identify", "read_published"]

_READERS = {"medusa": read_medusa, "eagle": read_eagle, "eagle3": read_eagle3}
_PADDED = 1024  # rows by which vocabularies of one tokenizer differ, padded or with tokens added
_ANY = 1000  # layers of a target that nobody knows yet


@dataclass(frozen=True, eq=False)
class Published:
    """What `read_published` found. where: folder or hub id. remarks: what is unusual about it, one sentence each."""

    where: str
    format: Format
    plan: Plan
    files_remarks: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.plan.kind

    @property
    def remarks(self) -> tuple[str, ...]:
        return self.files_remarks + self.plan.remarks

    @property
    def complete(self) -> bool:
        """Whether the checkpoint itself says everything that a head is made of."""
        plan = self.plan
        return plan.layers is not None and plan.vocab_size is not None and plan.hidden_size is not None

    def head(self, target: TargetFacts) -> Head:
        """The head for `target`, which says what the checkpoint does not: layers, and at times its vocabulary.

        Raises CheckpointError where the tensors are not those of such a head, and IncompatibleError where this target
        has no states for it. Whether the sizes are the target's is asked by `fit_problems`.
        """
        return self._made(target, None)

    def check(self) -> None:
        """Raise what `head` would raise for any target: nothing is computed, and no memory is taken."""
        plan = self.plan
        vocab = plan.vocab_size or _PADDED
        highest = max(plan.boundaries or (0,))
        facts = TargetFacts("any target", plan.hidden_size or 1, vocab, plan.layers or max(_ANY, highest))
        self._made(facts, "meta")

    def _made(self, target: TargetFacts, device: str | None) -> Head:
        from specdec.heads.load import head_class

        plan, cls = self.plan, head_class(self.kind)
        weights, vocab = _fitted(plan, target.vocab_size)
        ids = weights.get("draft_ids")
        fields = dict(plan.fields) | {
            "target": _public(plan.base),
            "target_hidden_size": plan.hidden_size or target.hidden_size,
            "target_vocab_size": vocab,
            "target_layers": plan.layers or target.layers,
            "draft_vocab_size": None if ids is None else len(ids),
        }
        if plan.taps:
            fields["taps"] = self._taps(target)
        try:
            config = cls.config_class(**fields)
            if device is None:
                head = cls(config)
            else:
                with torch.device(device):
                    head = cls(config)
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, item['loc'])) or 'config'}: {item['msg']}" for item in error.errors()]
            raise CheckpointError(f"{self.where} makes no head of kind '{self.kind}': " + "; ".join(lines)) from None
        except Exception as error:  # transformers about activations, rotary embeddings and sizes has many kinds
            raise CheckpointError(f"{self.where}: its layers cannot be built: {error}") from error
        head.load_weights(weights, self.where)
        head.where = self.where
        return head.eval()

    def _taps(self, target: TargetFacts) -> tuple[str, ...]:
        if self.plan.boundaries is not None:
            return taps_of(self.plan.boundaries)
        try:
            return default_taps(target.layers)
        except ValueError as error:
            raise IncompatibleError(f"{self.where} names no layers of its target: {error}") from None


def _fitted(plan: Plan, vocab_size: int) -> tuple[dict[str, Tensor], int]:
    """The weights in one dtype and for a vocabulary of the target's size, where that differs by padding only."""
    weights = dict(plan.weights)
    main = next(value.dtype for name, value in weights.items() if name in ("fc.weight", "weight"))
    weights = {name: value.to(main) if value.is_floating_point() else value for name, value in weights.items()}
    known = plan.vocab_size
    if known is None or known == vocab_size or abs(known - vocab_size) > _PADDED:
        return weights, known or vocab_size
    kept = min(known, vocab_size)
    if "draft_ids" in weights:
        if int(weights["draft_ids"].max()) >= kept:
            return weights, known  # it guesses tokens that the target does not have: another model
    elif ("lm_head.weight" in weights and known < vocab_size) or ("lm_head" in weights and known < vocab_size):
        weights["draft_ids"] = torch.arange(known)
    elif "lm_head.weight" in weights:
        weights["lm_head.weight"] = weights["lm_head.weight"][:vocab_size]
    elif "lm_head" in weights:
        weights["lm_head"] = weights["lm_head"][:, :vocab_size]
    if (rows := weights.get("embed_tokens.weight")) is not None:
        more = rows.new_zeros(max(0, vocab_size - known), rows.shape[1])  # tokens that it never saw
        weights["embed_tokens.weight"] = torch.cat([rows[:kept], more])
    return weights, vocab_size


def _public(name: str) -> str:
    """A hub id, or nothing: what else stands there is a path of the machine on which it was trained."""
    return name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith(".") else ""


def identify(folder: Path) -> tuple[Format, dict[str, Any], Stored]:
    """Format, config and tensors of a folder; raises CheckpointError where there are none."""
    config, stored = files.read_json(folder), open_weights(folder)
    return detect(config, stored.shapes, [entry.name for entry in folder.iterdir()]), config, stored


def read_published(folder: Path, where: str = "", conventions: Conventions = AS_WRITTEN) -> Published:
    """The checkpoint in `folder`, whole and checked, or CheckpointError, naming what it is or what is wrong with it."""
    where = where or str(folder)
    form, config, stored = identify(folder)
    if form.kind is None:
        raise CheckpointError(f"{where} holds {form.title}, which cannot be used here: {form.why}")
    names: Mapping[str, str] = cleaned(stored.shapes, where)
    if form.name == "medusa-2":
        names = {name: place for name, place in names.items() if name.startswith("medusa_head.")}
    listed = [entry.name for entry in folder.iterdir()]
    types = {name: stored.types[place] for name, place in names.items()}
    if sign := quantised(config, types, listed):
        raise CheckpointError(
            f"{where} is quantised ({sign}), and specdec reads whole weights only: use the unquantised release of it"
        )
    held = stored.read(list(names.values()))
    weights = {name: held[place] for name, place in names.items()}
    plan = _READERS[form.kind](form, config, weights, conventions, where)
    pickled = ("its weights are pickles, read as tensors only",) if stored.pickled else ()
    found = Published(where, form, plan, pickled)
    found.check()
    return found
