"""What parts declare, whether declarations fit each other, and whether a draft keeps its declaration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Draft, Kind
from specdec.core.errors import InvalidDraftError

if TYPE_CHECKING:
    from specdec.core.interfaces import Drafter, Target, Verifier
    from specdec.core.state import Budget


class Exactness(IntEnum):
    """What the law of the output is, from weak to strong."""

    APPROXIMATE = 0
    """Not the target's law; the verifier's `bias_note` says how it differs."""
    CONSISTENT = 1
    """The target's law in a limit, such as many particles."""
    EXACT_GREEDY = 2
    """Equals argmax decoding; says nothing about sampling."""
    EXACT_SAMPLING = 3
    """Equals the target's processed law at every temperature."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")

    @classmethod
    def parse(cls, label: str) -> Exactness:
        """The level of that label; raises ValueError for any other text."""
        for level in cls:
            if level.label == label:
                return level
        known = ", ".join(level.label for level in cls)
        raise ValueError(f"there is no guarantee {label!r}; expected one of {known}")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter asks of the target, by name.

    features: `"final"` (input of the LM head), `"layer:i"` (output of layer i), `"embed"`; delivered for the
        prompt and for every node of each round.
    shared: modules of the target that the drafter uses, `"lm_head"`, `"embed_tokens"` and `"layers"`, the list of
        decoder layers, with which `context.lend` may be used.
    choices: tokens for every node of each round, on the host, read together with the verdict: `"top:k"`, the k most
        probable tokens by the raw logits, and `"decided"`, what the verifier would emit if the text came to the node.
    """

    features: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    def unknown(self) -> list[str]:
        """Names in `choices` that mean nothing."""
        return [name for name in self.choices if name != "decided" and not re.fullmatch(r"top:[1-9]\d*", name)]


@dataclass(frozen=True, slots=True)
class Caps:
    """What a target can do, measured once rather than read off a name.

    trees: nodes that share a parent do not see each other.
    batches: rows of different length in one pass.
    rollback: rejected nodes leave no trace.
    forks: a row can go on from the text of another row of its group.
    """

    trees: bool = True
    batches: bool = True
    rollback: bool = True
    forks: bool = False
    why: str = ""


def problems(
    target: Target, drafter: Drafter, verifier: Verifier, required: Exactness, tokenizer: Any = None
) -> list[str]:
    """Every reason why these parts do not fit together, in the words of the parts; empty if they do."""
    found: list[str] = []
    d, v = f"drafter '{drafter.name}'", f"verifier '{verifier.name}'"
    if unfit := sorted(kind.name for kind in drafter.emits - verifier.judges):
        judged = ", ".join(sorted(kind.name for kind in verifier.judges))
        found.append(f"{d} emits {', '.join(unfit)} candidates; {v} judges {judged} only")
    if drafter.branching and not verifier.branching:
        found.append(f"{d} drafts trees; {v} judges chains only")
    if drafter.branching and not target.caps.trees:
        found.append(f"{d} drafts trees; the target can verify chains only: {target.caps.why}")
    if drafter.drafts and verifier.rejects and not target.caps.rollback:
        found.append(f"{v} rejects drafted tokens; the target cannot roll back: {target.caps.why}")
    if verifier.particles > 1 and not target.caps.forks:
        why = f": {target.caps.why}" if target.caps.why else ""
        found.append(f"{v} lets particles go on from each other's text; the target cannot do that{why}")
    if missing := sorted(set(drafter.needs.features) - set(target.features(drafter.needs.features))):
        found.append(f"{d} needs the features {', '.join(missing)}, which the target does not have")
    if missing := sorted(name for name in drafter.needs.shared if target.shared(name) is None):
        found.append(f"{d} needs the target's {', '.join(missing)}, which it does not expose")
    if unknown := drafter.needs.unknown():
        found.append(f"{d} needs the choices {', '.join(unknown)}; expected 'decided' or, say, 'top:8'")
    if verifier.exactness < required:
        note = f" ({verifier.bias_note})" if verifier.bias_note else ""
        found.append(
            f"{v} is {verifier.exactness.label}{note}; this call asks for {required.label}. "
            f'Pass allow="{verifier.exactness.label}" to accept that'
        )
    found.extend(drafter.problems(target, tokenizer))
    return found


def validate(draft: Draft, drafter: Drafter, budget: Budget, vocab_size: int, row: int) -> None:
    """Hold one draft against the drafter's declaration and the row's budget; raises InvalidDraftError.

    Costs no device-to-host read; ids that are still on a GPU are checked by `validate_ids` after the round's read.
    """
    found: list[str] = []
    if not isinstance(draft, Draft):
        raise InvalidDraftError(f"row {row}: expected a Draft, found {type(draft).__name__}")
    count = len(draft.parents)
    if not isinstance(draft.tokens, tuple) and not (isinstance(draft.tokens, Tensor) and draft.tokens.ndim == 1):
        given = list(draft.tokens.shape) if isinstance(draft.tokens, Tensor) else type(draft.tokens).__name__
        raise InvalidDraftError(f"row {row}: expected tokens as a tuple of ids or a tensor [nodes], found {given}")
    if len(draft.tokens) != count:
        found.append(f"{len(draft.tokens)} tokens but {count} parents: every node needs one of each")
    try:
        shape = draft.topology
    except ValueError as error:
        raise InvalidDraftError(f"row {row}: {error}") from error
    kinds = set(draft.kinds) | {extra.kind for extra in draft.repeats}
    if undeclared := sorted(kind.name for kind in kinds - drafter.emits):
        found.append(
            f"it holds {', '.join(undeclared)} candidates, but the drafter declares that it emits "
            f"{', '.join(sorted(kind.name for kind in drafter.emits))}"
        )
    if not shape.is_chain and not drafter.branching:
        found.append("it branches, but the drafter declares branching=False")
    if shape.judged_depth > budget.depth:
        found.append(f"it is {shape.judged_depth} deep, but the budget allows {budget.depth}")
    if shape.depth > (most := max(budget.depth, budget.reach)):
        found.append(f"its scratch nodes are {shape.depth} deep, but the budget allows {most}")
    if count > budget.nodes:
        found.append(f"it has {count} nodes, but the budget allows {budget.nodes}")
    sampled = any(kind.sampled for kind in kinds)
    if sampled and draft.q is None:
        found.append("its candidates are declared sampled, but it carries no law q")
    if draft.q is not None and not sampled:
        found.append("it carries a law q, but none of its candidates is declared sampled")
    if sampled and draft.q is not None:
        found.extend(_problems_of_q(draft, vocab_size))
    if isinstance(draft.tokens, tuple):
        found.extend(_problems_of_ids(draft.tokens, vocab_size))
    elif draft.tokens.dtype not in (torch.int64, torch.int32):
        found.append(f"its tokens are {draft.tokens.dtype}, expected int64")
    elif (ids := host.peek(draft.tokens)) is not None:
        found.extend(_problems_of_ids(ids, vocab_size))
    if found:
        raise InvalidDraftError(f"row {row}: the draft is invalid: " + "; ".join(found))


def validate_count(drafts: Sequence[Draft], rows: int) -> None:
    """Hold the number of drafts against the number of live rows; raises InvalidDraftError."""
    if len(drafts) != rows:
        raise InvalidDraftError(f"{len(drafts)} drafts for {rows} live rows: every row needs exactly one")


def validate_ids(tokens: Sequence[int], vocab_size: int, row: int) -> None:
    """Hold ids that have just been read from the device against the vocabulary; raises InvalidDraftError."""
    if found := _problems_of_ids(tokens, vocab_size):
        raise InvalidDraftError(f"row {row}: the draft is invalid: " + "; ".join(found))


def _problems_of_ids(tokens: Sequence[int], vocab_size: int) -> list[str]:
    if wrong := [token for token in tokens if type(token) is not int and not isinstance(token, Integral)]:
        return [f"token {wrong[0]!r} is a {type(wrong[0]).__name__}, expected an id"]
    if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
        bad = next(token for token in tokens if not 0 <= token < vocab_size)
        return [f"token id {bad} is outside the target's vocabulary of {vocab_size}"]
    return []


def _problems_of_q(draft: Draft, vocab_size: int) -> list[str]:
    assert draft.q is not None
    q: Tensor = draft.q
    if not isinstance(q, Tensor) or not q.is_floating_point():
        return [f"q is {q.dtype if isinstance(q, Tensor) else type(q).__name__}, expected a tensor of probabilities"]
    extra = {c.node: c.kind for c in draft.repeats}
    parents = [
        draft.parents[node] + 1
        for node, kind in enumerate(draft.kinds)
        if kind.sampled or extra.get(node, Kind.POINT).sampled
    ]
    if q.ndim != 2 or q.shape[1] != vocab_size or q.shape[0] <= max(parents):
        return [
            f"q has shape {list(q.shape)}, expected [{max(parents) + 1} or more, {vocab_size}]: "
            "one row for each node that has sampled children"
        ]
    return []
