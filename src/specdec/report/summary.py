"""Records of a benchmark put together: each strategy of each setting against plain `generate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from specdec.bench.record import Record
from specdec.bench.setting import Setting
from specdec.bench.strategies import PLAIN

__all__ = ["Line", "Summary", "slower", "summarise"]


@dataclass(frozen=True)
class Line:
    """One strategy under one setting.

    speed: tokens a second over all prompts. ratios: by task, speed over that of the baseline on the prompts that both
    decoded, each speed being tokens over seconds of the task. ratio: their mean over tasks, so that a task with long
    answers counts no more than another. median, low, high: of the ratios prompt by prompt, with the quartiles.
    tokens_per_pass: of each task, then their mean. kept: by depth, passes that kept a drafted token there over all
    passes; their sum is what drafts add to a pass. acceptance: by depth, accepted over judged; a tree judges many to
    keep one. shares: of the time in draft, target, verify and the rest. memory: bytes.
    identical: (texts that are plain's, texts that were compared). worst: largest margin at a first difference.
    unexplained: texts that differ otherwise than at a margin. near_ties: tokens at near-ties, and of how many.
    """

    strategy: str
    speed: float | None = None
    ratios: dict[str, float] | None = None
    ratio: float | None = None
    median: float | None = None
    low: float | None = None
    high: float | None = None
    tokens_per_pass: float | None = None
    kept: tuple[float, ...] = ()
    acceptance: tuple[float, ...] = ()
    shares: tuple[float, float, float, float] | None = None
    memory: int | None = None
    guarantee: str | None = None
    identical: tuple[int, int] = (0, 0)
    worst: float | None = None
    unexplained: int = 0
    near_ties: tuple[int, int] | None = None
    repeated: float | None = None
    prompts: int = 0
    failed: int = 0
    skipped: str | None = None


@dataclass(frozen=True)
class Summary:
    """All strategies of one setting: first `baseline`, then in the order in which they were measured first."""

    setting: Setting
    tasks: tuple[str, ...]
    lines: tuple[Line, ...]
    baseline: str = PLAIN


def summarise(records: Iterable[Record], baseline: str = PLAIN) -> list[Summary]:
    """One `Summary` a setting, against the strategy `baseline`."""
    by_setting: dict[Setting, list[Record]] = {}
    for record in records:
        setting = Setting(record.batch, record.temperature, record.dtype, record.compile, record.exactness)
        by_setting.setdefault(setting, []).append(record)
    return [_summary(setting, found, baseline) for setting, found in by_setting.items()]


def slower(summary: Summary) -> list[str]:
    """Sentences that say which strategies are slower than the baseline, in all or on some tasks."""
    said = []
    base = "plain generate" if summary.baseline == PLAIN else summary.baseline
    for line in summary.lines:
        if line.ratio is None or line.strategy == summary.baseline:
            continue
        tasks = [f"{task} {ratio:.2f}x" for task, ratio in (line.ratios or {}).items() if round(ratio, 2) < 1]
        if round(line.ratio, 2) < 1:
            said.append(f"{line.strategy} is slower than {base}: {line.ratio:.2f}x over all tasks")
        elif tasks:
            said.append(f"{line.strategy} is slower than {base} on {', '.join(tasks)}")
    return said


def _summary(setting: Setting, records: Sequence[Record], baseline: str) -> Summary:
    by_strategy: dict[str, list[Record]] = {}
    for record in records:
        by_strategy.setdefault(record.strategy, []).append(record)
    tasks = tuple(dict.fromkeys(record.task for record in records if record.prompt >= 0))
    plain = _keyed(by_strategy.get(baseline, ()))
    names = sorted(by_strategy, key=lambda name: name != baseline)  # stable: the others keep their order
    lines = tuple(_line(name, by_strategy[name], plain, tasks) for name in names)
    return Summary(setting, tasks, lines, baseline)


_Key = tuple[int, str, int, int, int]


def _keyed(records: Iterable[Record]) -> dict[_Key, Record]:
    """What was measured, by what it is paired by: the run, since another one had other moments, and the prompt."""
    found: dict[_Key, Record] = {}
    times: dict[tuple[int, str, int, int], int] = {}
    for record in records:
        place = (record.run, record.task, record.prompt, record.repeat)
        times[place] = times.get(place, 0) + 1
        if record.measured:
            key = (*place, times[place])
            found[key] = record
    return found


def _line(name: str, records: Sequence[Record], plain: dict[_Key, Record], tasks: Sequence[str]) -> Line:
    measured = _keyed(records)
    failed = sum(record.error is not None for record in records)
    skipped = next((record.skipped for record in records if record.skipped is not None), None)
    if not measured:
        return Line(name, failed=failed, skipped=skipped)
    mine = list(measured.values())
    pairs = [(record, plain[key]) for key, record in measured.items() if key in plain]
    ratios = {}
    for task in tasks:
        of_task = [pair for pair in pairs if pair[0].task == task]
        if of_task and (theirs := _speed(pair[1] for pair in of_task)):
            ratios[task] = _speed(pair[0] for pair in of_task) / theirs
    each = [ours.speed / theirs.speed for ours, theirs in pairs if theirs.speed]
    low, _, high = quantiles(each, n=4, method="inclusive") if len(each) > 1 else (None, None, None)
    by_task = (_tokens_per_pass(record for record in mine if record.task == task) for task in tasks)
    passes = [tokens for tokens in by_task if tokens is not None]
    asked = [record for record in mine if record.identical is not None]
    differing = [record for record in asked if not record.identical]
    margins = [record.difference_margin for record in differing if record.difference_margin is not None]
    ties = [(record.near_ties, record.tokens) for record in mine if record.near_ties is not None]
    memory = [record.peak_memory for record in mine if record.peak_memory is not None]
    shares = [record.repeated for record in mine if record.repeated is not None]
    return Line(
        strategy=name,
        speed=_speed(mine),
        ratios=ratios or None,
        ratio=fmean(ratios.values()) if ratios else None,
        median=median(each) if each else None,
        low=low,
        high=high,
        tokens_per_pass=fmean(passes) if passes else None,
        kept=_kept(mine),
        acceptance=_acceptance(mine),
        shares=_shares(mine),
        memory=max(memory) if memory else None,
        guarantee=next((record.guarantee for record in mine if record.guarantee is not None), None),
        identical=(len(asked) - len(differing), len(asked)),
        worst=max(margins) if margins else None,
        unexplained=len(differing) - len(margins),
        near_ties=(sum(met for met, _ in ties), sum(tokens for _, tokens in ties)) if ties else None,
        repeated=fmean(shares) if shares else None,
        prompts=len(mine),
        failed=failed,
        skipped=skipped,
    )


def _speed(records: Iterable[Record]) -> float:
    found = list(records)
    return _over(sum(record.tokens for record in found), sum(record.seconds for record in found)) or 0.0


def _tokens_per_pass(records: Iterable[Record]) -> float | None:
    found = [record for record in records if record.passes]
    return _over(sum(record.tokens for record in found), sum(record.passes or 0 for record in found))


def _over(above: float, below: float) -> float | None:
    return above / below if below else None


def _kept(records: Sequence[Record]) -> tuple[float, ...]:
    told = [record.accepted_by_depth for record in records if record.seconds_target is not None]
    passes = sum(record.passes or 0 for record in records if record.seconds_target is not None)
    depths = range(max(map(len, told), default=0))
    return tuple(sum(counts[depth] for counts in told if depth < len(counts)) / max(1, passes) for depth in depths)


def _acceptance(records: Sequence[Record]) -> tuple[float, ...]:
    deepest = max(len(record.judged_by_depth) for record in records)

    def total(depth: int, name: str) -> int:
        counts = (getattr(record, name) for record in records)
        return sum(count[depth] for count in counts if depth < len(count))

    pairs = ((total(depth, "accepted_by_depth"), total(depth, "judged_by_depth")) for depth in range(deepest))
    return tuple(accepted / judged for accepted, judged in pairs if judged)


def _shares(records: Sequence[Record]) -> tuple[float, float, float, float] | None:
    timed = [record for record in records if record.seconds_target is not None]
    whole = sum(record.seconds for record in timed)
    if not whole:
        return None
    draft, target, verify = (
        sum(getattr(record, name) or 0.0 for record in timed) / whole
        for name in ("seconds_draft", "seconds_target", "seconds_verify")
    )
    return draft, target, verify, max(0.0, 1.0 - draft - target - verify)
