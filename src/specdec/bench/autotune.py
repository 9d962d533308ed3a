"""The fastest decoder for a model and prompts, found by measuring, as a config."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specdec.bench.halving import Failed, Measured, Outcome, search
from specdec.bench.prompts import Prompt
from specdec.bench.record import Record
from specdec.bench.run import Bench, units
from specdec.bench.runners import Answer, Runner, Skipped
from specdec.bench.setting import Setting
from specdec.bench.strategies import PLAIN, Contender
from specdec.core.config import DecoderConfig, TargetConfig
from specdec.plugins.manager import discover
from specdec.targets.load import load_model

__all__ = ["Choice", "autotune"]

# Margins at which a greedy text may differ from plain's: rounding of passes of another width, by number type.
_ROUNDING = {"float32": 1e-2, "float64": 1e-3}
_ROUNDING_HALF = 1.0


@dataclass(frozen=True)
class Choice:
    """config: of the fastest decoder, with its target; None where there was no time to measure one."""

    config: DecoderConfig | None
    outcome: Outcome

    @property
    def claim(self) -> str:
        """How fast it is, and how sure that is, in words."""
        found = self.outcome
        if found.best is None:
            if found.failed:
                reasons = ", ".join(f"{name} ({reason})" for name, reason in found.failed.items())
                return f"nothing is left to choose from; left out: {reasons}"
            return f"nothing could be measured in {found.seconds:.0f} s; give more --minutes or fewer candidates"
        measured = f"{_count(found.prompts, 'prompt')}, {_count(found.visits, 'decoding')} of each"
        said = [f"{found.best}: {found.scores[found.best]:.2f} times plain generate ({measured})"]
        if found.ratio is not None:
            over = f"{found.ratio:.3f} times the runner-up, {found.runner_up}"
            if found.low is None or found.sure is None:
                said += [over, "on so few prompts nobody can say how sure that is; give more --minutes or prompts"]
            else:
                bounds = f"95 % of resampled prompts: {found.low:.3f} to {found.high:.3f}, faster in {found.sure:.0%}"
                said.append(f"{over} ({bounds})")
                if found.low <= 1:
                    said.append("the two cannot be told apart by these prompts; more --minutes or prompts would tell")
        if found.scores[found.best] < 1:
            said.append("no candidate is faster than plain generate here")
        if found.unmeasured:
            said.append(f"no time was left for: {', '.join(found.unmeasured)}")
        if found.interrupted:
            said.append("the search was interrupted")
        return "; ".join(said)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def autotune(
    model: str,
    candidates: Sequence[Contender],
    prompts: Sequence[Prompt],
    *,
    minutes: float = 10.0,
    setting: Setting | None = None,
    tokens: int = 96,
    seed: int = 7,
    chat: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    load: Callable[..., tuple[Any, Any]] = load_model,
    say: Callable[[str], None] = lambda text: None,
) -> Choice:
    """Measure `candidates` against plain `generate` for at most `minutes`, loading included.

    A candidate that cannot be composed with the model, fails on a prompt, or writes greedy text that differs from
    plain's by more than rounding explains, is left out with the reason.
    """
    start, setting = clock(), setting or Setting()
    plain = Contender(PLAIN, "plain")
    bench = Bench(
        model, [plain, *candidates], prompts, [setting],
        tokens=tokens, seed=seed, chat=chat, clock=clock, load=load, say=say,
    )  # fmt: skip
    network, tokenizer = bench.loaded(setting)
    parts = units(prompts, setting.batch)
    encoded = [bench.encode(part, tokenizer, network.device) for part in parts]
    by_name = {one.name: one for one in bench.contenders}
    runners: dict[str, Runner] = {}
    references: dict[int, Answer] = {}
    allowed = _ROUNDING.get(str(network.dtype).removeprefix("torch."), _ROUNDING_HALF)

    def measure(name: str, number: int) -> Measured:
        ids, mask = encoded[number]
        if name not in runners:
            try:
                runners[name] = bench.runner(by_name[name], setting)
                bench.warm_up(runners[name], ids, mask, setting)
            except Skipped as reason:
                raise Failed(str(reason)) from reason
        part = parts[number]
        empty = Record(name, part.task, number, rows=len(ids), **setting.as_fields())
        record, answer = bench.measure(runners[name], empty, ids, mask)
        if answer is None:
            raise Failed(str(record.error))
        if name == PLAIN:
            references[number] = answer
        elif setting.greedy and number in references:
            compared = bench.compared(record, answer, references[number], ids, mask)
            margin = compared.difference_margin
            if not compared.identical and (margin is None or margin > allowed):
                raise Failed(f"its text differs from plain generate's by a margin of {margin}, more than rounding")
        return Measured(record.tokens, record.seconds)

    tasks = [part.task for part in parts]
    outcome = search(list(by_name), tasks, measure, 60 * minutes - (clock() - start), clock, PLAIN, say)
    config = None
    if outcome.best is not None:
        chosen = by_name[outcome.best].config
        assert chosen is not None
        target = TargetConfig(model=model, dtype=setting.dtype)
        config = discover().stamp(chosen.model_copy(update={"target": target}))
    return Choice(config, outcome)
