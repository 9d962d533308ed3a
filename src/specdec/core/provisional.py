"""Fixed width: a token is emitted only from logits whose bits do not depend on what was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Candidate, Draft, Kind
from specdec.core.standing import Settled, Standing
from specdec.core.state import Budget, Outcome, Round, Row, Scores

_NOTHING = Budget(0, 0)


@dataclass(eq=False)
class _Ahead:
    """One row's tokens that wait for confirmation, and what its drafter has been told."""

    tokens: tuple[int, ...] = ()  # behind the row's own; the next pass scores them in their own slots
    scored: int = 0  # how many of them stood before the draft in the last pass
    path: tuple[int, ...] = ()  # the last verdict, whole
    decided: tuple[int, ...] = ()
    told: int = 0  # length of the text that the drafter knows
    in_step: bool = True  # False from the time when tokens that the drafter knows were taken back


class Provisional(Standing):
    """Emits what canonical nodes decide, and keeps what lies behind them until the next pass has confirmed it.

    In passes of one width the node at place i lies in slot i after the last committed one. It is canonical, with the
    bits that it would have without a draft, if all nodes before it are its ancestors: its token lies in the slot of
    its position then. A chain is canonical throughout. A path through a tree leaves the canonical nodes somewhere;
    the tokens behind that are provisional: the next pass scores them as a chain in their own slots, before the next
    tree, which hangs below them. Where its logits disagree, they stand and the rest is dropped.

    Drafters see provisional tokens as committed ones. After some were dropped a row is decoded without a draft until
    its text is longer than the one that the drafter knows, for a drafter cannot be told to forget.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rows: dict[int, _Ahead] = {}

    def budgets(self, budget: Budget, live: Sequence[Row]) -> list[Budget]:
        return [self._budget(budget, row) for row in live]

    def seen(self, live: Sequence[Row]) -> Sequence[Row]:
        return [row.ahead(self._of(row).tokens) for row in live]

    def scored(self, live: Sequence[Row], drafts: Sequence[Draft]) -> Sequence[Draft]:
        found = []
        for row, draft in zip(live, drafts, strict=True):
            ahead = self._of(row)
            ahead.scored = len(ahead.tokens)
            found.append(_below(ahead.tokens, draft))
        return found

    def settle(self, row: Row, path: tuple[int, ...], decided: list[int]) -> Settled:
        ahead = self._of(row)
        canonical = 0  # nodes of the path that are canonical: those at their own places
        while canonical < len(path) and path[canonical] == canonical + 1:
            canonical += 1
        ahead.path, ahead.decided = path, tuple(decided)
        ahead.tokens = tuple(decided[canonical + 1 :])
        return Settled(path[:canonical], decided[: canonical + 1])

    def told(self, event: Round) -> Round:
        return replace(event, rows=tuple(self._told(outcome) for outcome in event.rows))

    def _of(self, row: Row) -> _Ahead:
        return self._rows.setdefault(row.index, _Ahead())

    def _budget(self, budget: Budget, row: Row) -> Budget:
        ahead = self._of(row)
        if not ahead.in_step or (ahead.tokens and ahead.tokens[-1] in row.eos):
            return _NOTHING
        budget = budget.within(row.room - len(ahead.tokens))
        nodes = min(budget.nodes, self._width - 1 - len(ahead.tokens))
        return replace(budget, depth=min(budget.depth, nodes), nodes=nodes)

    def _told(self, outcome: Outcome) -> Outcome:
        """The outcome in the drafter's numbering: its anchor is the last token that it knows."""
        row, ahead = outcome.row, self._of(outcome.row)
        if row.done:
            return _own(ahead.scored, outcome)
        length = len(row.tokens) + len(ahead.tokens)
        ahead.in_step = length > ahead.told
        ahead.told = max(ahead.told, length)
        before = ahead.scored
        if not before and not ahead.tokens and ahead.in_step:
            return outcome
        path = tuple(node - before for node in ahead.path[before:]) if ahead.in_step else ()
        tokens = ahead.decided[before:] if ahead.in_step else ()
        return replace(_own(before, outcome), row=row.ahead(ahead.tokens), path=path, tokens=tokens)


def _own(before: int, outcome: Outcome) -> Outcome:
    """What became of the draft itself, in its own numbering, without the chain of `before` tokens above it."""
    if not before:
        return outcome
    return replace(
        outcome,
        draft=_without(before, outcome.draft),
        drafted=outcome.drafted[before:],
        path=tuple(node - before for node in outcome.path[before:]),
        tokens=outcome.tokens[before:],
        scores=_from(before, outcome.scores),
        choices={name: values[before:] for name, values in outcome.choices.items()},
    )


def _below(tokens: tuple[int, ...], draft: Draft) -> Draft:
    """A chain of `tokens` with the draft below its last one."""
    count = len(tokens)
    if not count:
        return draft
    own: tuple[int, ...] | Tensor
    if isinstance(draft.tokens, Tensor):
        own = torch.cat([host.send(tokens, draft.tokens.device), draft.tokens])
    else:
        own = (*tokens, *draft.tokens)
    return Draft(
        tokens=own,
        parents=(*range(-1, count - 1), *(parent + count for parent in draft.parents)),
        kinds=(Kind.POINT,) * count + draft.kinds,
        scratch=frozenset(node + count for node in draft.scratch),
        repeats=tuple(Candidate(extra.node + count, extra.kind) for extra in draft.repeats),
    )


def _without(count: int, draft: Draft) -> Draft:
    """The draft that `_below` hung under `count` tokens."""
    if not count:
        return draft
    return Draft(
        tokens=draft.tokens[count:],
        parents=tuple(parent - count for parent in draft.parents[count:]),
        kinds=draft.kinds[count:],
        scratch=frozenset(node - count for node in draft.scratch),
        repeats=tuple(Candidate(extra.node - count, extra.kind) for extra in draft.repeats),
    )


def _from(node: int, scores: Scores) -> Scores:
    """The scores of a pass without its first `node` nodes."""
    if not node:
        return scores
    features = {name: values[:, node:] for name, values in scores.features.items() if isinstance(values, Tensor)}
    return Scores(scores.logits[:, node:], dict(features))
