"""Head: the base of trainable draft heads, which read the target's hidden states and borrow its frozen modules."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from specdec.core.errors import CheckpointError
from specdec.core.interfaces import Target
from specdec.core.mark import mark
from specdec.heads import files
from specdec.heads.config import HeadConfig, TargetFacts, checked_ids

_WHOLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Borrowed:
    """The target's own modules, which a head uses and never owns: they are not in its state, nor moved with it."""

    def __init__(self, embed_tokens: nn.Module | None, lm_head: nn.Module | None) -> None:
        self.embed_tokens, self.lm_head = embed_tokens, lm_head
        self._rows: tuple[object, tuple[Tensor, Tensor | None]] | None = None  # with what they are a copy of

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the LM head at `ids`, copied anew only after one of them changed."""
        module: Any = self.lm_head
        bias = getattr(module, "bias", None)
        state = (mark(module.weight), mark(ids), None if bias is None else mark(bias))
        if self._rows is None or self._rows[0] != state:
            at = ids.to(module.weight.device)
            rows = nn.Parameter(module.weight.detach()[at], requires_grad=False)  # kept as the model's own weights are
            self._rows = state, (rows, None if bias is None else bias.detach()[at])
        return self._rows[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> Borrowed:
        return self  # a copy of a head does not copy the target


class Head(nn.Module):
    """A module that guesses the target's next tokens from its hidden states; saved as config.json and safetensors.

    A subclass sets `kind` and `config_class`, builds its modules from the config alone and calls
    `super().__init__(config)` first.

    config: sizes, and the model that the head was made for.
    features: names of the target's states that it reads, as in `Needs.features`.
    draft_ids: `[draft vocabulary]` int64, ascending target ids of a trimmed vocabulary; None: all ids. Part of the
        saved weights.
    where: the folder or hub id that it was loaded from, or "".
    """

    kind: ClassVar[str]
    config_class: ClassVar[type[HeadConfig]]
    draft_ids: Tensor | None

    def __init__(self, config: HeadConfig, draft_ids: Sequence[int] | Tensor | None = None) -> None:
        """draft_ids: needed where `config.draft_vocab_size` is set, unless weights are loaded next."""
        super().__init__()
        self.config = config
        self._borrowed: Borrowed | None = None
        self._moved: tuple[object, Head] | None = None  # a copy for another device or dtype, and what it is a copy of
        self._lent: Borrowed | None = None  # what it was last served with
        self._served: tuple[Head, Borrowed, Head] | None = None  # of which head, with what, and what came of it
        self.where = ""
        ids = None
        if draft_ids is not None:
            listed = draft_ids.tolist() if isinstance(draft_ids, Tensor) else list(draft_ids)
            ids = torch.tensor(checked_ids(listed, config.target_vocab_size))
            if len(ids) != config.draft_vocab_size:
                raise ValueError(
                    f"{len(ids)} draft ids, but the config's draft_vocab_size is {config.draft_vocab_size}"
                )
        elif config.draft_vocab_size is not None:
            ids = torch.arange(config.draft_vocab_size)
        self.register_buffer("draft_ids", ids)

    @property
    def features(self) -> tuple[str, ...]:
        return ("final",)

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the head can propose: the last size of `logits`."""
        return self.config.draft_vocab_size or self.config.target_vocab_size

    @property
    def dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    # --- the target's modules

    def bind(self, embed_tokens: nn.Module | None, lm_head: nn.Module | None) -> Head:
        """Hand over the target's frozen modules, in place; returns the head. They are not registered or moved."""
        self._borrowed = Borrowed(embed_tokens, lm_head)
        return self

    def serving(self, shared: Mapping[str, nn.Module], device: torch.device, dtype: torch.dtype) -> Head:
        """This head bound to a target's modules, on its device and in its dtype; self stays as it is.

        Weights are shared where device and dtype agree already, and else copied, anew only after they changed.
        """
        # What is kept is read once and replaced whole, since threads may share a head.
        head, moved, lent, known = self, self._moved, self._lent, self._served
        if self.device != device or self.dtype != dtype:
            state = [mark(tensor) for tensor in (*self.parameters(), *self.buffers())]
            if moved is None or moved[0] != (device, dtype, state):
                with torch.inference_mode(False):
                    moved = (device, dtype, state), copy.deepcopy(self).to(device=device, dtype=dtype)
                self._moved = moved
            head = moved[1]
        embed_tokens, lm_head = shared.get("embed_tokens"), shared.get("lm_head")
        if lent is None or lent.embed_tokens is not embed_tokens or lent.lm_head is not lm_head:
            self._lent = lent = Borrowed(embed_tokens, lm_head)
        if known is not None and known[0] is head and known[1] is lent:
            return known[2]
        served = copy.copy(head)
        served._borrowed, served._moved, served._served = lent, None, None
        # The same object from call to call: what is compiled for a head is kept for as long as it is there.
        self._served = head, lent, served
        return served

    @property
    def borrowed(self) -> Borrowed:
        """The modules given to `bind`; raises RuntimeError before that."""
        if self._borrowed is None:
            raise RuntimeError(
                f"this {self.kind} head uses modules of the target: call bind(embed_tokens, lm_head) first"
            )
        return self._borrowed

    def embed(self, tokens: Tensor) -> Tensor:
        """`[..., d]`: the target's own embedding of target ids."""
        module = self.borrowed.embed_tokens
        if module is None:
            raise RuntimeError(f"this {self.kind} head was bound without the target's embed_tokens")
        return module(tokens)

    def lm_rows(self) -> tuple[Tensor, Tensor | None]:
        """The frozen LM head, cut to the draft vocabulary: weight `[vocab_size, d]`, bias `[vocab_size]` or None."""
        borrowed = self.borrowed
        if borrowed.lm_head is None:
            raise RuntimeError(f"this {self.kind} head was bound without the target's lm_head")
        if self.draft_ids is not None:
            return borrowed.rows(self.draft_ids)
        weight: Any = borrowed.lm_head.weight
        bias: Any = getattr(borrowed.lm_head, "bias", None)
        return weight.detach(), None if bias is None else bias.detach()

    def logits(self, states: Tensor) -> Tensor:
        """`[..., d]` to `[..., vocab_size]` by the target's frozen LM head, cut to the draft vocabulary."""
        # As a matrix: by their strides, states cut from a wider pass are multiplied one row at a time, each with a copy
        # of the weights, which takes 70 times as long in bfloat16 on a CPU. They may be called contiguous all the same.
        flat = states.reshape(-1, states.shape[-1])
        return self._logits(flat).view(*states.shape[:-1], -1)

    def _logits(self, states: Tensor) -> Tensor:
        if self.draft_ids is None and self.borrowed.lm_head is not None:
            module = self.borrowed.lm_head
            weight: Any = module.weight
            return module(states.to(device=weight.device, dtype=weight.dtype))
        rows, bias = self.lm_rows()
        return nn.functional.linear(states.to(device=rows.device, dtype=rows.dtype), rows, bias)

    def to_target(self, ids: Tensor) -> Tensor:
        """Indices into `logits` as ids of the target's vocabulary."""
        return ids if self.draft_ids is None else self.draft_ids.to(ids.device)[ids]

    def fit_problems(self, target: TargetFacts) -> list[str]:
        """Reasons why this head cannot serve `target`, each with what was expected and what was found."""
        return self.config.fit_problems(target)

    # --- files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `config.json` and `model.safetensors`; an earlier save stays whole if writing fails.

        Raises CheckpointError, naming the cause, such as a full disk.
        """
        weights = {name: value.detach().cpu() for name, value in self.state_dict().items()}
        try:
            files.write(Path(folder), self.config.model_dump(mode="json"), weights, self.side_files(), self.aside)
        except Exception as error:  # safetensors has no type of its own for a full disk
            raise CheckpointError(
                f"the {self.kind} head could not be saved to {os.fspath(folder)}: {error}. "
                "What was saved there before is unchanged"
            ) from error

    aside: ClassVar[tuple[str, ...]] = ()  # names that `side_files` may give

    def side_files(self) -> dict[str, str]:
        """Further text files of a save, by name."""
        return {}

    def read_side_files(self, folder: Path) -> None:
        """Take in what `side_files` wrote, where it is there."""

    def load_weights(self, weights: Mapping[str, Tensor], where: str) -> None:
        """Take over tensors under exactly these names and shapes; raises CheckpointError, listing what differs."""
        self.check_weights(weights, where)
        self.load_state_dict(dict(weights), assign=True)

    def check_weights(self, weights: Mapping[str, Tensor], where: str) -> None:
        """Raise what `load_weights` would raise; nothing is taken over."""
        own = self.state_dict()
        found = [f"{name} is missing" for name in sorted(set(own) - set(weights))]
        found += [f"{name} is not known" for name in sorted(set(weights) - set(own))]
        for name in sorted(set(own) & set(weights)):
            given, expected = weights[name], own[name]
            if given.shape != expected.shape:
                found.append(f"{name} has shape {list(given.shape)}, expected {list(expected.shape)}")
            elif given.dtype not in _WHOLE and expected.is_floating_point():
                found.append(f"{name} is {given.dtype}, expected {expected.dtype}: it is quantised")
            elif given.is_floating_point() != expected.is_floating_point():
                found.append(f"{name} is {given.dtype}, expected {expected.dtype}")
        if found:
            more = f"; and {len(found) - 8} more" if len(found) > 8 else ""
            raise CheckpointError(
                f"{where}: the weights are not those of this {self.kind} head: "
                + "; ".join(found[:8])
                + more
                + ". Save or download the whole, unquantised head again"
            )
        if "draft_ids" in weights:
            try:
                listed = weights["draft_ids"].tolist()
                if tuple(listed) != checked_ids(listed, self.config.target_vocab_size):
                    raise ValueError("draft ids must be in ascending order")
            except ValueError as error:
                raise CheckpointError(f"{where}: draft_ids: {error}. Save or download the head again") from error


def count(embed_tokens: nn.Module) -> int:
    """Number of tokens that an embedding knows."""
    weight: Any = embed_tokens.weight
    return int(weight.shape[0])


@torch.no_grad()
def embedded(embed_tokens: nn.Module) -> Iterator[Tensor]:
    """All rows that an embedding puts out, `[some, d]` at a time: its weights, unless the model scales them."""
    weight: Any = embed_tokens.weight
    for start in range(0, count(embed_tokens), 8192):
        yield embed_tokens(torch.arange(start, min(start + 8192, count(embed_tokens)), device=weight.device))


def facts_of(target: Target | nn.Module, name: str = "") -> TargetFacts:
    """The sizes of a target or of a transformers model that heads have to fit."""
    if isinstance(target, Target):
        head: Any = target.shared("lm_head")
        # The engine's port has no number of layers, but it knows which features there are.
        layers = 0
        while target.features([f"layer:{layers}"]):
            layers += 1
        width = 0 if head is None else int(head.weight.shape[1])
        return TargetFacts(name or f"target '{target.name}'", width, target.vocab_size, layers)
    model: Any = target
    config = model.config.get_text_config(decoder=True)
    rows, width = model.get_output_embeddings().weight.shape
    return TargetFacts(name or public_name(model), int(width), int(rows), int(config.num_hidden_layers))


def target_fields(model: nn.Module, name: str = "") -> dict[str, Any]:
    """The fields of `HeadConfig` that say for which model a head is made."""
    facts = facts_of(model, name)
    return {
        "target": facts.name,
        "target_hidden_size": facts.hidden_size,
        "target_vocab_size": facts.vocab_size,
        "target_layers": facts.layers,
    }


def public_name(model: Any) -> str:
    """The hub id under which a model was loaded, else its class: never a path of somebody's machine."""
    name = str(getattr(model.config, "_name_or_path", "") or "")
    return name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).exists() else type(model).__name__
