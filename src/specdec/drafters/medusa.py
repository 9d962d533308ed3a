"""Medusa: heads on the target's last state guess several tokens at once, placed on a static tree."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.errors import ConfigError
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.growth import worthwhile
from specdec.drafters.medusa_config import MedusaConfig
from specdec.heads.base import Head, facts_of
from specdec.heads.formats.published import Published
from specdec.heads.load import loaded_head, open_head
from specdec.heads.medusa import MedusaHead
from specdec.heads.medusa_config import MedusaHeadConfig
from specdec.heads.trees import PUBLISHED, StaticTree, cartesian, read_tree

_DEFAULT = "mc_sim_7b_63"
_TRUST = 4.0  # tokens for which the measured values of a tree count before a row's own acceptance moves them
_FORGET = 0.9
_Kept = TypeVar("_Kept")


class Medusa(Drafter):
    """Drafts the likeliest guesses of Medusa heads as POINT candidates on a static tree.

    head: the trained heads, or the folder or hub id that holds them.
    tree: name of a published tree, a JSON file, rank paths, or a `StaticTree`; by default the checkpoint's own, else
        the 63 nodes that were published for 7B models. What the heads cannot fill is cut off.
    revision: branch, tag or commit of a hub id; a ConfigError with heads that are loaded already.

    Of the tree, as much is drafted as the budget allows, the worthiest nodes first. Where the tree holds measured
    values and the budget costs, only what pays: a node's value, moved by what the row has accepted so far, has to
    exceed the going rate times the time that it takes. Whether to draft at all is the scheduler's decision.

    Source: Cai et al., arXiv 2401.10774.
    """

    name = "medusa"

    def __init__(
        self,
        head: MedusaHead | str | os.PathLike[str],
        *,
        tree: str | Sequence[Sequence[int]] | StaticTree | None = None,
        revision: str | None = None,
        config: MedusaConfig | None = None,
    ) -> None:
        found: Any
        if isinstance(head, Head):
            found = loaded_head(head, revision)
            if not isinstance(found, MedusaHead):
                raise TypeError(f"drafter '{self.name}' takes a head of kind 'medusa', found one of '{found.kind}'")
        else:
            found = open_head(head, config.revision if config else revision, "medusa")
        named: Any = tree.paths if isinstance(tree, StaticTree) else tree
        where = found.where or (found.config.target if isinstance(found, MedusaHead) else "") or "-"
        self._config = config or MedusaConfig(checkpoint=where, tree=named, revision=revision)
        self._asked = tree if isinstance(tree, StaticTree) else self._config.tree
        self._head: MedusaHead | None = None
        self._published: Published | None = None
        if isinstance(found, Published):
            self._published = found
        else:
            assert isinstance(found, MedusaHead)
            self._take(found)

    def _take(self, head: MedusaHead) -> None:
        self._head = head
        self.tree = _tree(head, self._asked)
        self.branching = not self.tree.is_chain  # type: ignore[misc]
        self.needs = Needs(("final",), () if head.config.own_lm_head else ("lm_head",))  # type: ignore[misc]
        self._shapes: dict[tuple[int, int], _Shape | None] = {}

    @property
    def head(self) -> MedusaHead:
        """The heads; raises RuntimeError where their files leave open what a target says, and there is none yet."""
        if self._head is None:
            raise RuntimeError("drafter 'medusa' has no heads yet: compose it with a target, Decoder(target, ...)")
        return self._head

    def for_target(self, target: Target) -> Drafter:
        if self._head is not None or self._published is None:
            return self
        met = copy.copy(self)
        head = self._published.head(facts_of(target))
        assert isinstance(head, MedusaHead)
        met._take(head)
        return met

    @property
    def config(self) -> MedusaConfig:
        return self._config

    @classmethod
    def from_config(cls, config: MedusaConfig) -> Medusa:
        return cls(config.checkpoint, config=config)

    def problems(self, target: Target, tokenizer: Any = None) -> list[str]:
        if self._head is None:
            return self.for_target(target).problems(target, tokenizer)
        return self.head.fit_problems(facts_of(target)) + self.head.config.tokenizer_problems(tokenizer)

    def begin(self, context: Context) -> DraftSession:
        return MedusaSession(self, context)

    def shape(self, depth: int, nodes: int) -> _Shape | None:
        """The part of the tree within these limits, or None if nothing is."""
        depth, nodes = min(depth, self.tree.depth), min(nodes, len(self.tree))
        if (depth, nodes) not in self._shapes:
            self._shapes[depth, nodes] = _Shape.of(self.tree.cut(depth, nodes))
        return self._shapes[depth, nodes]


def _tree(head: MedusaHead, tree: str | Sequence[Sequence[int]] | StaticTree | None) -> StaticTree:
    """The tree that was asked for, cut to what the heads can fill; raises ConfigError where nothing is left."""
    if tree is None:
        tree = head.tree or PUBLISHED[_DEFAULT]
    elif isinstance(tree, str):
        tree = PUBLISHED[tree] if tree in PUBLISHED else read_tree(tree)
    elif not isinstance(tree, StaticTree):
        try:
            tree = StaticTree(tuple(tuple(path) for path in tree))
        except ValueError as error:
            raise ConfigError(f"tree: {error}") from error
    whole = tree.cut(head.config.heads, len(tree), ranks=head.vocab_size)
    if whole is None:
        raise ConfigError(f"tree: no path fits a head that can propose {head.vocab_size} tokens")
    return whole


@dataclass(frozen=True, eq=False)
class _Shape:
    """A cut of the tree as a draft needs it. places: where each node's token is among `[heads * ranks]` guesses."""

    parents: tuple[int, ...]
    places: tuple[int, ...]
    depths: tuple[int, ...]
    ranks: int
    values: tuple[float, ...] | None

    @classmethod
    def of(cls, tree: StaticTree | None) -> _Shape | None:
        if tree is None:
            return None
        places = tuple((len(path) - 1) * tree.ranks + path[-1] for path in tree.paths)
        return cls(tree.parents, places, tuple(map(len, tree.paths)), tree.ranks, tree.values)


@lru_cache(maxsize=64)
def _index(places: tuple[int, ...], device: torch.device) -> Tensor:
    return host.send(places, device)


class MedusaSession(DraftSession):
    """One generation's drafting: keeps the state behind each row's newest token, on the device."""

    def __init__(self, drafter: Medusa, context: Context) -> None:
        self._drafter = drafter
        final = context.prefill.features["final"][0]
        self._head: Any = drafter.head.serving(context.shared, final.device, final.dtype)
        self._states: dict[int, Tensor] = {}  # row to [d]
        self._expected: dict[int, tuple[float, float]] = {}  # row to tokens that drafts promised and that were kept
        self._made: dict[int, tuple[Tensor, _Shape]] = {}  # row to state and shape of its last draft

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if not outcome.tokens:
                continue  # the row stood still: what was known of it still holds
            final = outcome.scores.features["final"]
            prompt = isinstance(final, list)
            self._states[outcome.row.index] = final[outcome.index][-1 if prompt else outcome.leaf]
            self._learn(outcome)

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        self._states = {row.index: self._states[row.index] for row in rows if row.index in self._states}
        shapes = [self._shape(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        active = [
            (at, shape) for at, shape in enumerate(shapes) if shape is not None and rows[at].index in self._states
        ]
        self._made = {rows[at].index: (self._states[rows[at].index], shape) for at, shape in active}
        drafts = [Draft.empty()] * len(rows)
        if not active:
            return drafts
        states = torch.stack([self._states[rows[at].index] for at, _ in active])  # [active, d]
        most = max(shape.ranks for _, shape in active)
        ids = self._head.guesses(states, most)  # [active, heads, ranks]
        for place, (at, shape) in enumerate(active):
            tokens = ids[place, :, : shape.ranks].reshape(-1)[_index(shape.places, ids.device)]
            drafts[at] = Draft.point(tokens, shape.parents)
        return drafts

    def follow(self, ancestors: Mapping[int, int]) -> None:
        self._states, self._expected = _followed(self._states, ancestors), _followed(self._expected, ancestors)

    def confidences(self, row: Row) -> Tensor | None:
        """Products along each path of the heads' probabilities, as if the heads were right independently."""
        if row.index not in self._made:
            return None
        state, shape = self._made[row.index]
        law = self._head.logits(self._head(state)).float().softmax(-1)  # [heads, draft vocabulary]
        best = law.topk(shape.ranks).values.flatten()[_index(shape.places, law.device)]  # [nodes]
        chances: list[Tensor] = []
        for node, parent in enumerate(shape.parents):
            chances.append(best[node] if parent < 0 else chances[parent] * best[node])
        return torch.stack(chances)

    def _shape(self, row: Row, budget: Budget) -> _Shape | None:
        shape = self._drafter.shape(budget.depth, budget.nodes)
        if shape is None or shape.values is None or budget.cost is None or budget.rate is None:
            return shape
        promised, kept = self._expected.get(row.index, (0.0, 0.0))
        scale = (kept + _TRUST) / (promised + _TRUST)
        worth = [math.log(min(1.0, scale * value)) if value else -math.inf for value in shape.values]
        return self._drafter.shape(budget.depth, worthwhile(worth, budget))

    def _learn(self, outcome: Outcome) -> None:
        """Enter what a draft promised and what was kept of it."""
        values = self._drafter.tree.values
        if values is None or not len(outcome.draft):
            return
        shape = self._drafter.shape(outcome.draft.topology.depth, len(outcome.draft))
        if shape is not None and shape.values is not None and len(shape.values) == len(outcome.draft):
            promised, kept = self._expected.get(outcome.row.index, (0.0, 0.0))
            kept = _FORGET * kept + outcome.accepted
            self._expected[outcome.row.index] = (_FORGET * promised + sum(shape.values), kept)


def _followed(kept: dict[int, _Kept], ancestors: Mapping[int, int]) -> dict[int, _Kept]:
    """What is kept for each row once rows have gone on from their ancestors' text."""
    moved = {row: kept[ancestor] for row, ancestor in ancestors.items() if ancestor in kept}
    return {row: value for row, value in kept.items() if row not in ancestors} | moved


def example(vocab_size: int) -> Medusa:
    """A drafter for checks: heads that were never trained, on a tree with two branches, for the tiny target."""
    # The sizes of `specdec.testing.tiny`. Weights of zero: every head says what the target's LM head says.
    config = MedusaHeadConfig(target_hidden_size=16, target_vocab_size=vocab_size, target_layers=4, heads=3)
    return Medusa(MedusaHead(config), tree=cartesian((min(2, vocab_size), min(2, vocab_size), 1)))
