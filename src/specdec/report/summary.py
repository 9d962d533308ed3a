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

    speed: tokens a second over all prompts. ratios: by task, speed over that of plain `generate` on the prompts that
    both decoded, each speed being tokens over seconds of the task. ratio: their mean over tasks, so that a task with
    long answers counts no more than another. median, low, high: of the ratios prompt by prompt, with the quartiles.
    acceptance: by depth, accepted over judged. shares: of the time in draft, target, verify and the rest.
    identical: (texts that are plain's, texts that were compared). worst: largest margin at a first difference.
    unexplained: texts that differ otherwise than at a margin.
    """

    strategy: str
    speed: float | None = None
    ratios: dict[str, float] | None = None
    ratio: float | None = None
    median: float | None = None
    low: float | None = None
    high: float | None = None
    tokens_per_pass: float | None = None
    acceptance: tuple[float, ...] = ()
    shares: tuple[float, float, float, float] | None = None
    memory: int | None = None
    guarantee: str | None = None
    identical: tuple[int, int] = (0, 0)
    worst: float | None = None
    unexplained: int = 0
    near_ties: int | None = None
    repeated: float | None = None
    prompts: int = 0
    failed: int = 0
    skipped: str | None = None


@dataclass(frozen=True)
class Summary:
    """All strategies of one setting, in the order in which they were measured first."""

    setting: Setting
    tasks: tuple[str, ...]
    lines: tuple[Line, ...]


def summarise(records: Iterable[Record], baseline: str = PLAIN) -> list[Summary]:
    """One `Summary` a setting, against the strategy `baseline`."""
    by_setting: dict[Setting, list[Record]] = {}
    for record in records:
        setting = Setting(record.batch, record.temperature, record.dtype, record.compile, record.exactness)
        by_setting.setdefault(setting, []).append(record)
    return [_summary(setting, found, baseline) for setting, found in by_setting.items()]


def slower(summary: Summary) -> list[str]:
    """Sentences that say which strategies are slower than plain `generate`, in all or on some tasks."""
    said = []
    for line in summary.lines:
        if line.ratio is None or line.strategy == PLAIN:
            continue
        tasks = [f"{task} {ratio:.2f}x" for task, ratio in (line.ratios or {}).items() if ratio < 1]
        if line.ratio < 1:
            said.append(f"{line.strategy} is slower than plain generate: {line.ratio:.2f}x over all tasks")
        elif tasks:
            said.append(f"{line.strategy} is slower than plain generate on {', '.join(tasks)}")
    return said


def _summary(setting: Setting, records: Sequence[Record], baseline: str) -> Summary:
    # A run that was repeated into the same file counts as further measurements, paired in their order.
    by_strategy: dict[str, list[Record]] = {}
    for record in records:
        by_strategy.setdefault(record.strategy, []).append(record)
    tasks = tuple(dict.fromkeys(record.task for record in records if record.prompt >= 0))
    plain = _keyed(by_strategy.get(baseline, ()))
    names = sorted(by_strategy, key=lambda name: name != baseline)  # stable: the others keep their order
    return Summary(setting, tasks, tuple(_line(name, by_strategy[name], plain, tasks) for name in names))


_Key = tuple[str, int, int, int]


def _keyed(records: Iterable[Record]) -> dict[_Key, Record]:
    found: dict[_Key, Record] = {}
    times: dict[tuple[str, int, int], int] = {}
    for record in records:
        place = (record.task, record.prompt, record.repeat)
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
    passes = [record for record in mine if record.passes]
    asked = [record for record in mine if record.identical is not None]
    differing = [record for record in asked if not record.identical]
    margins = [record.difference_margin for record in differing if record.difference_margin is not None]
    ties = [record.near_ties for record in mine if record.near_ties is not None]
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
        tokens_per_pass=_over(sum(r.tokens for r in passes), sum(r.passes or 0 for r in passes)),
        acceptance=_acceptance(mine),
        shares=_shares(mine),
        memory=max(memory) if memory else None,
        guarantee=next((record.guarantee for record in mine if record.guarantee is not None), None),
        identical=(len(asked) - len(differing), len(asked)),
        worst=max(margins) if margins else None,
        unexplained=len(differing) - len(margins),
        near_ties=sum(ties) if ties else None,
        repeated=fmean(shares) if shares else None,
        prompts=len(mine),
        failed=failed,
        skipped=skipped,
    )


def _speed(records: Iterable[Record]) -> float:
    found = list(records)
    return _over(sum(record.tokens for record in found), sum(record.seconds for record in found)) or 0.0


def _over(above: float, below: float) -> float | None:
    return above / below if below else None


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
