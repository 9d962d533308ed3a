"""Running the real engine for checks: what every draft was, what every row said, and the law of a few rounds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specdec.core.contracts import validate
from specdec.core.draft import Draft
from specdec.core.engine import Generation, Parts
from specdec.core.errors import InvalidDraftError
from specdec.core.interfaces import Drafter, DraftSession, Scheduler, ScheduleSession
from specdec.core.population import spread
from specdec.core.rng import Rng, TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Outcome, Round, Row
from specdec.testing.enumeration import enumerate_law
from specdec.testing.laws import HashTable
from specdec.testing.subject import Subject
from specdec.testing.tabular import TabularTarget, sequence_law
from specdec.testing.tiny import TinyTarget
from specdec.testing.trial import Failure
from specdec.verifiers.block import Block
from specdec.verifiers.token import Token
from specdec.verifiers.traversal import Traversal
from specdec.verifiers.walk import Walk

__all__ = ["BUDGETS", "Call", "Cycle", "Spy", "generation_of", "law_of_rounds", "rules_for", "signature", "target_for"]

RULES: dict[str, Callable[[], Any]] = {"walk": Walk, "block": Block, "token": Token, "traversal": Traversal}
FULL = HashTable(((3, 2, 2), (1, 4, 2), (2, 2, 3), (4, 1, 1), (1, 1, 2)))
BUDGETS = tuple(
    Budget(depth, nodes)
    for depth, nodes in ((2, 2), (0, 0), (1, 1), (4, 64), (3, 3), (3, 1), (2, 0), (5, 3), (1, 4), (2, 6), (0, 5))
)


def rules_for(drafter: Any) -> tuple[str, ...]:
    """Names of the exact verifiers that can judge what the drafter declares to emit, the default first."""
    if not any(kind.sampled for kind in drafter.emits):
        return ("walk", "token")
    return ("traversal", "token") if drafter.branching else ("block", "token")


def target_for(subject: Subject, table: HashTable) -> Any:
    """The tabular target, or the tiny model for drafters that need something of a model."""
    needs = subject.sample.needs
    if needs.features or needs.shared:
        return TinyTarget(table.vocab_size)
    return TabularTarget(table, table.vocab_size)


def signature(draft: Draft) -> tuple[Any, ...]:
    """What identifies a draft's guesses: tokens, parents, kinds, scratch and repeats."""
    tokens = tuple(int(token) for token in draft.tokens)
    return tokens, draft.parents, draft.kinds, draft.scratch, draft.repeats


@dataclass
class Call:
    """One call of `propose`: what it was given, what it returned or raised, and what it changed in its rows."""

    rows: tuple[int, ...]
    prefixes: tuple[tuple[int, ...], ...]
    budgets: tuple[Budget, ...]
    returned: Any = None
    error: Exception | None = None
    changed: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)

    def drafts(self) -> Iterator[tuple[tuple[int, ...], Budget, Any]]:
        """Prefix, budget and whatever was returned for each row, as far as they pair up."""
        if isinstance(self.returned, (list, tuple)):
            yield from zip(self.prefixes, self.budgets, self.returned)  # noqa: B905 - a check counts them


class Spy(Drafter):
    """Lets a drafter draft in the engine and keeps what it did; an invalid draft is kept and replaced by none."""

    def __init__(self, inner: Any, lenient: bool = True) -> None:
        self.inner, self.lenient = inner, lenient
        self.name = getattr(inner, "name", type(inner).__name__)  # type: ignore[misc]
        self.emits, self.branching = inner.emits, inner.branching
        self.drafts, self.needs = inner.drafts, inner.needs
        self.calls: list[Call] = []
        self.began: Any = None
        self.changed: list[str] = []

    def begin(self, context: Context) -> DraftSession:
        before = [_state(row) for row in context.rows]
        self.began = self.inner.begin(context)
        self.changed += _changes(context.rows, before, "begin()")
        if not isinstance(self.began, DraftSession):
            raise Failure(f"begin() returned {type(self.began).__name__}; expected a DraftSession")
        return _SpySession(self, self.began, context.vocab_size)

    def by_row(self) -> dict[int, list[tuple[Any, ...]]]:
        """Signatures of the drafts of each row, in order."""
        found: dict[int, list[tuple[Any, ...]]] = {}
        for call in self.calls:
            for row, draft in zip(call.rows, call.returned or (), strict=False):
                found.setdefault(row, []).append(signature(draft))
        return found

    @property
    def nodes(self) -> int:
        """Number of nodes drafted in all calls."""
        return sum(len(draft) for call in self.calls for _, _, draft in call.drafts() if isinstance(draft, Draft))


class _SpySession(DraftSession):
    def __init__(self, spy: Spy, session: Any, vocab: int) -> None:
        self._spy, self._session, self._vocab = spy, session, vocab

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        before = [_state(row) for row in rows]
        call = Call(tuple(row.index for row in rows), tuple(tuple(row.tokens) for row in rows), tuple(budgets))
        self._spy.calls.append(call)
        try:
            call.returned = self._session.propose(rows, budgets, rng)
        except Exception as error:
            call.error = error
            raise
        finally:
            call.changed = _changes(rows, before, "propose()")
        if not self._spy.lenient:
            return call.returned  # type: ignore[no-any-return]
        kept = []
        for (_, budget, draft), row in zip(call.drafts(), rows, strict=False):
            try:
                validate(draft, self._spy, budget, self._vocab, row.index)
                kept.append(draft)
            except InvalidDraftError as error:
                call.invalid.append(str(error))
                kept.append(Draft.empty())
        return [*kept, *[Draft.empty()] * (len(rows) - len(kept))]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        if not self._spy.calls or not self._spy.calls[-1].invalid:
            self._session.observe(outcomes)


def _state(row: Row) -> tuple[Any, ...]:
    return (
        tuple(row.tokens), row.index, row.copy, row.group, row.max_length, row.prompt_length, row.rounds,
        row.done, row.finish_reason, row.eos, row.sampling, row.padding,
    )  # fmt: skip


_STATE = (
    "tokens index copy group max_length prompt_length rounds done finish_reason eos sampling padding".split()  # noqa: SIM905
)


def _changes(rows: Sequence[Row], before: Sequence[tuple[Any, ...]], method: str) -> list[str]:
    """What differs in the rows, each put right again so that the run goes on."""
    found = []
    for row, old in zip(rows, before, strict=True):
        for name, was, now in zip(_STATE, old, _state(row), strict=True):
            if was is not now and was != now:
                found.append(f"{method} changed {name} of row {old[1]} from {was!r} to {now!r}")
                if name == "tokens":
                    list.__setitem__(row.tokens, slice(None), list(was))
                else:
                    setattr(row, name, was)
    return found


class Cycle(Scheduler):
    """Goes through a list of budgets, round by round, from the place that each generation names."""

    name = "cycle"

    def __init__(self, budgets: Sequence[Budget] = BUDGETS, start: int = 0) -> None:
        self.budgets, self.start = tuple(budgets), start

    def begin(self, context: Context, drafts: bool) -> ScheduleSession:
        return _Cycle(self.budgets, self.start)


class _Cycle(ScheduleSession):
    def __init__(self, budgets: tuple[Budget, ...], start: int) -> None:
        self._budgets, self._next = budgets, start

    def plan(self, rows: Sequence[Row]) -> Budget:
        self._next += 1
        return self._budgets[(self._next - 1) % len(self._budgets)]


def generation_of(
    target: Any,
    drafter: Any,
    verifier: Any,
    scheduler: Any,
    prompts: Sequence[Sequence[int]],
    new_tokens: int | Sequence[int],
    rng: Rng | None = None,
    *,
    verify_rng: Rng | None = None,
    sampling: Sampling | None = None,
    eos: Sequence[int] = (),
    criteria: Sequence[Any] = (),
    particles: int = 1,
) -> Generation:
    """A generation that has not begun, of prompts that differ; both streams are folded from `rng`.

    particles: rows of each prompt, which are one output together.
    """
    rng = TorchRng(0) if rng is None else rng
    sampling = Sampling(greedy=False) if sampling is None else sampling
    limits = [new_tokens] * len(prompts) if isinstance(new_tokens, int) else list(new_tokens)
    rows = tuple(
        Row(
            index, list(prompt), sampling, len(prompt) + limit,
            group=index, eos=frozenset(eos), criteria=tuple(criteria),
        )
        for index, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    )  # fmt: skip
    parts = Parts(target, drafter, verifier, scheduler)
    return Generation(
        parts, spread(rows, particles), rng.fold(101), rng.fold(102) if verify_rng is None else verify_rng
    )


def finish(generation: Generation) -> tuple[tuple[int, ...], ...]:
    """Run a generation to its end; the new tokens of each row."""
    for _ in generation.rounds():
        pass
    return tuple(tuple(row.new_tokens) for row in generation.rows)


def first_rounds(generation: Generation, rounds: int) -> list[Round]:
    """The events of the prompt's pass and of at most `rounds` further ones."""
    events = generation.rounds()
    found = [event for _, event in zip(range(rounds + 1), events, strict=False)]
    events.close()  # type: ignore[attr-defined]
    return found


def law_of_rounds(
    make_generation: Callable[[Rng], Generation],
    step: Callable[[tuple[int, ...]], Sequence[float]],
    prompt: tuple[int, ...],
    rounds: int,
    length: int,
    eos: Sequence[int] = (),
    limit: int = 4000,
) -> dict[Hashable, float]:
    """The law of the first `length` tokens where `rounds` rounds are speculative and plain decoding goes on.

    Raises RuntimeError where there are more than `limit` branches.
    """

    def run(rng: Any) -> Hashable:
        generation = make_generation(rng)
        first_rounds(generation, rounds)
        return tuple(generation.rows[0].new_tokens)

    law: dict[Hashable, float] = {}
    for output, weight in enumerate_law(run, limit).items():
        assert isinstance(output, tuple)
        if len(output) >= length or (output and output[-1] in eos):
            law[output[:length]] = law.get(output[:length], 0.0) + weight
            continue
        for rest, share in sequence_law(step, (*prompt, *output), length - len(output), eos).items():
            assert isinstance(rest, tuple)
            law[output + rest] = law.get(output + rest, 0.0) + weight * share
    return law


def step_of(target: Any, sampling: Sampling) -> Callable[[tuple[int, ...]], Sequence[float]]:
    """The processed law after a prefix, by the target's own logits, one prefix at a time."""
    known: dict[tuple[int, ...], list[float]] = {}

    def step(prefix: tuple[int, ...]) -> Sequence[float]:
        if prefix not in known:
            scores = sampling.apply(torch.tensor([prefix]), target.logits(prefix)[None].clone())
            known[prefix] = scores[0].double().softmax(-1).tolist()
        return known[prefix]

    return step


def difference(got: dict[Hashable, float], want: dict[Hashable, float]) -> str:
    """The text whose probability is most wrong, in words."""
    worst = max({*got, *want}, key=lambda key: abs(got.get(key, 0.0) - want.get(key, 0.0)))
    return f"text {worst} has probability {got.get(worst, 0.0):.6g}, under the target's law {want.get(worst, 0.0):.6g}"
