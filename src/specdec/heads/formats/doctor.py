"""Doctor: which reading of a checkpoint its target confirms, by how often its first guess is right."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.errors import CheckpointError, IncompatibleError
from specdec.heads import files
from specdec.heads.base import Head, facts_of
from specdec.heads.eagle3_config import default_taps
from specdec.heads.formats.conventions import AS_WRITTEN, Conventions
from specdec.heads.formats.published import Published, read_published
from specdec.targets.taps import Taps

__all__ = ["Reading", "diagnose"]


@dataclass(frozen=True)
class Reading:
    """One way to read a checkpoint. label: in words; "as written" is the checkpoint at its word.

    first, second: share of positions at which its guess is the target's most probable token, one and two tokens
        ahead of what the target has said itself. problem: why there is no such reading; then there are no shares.
    """

    label: str
    conventions: Conventions
    first: float = 0.0
    second: float = 0.0
    problem: str = ""

    @property
    def score(self) -> float:
        return -1.0 if self.problem else self.first + self.second


def diagnose(
    model: nn.Module,
    x: str | os.PathLike[str],
    texts: Sequence[Tensor],
    starts: Sequence[int],
    revision: str | None = None,
) -> list[Reading]:
    """Every reading that was tried, the best first; the one that is written stands before others that are as good.

    texts: `[tokens]` each, written by the target itself from the token of `starts` on. Conventions are tried one kind
    after the other: layers, norms, vocabulary, each with the best of those before. The shares are those of drafts on
    true states, so they compare readings and are no forecast of speed.
    """
    folder = files.locate(x, revision)
    scale = _Scale(model, folder, texts, starts)
    tried = [scale.read("as written", AS_WRITTEN)]
    best = tried[0]
    for axis in (_layers, _residual, _final, _output, _maps):
        found = [scale.read(label, conventions) for label, conventions in axis(scale, best)]
        tried += found
        best = max([best, *found], key=lambda reading: reading.score)
    return sorted(tried, key=lambda reading: -reading.score)


class _Scale:
    """The target's states and choices on the texts, computed when they are first asked for."""

    def __init__(self, model: nn.Module, folder: Any, texts: Sequence[Tensor], starts: Sequence[int]) -> None:
        self.model, self.folder = model, folder
        self.facts = facts_of(model)
        self.published: Published | None = None  # of the last reading that there is
        self._texts = [_Text(text[None], start) for text, start in zip(texts, starts, strict=True)]

    def read(self, label: str, conventions: Conventions) -> Reading:
        try:
            published = read_published(self.folder, conventions=conventions)
            head = published.head(self.facts)
        except (CheckpointError, IncompatibleError) as error:
            return Reading(label, conventions, problem=str(error))
        if problems := head.fit_problems(self.facts):
            return Reading(label, conventions, problem="; ".join(problems))
        self.published = published
        first, second = self._shares(head)
        return Reading(label, conventions, first, second)

    @torch.no_grad()
    def _shares(self, head: Head) -> tuple[float, float]:
        model: Any = self.model
        modules = {"embed_tokens": model.get_input_embeddings(), "lm_head": model.get_output_embeddings()}
        right: tuple[list[Tensor], list[Tensor]] = ([], [])
        for text in self._texts:
            features, likely = text.seen(model, head.features)
            served: Any = head.serving(modules, features.device, features.dtype)
            for ahead, guesses in enumerate(_guesses(served, text.tokens, features), start=1):
                hits = guesses[:, : likely.shape[1] - ahead] == likely[:, ahead:]
                right[ahead - 1].append(hits[0, max(0, text.start - 1) :].float())
        first, second = (float(torch.cat(hits).mean()) for hits in right)
        return first, second


@dataclass
class _Text:
    """tokens: `[1, tokens]`. What is asked of the target is kept."""

    tokens: Tensor
    start: int
    features: dict[str, Tensor] = field(default_factory=dict)
    likely: Tensor | None = None  # [1, tokens]: what comes after each

    def seen(self, model: Any, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The target's states side by side, and what it finds most probable after each token."""
        missing = tuple(name for name in names if name not in self.features)
        if missing or self.likely is None:
            out, found = Taps(missing).run(model, input_ids=self.tokens)
            self.features |= found
            self.likely = out.logits.argmax(-1)
        return torch.cat([self.features[name] for name in names], -1), self.likely


def _guesses(head: Any, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """`[1, tokens]` twice: from state t, the tokens t + 2 and t + 3."""
    if head.kind == "medusa":
        made = head.guesses(features, 1)[..., 0]  # [1, tokens, heads]
        return made[..., 0], made[..., 1] if made.shape[-1] > 1 else torch.full_like(made[..., 0], -1)
    first = head(tokens[:, 1:], head.fuse(features)[:, :-1])
    second = head(tokens[:, 2:], first[:, :-1])
    return head.to_target(head.logits(first).argmax(-1)), head.to_target(head.logits(second).argmax(-1))


Axis = list[tuple[str, Conventions]]


def _layers(scale: _Scale, best: Reading) -> Axis:
    published = scale.published
    if published is None or published.kind != "eagle3":
        return []
    count = scale.facts.layers
    now = published.plan.boundaries or _default(count)
    ways: dict[tuple[int, ...], tuple[str, Conventions]] = {}

    def add(label: str, ids: Sequence[int], conventions: Conventions) -> None:
        if tuple(ids) != now and all(0 <= each <= count for each in ids):
            ways.setdefault(tuple(ids), (label, conventions))

    for meaning, shift in (("boundary", -1), ("output", 1)):
        ids = tuple(each + shift for each in now)
        what = "what layers put out" if meaning == "output" else "what enters layers"
        try:  # the same as the checkpoint's own ids read the other way?
            other = read_published(scale.folder, conventions=replace(best.conventions, layers=meaning))  # type: ignore[arg-type]
            if other.plan.boundaries == ids:
                add(f"layer ids mean {what}", ids, replace(best.conventions, layers=meaning))  # type: ignore[arg-type]
                continue
        except CheckpointError:
            pass
        named = replace(best.conventions, layers="boundary", layer_ids=ids)
        add(f"layers one {'higher' if shift > 0 else 'lower'}: {list(ids)}", ids, named)
    usual = _default(count)
    if usual and len(usual) == len(now):
        add(
            f"the usual layers: {list(usual)}",
            usual,
            replace(best.conventions, layers="boundary", layer_ids=usual),
        )
    return list(ways.values())


def _default(layers: int) -> tuple[int, ...]:
    try:
        return tuple(int(tap.removeprefix("layer:")) + 1 for tap in default_taps(layers))
    except ValueError:
        return ()


def _flag(scale: _Scale, best: Reading, name: str, on: str, off: str) -> Axis:
    published = scale.published
    if published is None or published.kind != "eagle3":
        return []
    now = getattr(best.conventions, name)
    value = not (published.plan.fields[name] if now is None else now)
    changed: dict[str, Any] = {name: value}
    return [(on if value else off, replace(best.conventions, **changed))]


def _residual(scale: _Scale, best: Reading) -> Axis:
    on, off = "the residual starts after the norm", "the residual starts before the norm"
    return _flag(scale, best, "norm_before_residual", on, off)


def _final(scale: _Scale, best: Reading) -> Axis:
    return _flag(scale, best, "final_norm", "a norm before the LM head", "no norm before the LM head")


def _output(scale: _Scale, best: Reading) -> Axis:
    return _flag(
        scale, best, "norm_output", "the normed state is carried on", "the state before the norm is carried on"
    )


def _maps(scale: _Scale, best: Reading) -> Axis:
    if best.problem or "draft_ids" in (scale.published.plan.weights if scale.published else {}):
        return [("d2t holds target ids", replace(best.conventions, vocabulary="absolute"))]
    return []
