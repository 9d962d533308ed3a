"""Checks of whole generations: batches, order, leaks, seeds, exceptions and stops."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec.core.draft import Kind
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget
from specdec.schedulers.fixed import Fixed
from specdec.testing.drafter_checks import PROMPTS, random_state
from specdec.testing.harness import FULL, RULES, Cycle, Spy, finish, first_rounds, generation_of, rules_for, target_for
from specdec.testing.subject import Subject
from specdec.testing.trial import Failure, NotApplicable, Trial, applies, reason_of
from specdec.verifiers.smc import SMC

__all__ = ["RUNS"]

SIX = (*PROMPTS, (0, 0, 1), (2, 2, 0, 1), (1,))
STEADY = tuple(Budget(depth, nodes) for depth, nodes in ((2, 4), (3, 3), (1, 1), (4, 6)))


class Run:
    """One generation of some prompts: its texts and each row's drafts."""

    def __init__(
        self,
        subject: Subject,
        drafter: Any,
        prompts: Sequence[Sequence[int]],
        tokens: int | Sequence[int] = 12,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.spy, self.prompts = Spy(drafter, lenient=False), tuple(prompts)
        verifier = RULES[rules_for(self.spy)[0]]()
        self.generation = generation_of(
            target_for(subject, FULL), self.spy, verifier, Cycle(STEADY), prompts, tokens, TorchRng(seed), **options
        )

    def finish(self) -> Run:
        finish(self.generation)
        return self

    def row(self, index: int) -> tuple[Any, ...]:
        """What must not depend on company: text and drafts of one row."""
        return tuple(self.generation.rows[index].new_tokens), tuple(self.spy.by_row().get(index, ()))


def _same(one: Run, index: int, other: Run, place: int, what: str) -> None:
    first, second = one.row(index), other.row(place)
    if first == second:
        return
    rounds = [at for at, (a, b) in enumerate(zip(first[1], second[1], strict=False), start=1) if a != b]
    where = f"draft of round {rounds[0]}" if rounds else "text"
    shown = [f"prompt={one.prompts[index]}"]
    if rounds:
        shown += [f"{first[1][rounds[0] - 1][:2]}", f"{second[1][rounds[0] - 1][:2]}"]
    raise Failure(f"{what}: the {where} differs", "\n".join(shown))


def _modes(subject: Subject) -> tuple[Sampling, ...]:
    return Sampling(greedy=False), Sampling(greedy=True)


def batch_equals_single(subject: Subject, trial: Trial) -> str:
    """A row's drafts and text do not depend on the other rows of its batch."""
    for sampling in _modes(subject):
        for seed in range(2 if subject.heavy else 6):
            together = Run(subject, subject.make(3), SIX[:4], seed=seed, sampling=sampling).finish()
            for index, prompt in enumerate(SIX[:4]):
                alone = Run(subject, subject.make(3), [prompt], seed=seed, sampling=sampling).finish()
                _same(together, index, alone, 0, f"row {index} in a batch of 4 and alone, seed {seed}")
    return "batches of 4 rows"


def row_order(subject: Subject, trial: Trial) -> str:
    """Rows may stand in any order and finish at different times."""
    lengths = (3, 14, 7, 10, 5, 12)
    for seed in range(1 if subject.heavy else 4):
        plain = Run(subject, subject.make(3), SIX, lengths, seed).finish()
        for order in ((5, 4, 3, 2, 1, 0), (2, 0, 4, 1, 5, 3)):
            moved = Run(
                subject, subject.make(3), [SIX[at] for at in order], [lengths[at] for at in order], seed
            ).finish()
            for place, index in enumerate(order):
                _same(plain, index, moved, place, f"rows in order {order}, seed {seed}")
    return "6 rows of different length in 3 orders"


def no_leak(subject: Subject, trial: Trial) -> str:
    """Generations of one drafter, interleaved or in sequence, do not see each other."""
    alone = [Run(subject, subject.make(3), [prompt], seed=4).finish() for prompt in SIX[:3]]
    drafter = subject.make(3)
    runs = [Run(subject, drafter, [prompt], seed=4) for prompt in SIX[:3]]
    active = [run.generation.rounds() for run in runs]
    while active:
        active = [events for events in active if next(events, None) is not None]
    for solo, run in zip(alone, runs, strict=True):
        _same(solo, 0, run, 0, "alone and interleaved with two other generations")
    for solo, prompt in zip(reversed(alone), reversed(SIX[:3]), strict=True):
        _same(solo, 0, Run(subject, drafter, [prompt], seed=4).finish(), 0, "alone and after other generations")
    return "3 generations, interleaved and in sequence"


def _disturbed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def same_seed_same_draft(subject: Subject, trial: Trial) -> str:
    """Drafts follow from the seed given, not from global generators, and leave those as they were."""
    python = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            for sampling in _modes(subject):
                runs = []
                for seed in (1, 2):
                    drafter = subject.make(3)
                    _disturbed(seed)
                    before = random_state()
                    runs.append(Run(subject, drafter, SIX[:3], seed=9, sampling=sampling).finish())
                    if random_state() != before:
                        raise Failure(
                            "a generation drew from the global generator of Python or torch; "
                            "expected draws from the rng that propose() is given"
                        )
                for index in range(3):
                    _same(runs[0], index, runs[1], index, "two runs of one seed")
    finally:
        random.setstate(python)
    return "2 runs of 3 rows, sampled and greedy"


def separate_randomness(subject: Subject, trial: Trial) -> str:
    """A draft does not depend on the stream that the verifier draws from."""
    table, prompt = FULL.opening((0, 1, 0), 1), (0, 1, 0)
    for seed in range(3 if subject.heavy else 10):
        drafts: list[tuple[Any, Any]] = []
        for other in (501, 502, 503):
            spy = Spy(subject.make(3), lenient=False)
            generation = generation_of(
                target_for(subject, table), spy, RULES[rules_for(spy)[0]](), Fixed(3, 4), [prompt], 8, TorchRng(seed),
                verify_rng=TorchRng(other),
            )  # fmt: skip
            events = first_rounds(generation, 1)
            if events[0].rows[0].tokens != drafts[0][0] if drafts else False:
                continue  # the prompt's own token came out differently, so the prefixes do
            drafts.append((events[0].rows[0].tokens, spy.by_row().get(0)))
        if any(draft != drafts[0] for draft in drafts):
            raise Failure(
                "the draft changes with the verifier's stream; expected draws from the rng that propose() is given",
                f"prompt={prompt}\n" + "\n".join(str(draft[1]) for draft in drafts),
            )
    return "first drafts under 3 verifier streams a seed"


class Broken(Exception):
    """Raised on purpose in the middle of a generation."""


def usable_after_exception(subject: Subject, trial: Trial) -> str:
    """After a generation that broke off, or was left, the next one is as if there had been none."""
    clean = Run(subject, subject.make(3), SIX[:3], seed=3).finish()
    drafter = subject.make(3)

    def breaks(prefix: Any, scores: Any) -> bool:
        if prefix.shape[1] > 8:
            raise Broken
        return False

    for criteria in ([breaks], []):
        run = Run(subject, drafter, SIX[:3], seed=5, criteria=criteria)
        with contextlib.suppress(Broken):
            first_rounds(run.generation, 9 if criteria else 2)
        again = Run(subject, drafter, SIX[:3], seed=3).finish()
        for index in range(3):
            _same(clean, index, again, index, "in a new decoder and after a generation that broke off")
    return "a criterion that raises, and a generation that was left"


def stops(subject: Subject, trial: Trial) -> str:
    """Length, end token and criterion end a row inside a block, exactly there, and its neighbours go on."""

    def at_five(prefix: Any, scores: Any) -> bool:
        return bool(prefix.shape[1] >= 5 + 3)

    for length in range(1, 8):
        limits = (length, 9, length + 1)
        run = Run(subject, subject.make(3), SIX[:3], limits, seed=length).finish()
        found = tuple(len(row.new_tokens) for row in run.generation.rows)
        if found != limits:
            raise Failure(f"rows with room for {limits} tokens emitted {found}")
    for seed in range(2 if subject.heavy else 5):
        run = Run(subject, subject.make(3), SIX[:3], 12, seed, eos=(2,)).finish()
        for row in run.generation.rows:
            text = row.new_tokens
            if 2 in text[:-1] or (len(text) < 12 and text[-1] != 2):
                raise Failure("a row does not end at its end token", f"prompt={SIX[row.index]}\ntext={text}\neos=2")
        run = Run(subject, subject.make(3), [PROMPTS[2], (0, 2, 1)], 12, seed, criteria=[at_five]).finish()
        if (lengths := [len(row.new_tokens) for row in run.generation.rows]) != [5, 5]:
            raise Failure(f"a criterion that says stop after 5 tokens ended rows after {lengths}")
    return "lengths 1 to 9, end tokens and a criterion"


def _proposes(subject: Subject) -> None:
    drafter = subject.sample
    if Kind.IID not in drafter.emits or drafter.branching or not drafter.emits <= SMC.judges:
        raise NotApplicable("it draws no IID chains, which are what particles are weighed by")


@applies(_proposes)
def particles(subject: Subject, trial: Trial) -> str:
    """Rows may go on from each other's text, ended ones too, as particles do that are resampled."""
    resampled = 0
    for seed in range(4 if subject.heavy else 20):
        spy = Spy(subject.make(3), lenient=False)
        generation = generation_of(
            target_for(subject, FULL), spy, SMC(6, threshold=1.0), Cycle(STEADY), SIX[:2], 16, TorchRng(seed),
            eos=(2,) if seed else (), particles=6,
        )  # fmt: skip
        try:
            finish(generation)
        except Exception as error:
            raise Failure(reason_of(error), f"seed={seed}\nparticles of 2 prompts, 6 each") from error
        ensembles = generation.population.ensembles(generation.rows) or ()
        resampled += sum(sum(one.resampled) for one in ensembles)
    if not resampled:
        raise NotApplicable("its particles always had equal weights, so none was resampled")
    return f"{resampled} resamplings"


RUNS: dict[str, Callable[[Subject, Trial], str]] = {
    "batch-equals-single": batch_equals_single,
    "row-order": row_order,
    "no-leak": no_leak,
    "same-seed-same-draft": same_seed_same_draft,
    "separate-randomness": separate_randomness,
    "usable-after-exception": usable_after_exception,
    "stops": stops,
    "particles": particles,
}
