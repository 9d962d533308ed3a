"""The engine's rows and budgets, and the records that other parts may read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Draft

if TYPE_CHECKING:
    from specdec.core.sampling import Sampling

Criterion = Callable[[Tensor, "tuple[Tensor, ...] | None"], "Tensor | bool"]
"""A stopping criterion: padded prefix `[1, length]` and the scores so far, to "stop here"."""


class Tokens(list[int]):
    """A row's token ids: every part may read them as a list, and only the engine adds to them.

    A drafter that wrote into its row would change the text; here it gets a TypeError instead.
    """

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("a row's tokens cannot be changed: only the engine adds to them. Copy them: list(row.tokens)")

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[type[Tokens], tuple[list[int]]]:
        return Tokens, (list(self),)  # a copy is made whole, not token by token

    def commit(self, token: int) -> None:
        """Add one emitted token; for the engine."""
        list.append(self, token)


@dataclass(eq=False)
class Row:
    """One sequence being generated. Only the engine writes to it; every other part may read.

    tokens: real tokens, prompt first, without padding. The last one is the anchor of the next round.
    padding: number of pad tokens that the caller's prompt had on the left; processors and criteria see them.
    copy: number of earlier rows of this call with the same prompt; part of the key of this row's noise.
    group: rows of one group have the same prompt and share its cache slots.
    output: which output the row is a particle of, where an output has several rows; by default its own.
    """

    index: int
    tokens: list[int]
    sampling: Sampling
    max_length: int  # of real tokens
    copy: int = 0
    group: int = 0
    padding: tuple[int, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    eos: frozenset[int] = frozenset()
    prompt_length: int = 0
    rounds: int = 0
    done: bool = False
    finish_reason: str | None = None
    output: int = -1
    _prefix: Tensor | None = field(default=None, repr=False)
    _written: int = 0

    def __post_init__(self) -> None:
        self.tokens = Tokens(self.tokens)
        self.prompt_length = len(self.tokens)
        if self.output < 0:
            self.output = self.index

    @property
    def anchor(self) -> int:
        return self.tokens[-1]

    @property
    def position(self) -> int:
        """Position of the anchor, counted in real tokens."""
        return len(self.tokens) - 1

    @property
    def room(self) -> int:
        """Number of tokens that may still be emitted."""
        return self.max_length - len(self.tokens)

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    def ahead(self, tokens: Sequence[int]) -> Row:
        """This row as it will be if `tokens` follow: what drafters see while these wait to be confirmed."""
        if not tokens:
            return self
        view = copy.copy(self)
        view.tokens = Tokens([*self.tokens, *tokens])
        view._prefix, view._written = None, 0
        return view

    def take_over(self, source: Row) -> None:
        """Go on from the text of `source`, a row as it was, of the same prompt; for the engine."""
        self.tokens, self.rounds = Tokens(source.tokens), source.rounds
        self.done, self.finish_reason = source.done, source.finish_reason
        self._written = min(self._written, self.prompt_length)

    def prefix(self, device: torch.device, length: int | None = None) -> Tensor:
        """Padded ids `[1, padding + length]` on `device`, as processors and criteria expect them.

        `length` counts real tokens; the default is all of them. Writes only what is new since the last call.
        """
        pad = len(self.padding)
        if self._prefix is None:
            self._prefix = torch.zeros(1, pad + self.max_length, dtype=torch.int64, device=device)
            if pad:
                self._prefix[0, :pad] = host.send(self.padding, device)
        if self._written < len(self.tokens):
            fresh = host.send(self.tokens[self._written :], device)
            self._prefix[0, pad + self._written : pad + len(self.tokens)] = fresh
            self._written = len(self.tokens)
        return self._prefix[:, : pad + (len(self.tokens) if length is None else length)]

    def extend(self, tokens: Sequence[int], scores: Sequence[Tensor] | None, device: torch.device) -> int:
        """Append tokens up to the one that ends the row; returns how many were appended (at least one).

        Eos, length and every criterion are asked token by token, so the row ends where plain decoding would.
        `scores` are the processed scores of all new tokens of the row, for criteria that look at them.
        """
        before = len(self.new_tokens)
        for count, token in enumerate(tokens, start=1):
            self.tokens.commit(token)  # type: ignore[attr-defined]
            if token in self.eos:
                self.finish_reason = "eos"
            elif len(self.tokens) >= self.max_length:
                self.finish_reason = "length"
            if self.criteria:
                seen = tuple(scores[: before + count]) if scores is not None else None
                prefix = self.prefix(device)
                # Every criterion is called, as generate does, even when an earlier one has said stop.
                answers = [host.is_true(criterion(prefix, seen)) for criterion in self.criteria]
                if any(answers) and self.finish_reason is None:
                    self.finish_reason = "criterion"
            if self.finish_reason is not None:
                self.done = True
                return count
        return len(tokens)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one row may draft this round.

    depth: longest path that may be accepted. nodes: most nodes, scratch included.
    cost: seconds that a round takes with n drafted nodes, or None where nothing has been measured.
    rate: the going rate in tokens per second, or None; a node pays if its chance of acceptance exceeds
        `rate` times what it costs (algorithms: marginal-rate rule).
    reach: how deep scratch nodes may lie, where that is deeper than `depth`, which limits what may be accepted.
    step: seconds that one more level takes a drafter that goes level by level, beside what its nodes `cost`, or None.
    """

    depth: int
    nodes: int
    cost: Callable[[int], float] | None = None
    rate: float | None = None
    reach: int = 0
    step: float | None = None

    def within(self, room: int) -> Budget:
        """This budget cut to the tokens that may still be emitted; the last one is the target's own."""
        most = max(0, room - 1)
        depth = min(self.depth, most)
        return Budget(depth, self.nodes if depth else 0, self.cost, self.rate, most, self.step)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What one target pass returned.

    logits: `[rows, width, vocab]`, node 0 is the anchor.
    features: name to `[rows, width, size]`; for the pass over the prompts, one `[prompt, size]` tensor a row.
    """

    logits: Tensor
    features: dict[str, Tensor | list[Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a round did to one row.

    path: accepted nodes whose token was kept (numbering of the pass, anchor excluded).
    tokens: emitted tokens; the first `accepted` of them were drafted, the last may be the target's own.
    scores, index: the pass and this row's place in it; logits of all nodes, also of rejected ones. Outcomes of one
        round need not share one `scores`.
    done: the row ended with this round.
    kept: `nodes`, where they are not the anchor and `path`: a drafter below `merge` sees its own draft here, and the
        text may have gone on by nodes that another one drafted; scores and choices have them behind its own nodes.
    choices: what the drafter asked for in `Needs.choices`, by name: one entry a node, the anchor's first; an id for
        "decided", a tuple of ids for "top:k".

    `tokens` is empty where a drafter is told that its row stood still for a round; `leaf` means nothing then.
    """

    row: Row
    draft: Draft
    drafted: tuple[int, ...]
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    scores: Scores
    index: int
    done: bool = False
    kept: tuple[int, ...] | None = None
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def accepted(self) -> int:
        return min(len(self.path), len(self.tokens))

    @property
    def judged(self) -> int:
        return self.draft.topology.judged

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes of the pass, anchor first, at which `tokens` were decided, one a token: `nodes[i]` gave `tokens[i]`."""
        return (0, *self.path)[: len(self.tokens)] if self.kept is None else self.kept

    @property
    def leaf(self) -> int:
        """Last kept node, 0 for the anchor: its features are those of the new last-but-one token."""
        if self.kept is not None:
            return self.kept[-1] if self.kept else 0
        return self.path[-1] if self.path else 0

    def features(self, name: str) -> Tensor:
        """`[tokens, size]`: the states under feature `name` from which `tokens` were decided, one a token.

        In the pass over the prompts `[prompt, size]`, one a token of the prompt. Whoever drafted the accepted nodes,
        these are the states of all inputs of the pass that are text now.
        """
        values = self.scores.features[name]
        if isinstance(values, list):
            return values[self.index]
        nodes, states = self.nodes, values[self.index]  # [width, size]
        if nodes == tuple(range(len(nodes))):
            return states[: len(nodes)]
        return states.index_select(0, host.send(nodes, states.device))


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Seconds of wall clock. On a GPU, work that was only queued counts where the host waits for it."""

    draft: float
    target: float
    verify: float
    total: float


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One event of the stream: what this round emitted in each live row. Round 0 is the pass over the prompts."""

    number: int
    rows: tuple[Outcome, ...]
    times: RoundTimes
    width: int  # nodes scored a row, anchor and padding included


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a drafter is told when a generation begins.

    prefill: logits and features of the pass over the prompts.
    shared: the target's modules that the drafter asked for in `Needs.shared`, by name.
    context_length: positions for which the target was made, if that is known.
    compiles: the `compile` of the target's passes; a drafter that runs a model of its own does likewise.
    widths: nodes of a row, the anchor included, to which the target pads its passes, ascending; wider ones it does not.
    lend: `TargetSession.lend`, for drafters that need the target's "layers".
    """

    rows: tuple[Row, ...]
    vocab_size: int
    device: torch.device
    prefill: Scores
    shared: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    context_length: int | None = None
    compiles: bool | str = False
    lend: Callable[[Sequence[int]], Any] | None = None
    widths: tuple[int, ...] = ()

    @property
    def greedy(self) -> bool:
        """True where every row decodes greedily."""
        return all(row.sampling.greedy for row in self.rows)
