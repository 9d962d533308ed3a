"""What drafters made of drafters have in common: joint declarations, and each one's own view of what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from specdec.core import host
from specdec.core.config import StrategyConfig, create
from specdec.core.contracts import Needs, validate, validate_count
from specdec.core.draft import Draft
from specdec.core.engine import blame
from specdec.core.errors import IncompatibleError
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row, Scores


class Several(Drafter):
    """Base of drafters that draft by others: what it emits and needs is the union of what they do.

    Raises IncompatibleError where one of `drafters` is no drafter, or there is none.
    """

    config_class: ClassVar[type[StrategyConfig]]

    def __init__(self, *drafters: Drafter) -> None:
        if wrong := [part for part in drafters if not isinstance(part, Drafter)]:
            found = ", ".join(type(part).__name__ for part in wrong)
            raise IncompatibleError(f"{type(self).__name__} takes drafters, one after another; found {found}")
        if not drafters:
            raise IncompatibleError(f"{type(self).__name__} takes at least one drafter, found none")
        self.drafters = drafters
        needs = [drafter.needs for drafter in drafters]
        self.emits = frozenset().union(*(drafter.emits for drafter in drafters))
        self.branching = any(drafter.branching for drafter in drafters)
        self.drafts = any(drafter.drafts for drafter in drafters)
        self.needs = Needs(
            features=_union(need.features for need in needs),
            shared=_union(need.shared for need in needs),
            choices=_union(need.choices for need in needs),
        )

    @property
    def config(self) -> StrategyConfig | None:
        """The config of all of them, or None where one of them has none."""
        configs = [drafter.config for drafter in self.drafters]
        return None if None in configs else self.config_class(drafters=tuple(configs))  # type: ignore[call-arg]

    @classmethod
    def from_config(cls, config: Any) -> Several:
        return cls(*(create("drafter", part) for part in config.drafters))

    def for_target(self, target: Target) -> Drafter:
        met = [drafter.for_target(target) for drafter in self.drafters]
        same = all(new is old for new, old in zip(met, self.drafters, strict=True))
        return self if same else type(self)(*met)

    def problems(self, target: Target, tokenizer: Any = None) -> list[str]:
        return [problem for drafter in self.drafters for problem in drafter.problems(target, tokenizer)]


def _union(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for some in names for name in some))


class SeveralSession(DraftSession):
    """Sessions of several drafters, each of which is told what became of its own draft."""

    def __init__(self, drafters: Sequence[Drafter], context: Context) -> None:
        self._drafters, self._context = tuple(drafters), context
        self._sessions: list[DraftSession] = []
        for drafter in self._drafters:
            with blame(drafter, "begin", 0):
                self._sessions.append(drafter.begin(context))
        # Row index to each drafter's draft of this round, with the nodes of the pass that its nodes became.
        self._made: dict[int, list[tuple[Draft, Sequence[int]]]] = {}

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        views: list[list[Outcome]] = [[] for _ in self._drafters]
        for outcome in outcomes:
            made = self._made.pop(outcome.row.index, None)
            seen = self._views(outcome, made) if made is not None else [outcome] * len(views)
            for mine, view in zip(views, seen, strict=True):
                mine.append(view)
        for drafter, session, mine in zip(self._drafters, self._sessions, views, strict=True):
            with blame(drafter, "observe", outcomes[0].row.rounds if outcomes else 0):
                session.observe(mine)

    def follow(self, ancestors: Mapping[int, int]) -> None:
        for drafter, session in zip(self._drafters, self._sessions, strict=True):
            with blame(drafter, "follow", self._context.rows[0].rounds):
                session.follow(ancestors)

    def shown(self, row: Row) -> Mapping[str, Any]:
        """Who drafted which nodes, and what each of the drafters shows."""
        made = self._made.get(row.index, [])
        pairs = zip(self._drafters, made, strict=False)
        whose = [[drafter.name, list(nodes)] for drafter, (draft, nodes) in pairs if len(draft)]
        found: dict[str, Any] = {"drafters": whose} if made else {}
        for session in self._sessions:
            found = {**session.shown(row), **found}
        return found

    def _views(self, outcome: Outcome, made: Sequence[tuple[Draft, Sequence[int]]]) -> list[Outcome]:
        return [
            outcome_of(outcome, draft, nodes, drafter.needs.features)
            for drafter, (draft, nodes) in zip(self._drafters, made, strict=True)
        ]

    def _ask(self, number: int, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> list[Draft]:
        """One drafter's drafts, held against its own declarations; every session sees all live rows."""
        drafter = self._drafters[number]
        with blame(drafter, "propose", rows[0].rounds):
            # A stream each, or two drafters of one kind would draw the same noise.
            drafts = list(self._sessions[number].propose(rows, budgets, rng.fold(number)))
            validate_count(drafts, len(rows))
            for row, draft, budget in zip(rows, drafts, budgets, strict=True):
                validate(draft, drafter, budget, self._context.vocab_size, row.index)
        return drafts


def outcome_of(outcome: Outcome, draft: Draft, nodes: Sequence[int], features: Sequence[str]) -> Outcome:
    """What a round did to a row, as the drafter of `draft` sees it, whose nodes became `nodes` of the pass.

    Everything is in the numbering of `draft`: the path as far as the text went along it, scores and choices. Nodes
    that were kept and that it did not draft stand behind its own, so `Outcome.nodes` and `Outcome.features` cover all
    that is text now. features: names of the features that it needs.
    """
    kept = outcome.nodes
    view = replace(
        outcome,
        draft=draft,
        drafted=tuple(outcome.drafted[node - 1] for node in nodes),
        path=_path(outcome, draft, nodes),
        kept=kept,
    )
    if all(node == place for place, node in enumerate(nodes, start=1)):
        return view  # its nodes have their own numbers in the pass
    own = {0, *nodes}
    shown = (0, *nodes, *(node for node in kept if node not in own))
    number = {node: place for place, node in reversed(list(enumerate(shown)))}
    return replace(
        view,
        kept=tuple(number[node] for node in kept),
        scores=_Renumbered(outcome.scores, outcome.index, shown, features),
        index=0,
        choices={name: tuple(each[node] for node in shown) for name, each in outcome.choices.items()},
    )


def _path(outcome: Outcome, draft: Draft, nodes: Sequence[int]) -> tuple[int, ...]:
    """The nodes of `draft` along which the text went, in its numbering."""
    path: list[int] = []
    node, candidates = 0, draft.topology.candidates
    for place, token in zip(outcome.nodes[1:], outcome.tokens, strict=False):
        below = [candidate.node for candidate in candidates[node]]
        # By node where it can be; by token where another node of the same token stood for election first.
        same = [at for at in below if nodes[at - 1] == place]
        same += [at for at in below if outcome.drafted[nodes[at - 1] - 1] == token]
        if not same:
            break
        node = same[0]
        path.append(node)
    return tuple(path)


class _Renumbered(Scores):
    """One row of a pass with its nodes in another order; nothing is gathered before it is looked at."""

    # No dataclass of its own: its two fields are computed when they are first asked for.
    def __init__(self, scores: Scores, index: int, nodes: Sequence[int], features: Sequence[str]) -> None:
        vars(self)["_of"] = scores, index, tuple(nodes), tuple(features)  # frozen against plain assignment

    @cached_property
    def logits(self) -> Tensor:  # type: ignore[override]
        """`[1, nodes, vocab]`."""
        return self._picked(vars(self)["_of"][0].logits)

    @cached_property
    def features(self) -> dict[str, Tensor | list[Tensor]]:  # type: ignore[override]
        """Name to `[1, nodes, size]`."""
        scores, _, _, names = vars(self)["_of"]
        return {name: self._picked(scores.features[name]) for name in names if name in scores.features}

    def _picked(self, values: Tensor) -> Tensor:
        _, index, nodes, _ = vars(self)["_of"]
        row = values[index]  # [width, size]
        return row.index_select(0, host.send(nodes, row.device))[None]
