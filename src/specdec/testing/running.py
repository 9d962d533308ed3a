"""Run the real engine on parts given by hand: the short road from parts to tokens for checks."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.core.engine import Generation, Parts
from specdec.core.interfaces import Drafter, Scheduler, Target, Verifier
from specdec.core.rng import Rng
from specdec.core.sampling import Sampling
from specdec.core.state import Row


def generate_tokens(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    scheduler: Scheduler,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    rng: Rng,
    *,
    sampling: Sampling | None = None,
    eos: Sequence[int] = (),
) -> tuple[tuple[int, ...], ...]:
    """The new tokens of each prompt. Drafter and verifier draw from separate streams folded from `rng`."""
    sampling = Sampling(greedy=False) if sampling is None else sampling
    seen: list[tuple[int, ...]] = []
    rows = []
    for index, prompt in enumerate(prompts):
        copy = seen.count(tuple(prompt))
        seen.append(tuple(prompt))
        rows.append(Row(index, list(prompt), sampling, len(prompt) + new_tokens, copy, group=index, eos=frozenset(eos)))
    generation = Generation(Parts(target, drafter, verifier, scheduler), tuple(rows), rng.fold(101), rng.fold(102))
    for _ in generation.rounds():
        pass
    return tuple(tuple(row.new_tokens) for row in rows)
