"""One interleaved run: every prompt by every strategy in turn, in an order that rotates from prompt to prompt."""

from __future__ import annotations

import gc
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor

from specdec._version import __version__
from specdec.bench.memory import forget_peak, peak
from specdec.bench.prompts import Prompt
from specdec.bench.record import Record, repeated
from specdec.bench.runners import Answer, Call, Runner, Skipped, build
from specdec.bench.setting import Setting
from specdec.bench.strategies import Contender
from specdec.core.errors import ConfigError, IncompatibleError, UnsupportedOptionError
from specdec.targets.compat import parameters
from specdec.targets.hf import HFTarget
from specdec.targets.load import load_model

__all__ = ["Bench", "Unit", "units"]

_TRIES = 8  # a text may meet several shapes that were not compiled before
_WARM_UP = 16  # tokens; compiled passes are met only by whole answers


@dataclass(frozen=True)
class Unit:
    """What is decoded at a time: prompts of one task, or of several under the task "mixed"."""

    number: int
    task: str
    prompts: tuple[Prompt, ...]


def units(prompts: Sequence[Prompt], batch: int) -> list[Unit]:
    """Prompts in batches of one task each; what is left of the tasks is put together as "mixed"."""
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    groups, left = [], []
    for task, of_task in tasks.items():
        whole = len(of_task) // batch * batch
        groups += [(task, of_task[at : at + batch]) for at in range(0, whole, batch)]
        left += of_task[whole:]
    groups += [("mixed", left[at : at + batch]) for at in range(0, len(left), batch)]
    return [Unit(number, task, tuple(group)) for number, (task, group) in enumerate(groups)]


class Bench:
    """A comparison of strategies on prompts; `records()` measures while it is iterated.

    model: what `load` takes, by default `load_model`. tokens: most new tokens. repeats: how often each prompt is
    decoded by each strategy. clock: seconds, for tests. say: gets what a user should read.
    """

    def __init__(
        self,
        model: str,
        contenders: Sequence[Contender],
        prompts: Sequence[Prompt],
        settings: Sequence[Setting] = (Setting(),),
        *,
        tokens: int = 96,
        repeats: int = 1,
        seed: int = 7,
        chat: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        load: Callable[..., tuple[Any, Any]] = load_model,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.model, self.contenders, self.prompts, self.settings = model, contenders, prompts, settings
        self.tokens, self.repeats, self.seed, self.chat = tokens, repeats, seed, chat
        self._clock, self._load, self._say = clock, load, say
        self._loaded: tuple[str | None, Any, Any] | None = None
        self._targets: dict[bool | str, HFTarget] = {}

    def __len__(self) -> int:
        """How many decodings there are, should none be skipped."""
        parts = sum(len(units(self.prompts, setting.batch)) for setting in self.settings)
        return parts * self.repeats * len(self.contenders)

    @property
    def facts(self) -> dict[str, Any]:
        """What is measured on what: the head of a file of results."""
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        return {
            "model": self.model, "tokens": self.tokens, "repeats": self.repeats, "seed": self.seed, "chat": self.chat,
            "prompts": len(self.prompts), "strategies": [one.name for one in self.contenders],
            "specdec": __version__, "torch": torch.__version__, "transformers": transformers.__version__,
            "python": platform.python_version(), "machine": platform.machine(), "gpu": gpu,
            "threads": torch.get_num_threads(),
        }  # fmt: skip

    def records(self) -> Iterator[Record]:
        """Measure; a strategy that cannot take part or fails gives a record that says so, and the rest goes on.

        Records come as soon as they are measured; greedy ones on a prompt wait for plain `generate` on it. An interrupt
        is raised again after those that wait.
        """
        for setting in self.settings:
            yield from self._setting(setting)

    def _setting(self, setting: Setting) -> Iterator[Record]:
        model, tokenizer = self.loaded(setting)
        fields = replace(setting, dtype=str(model.dtype).removeprefix("torch.")).as_fields()
        runners: dict[str, Runner] = {}
        for contender in self.contenders:
            try:
                runners[contender.name] = self.runner(contender, setting)
            except Skipped as reason:
                yield self._skipped(contender.name, fields, reason)
        parts = units(self.prompts, setting.batch)
        encoded = [self.encode(unit, tokenizer, model.device) for unit in parts]
        for name, runner in list(runners.items()):
            try:
                self.warm_up(runner, *encoded[0], setting)
            except Skipped as reason:
                del runners[name]
                yield self._skipped(name, fields, reason)
        if setting.greedy and any(one.kind == "decoder" for one in self.contenders):
            _ = self._target(model, setting.compile).drift  # lets the engine count near-ties
        plain = next((one.name for one in self.contenders if one.kind == "plain"), None)
        turn = 0
        for repeat in range(self.repeats):
            for unit, (ids, mask) in zip(parts, encoded, strict=True):
                names = list(runners)
                names = [*names[turn % len(names) :], *names[: turn % len(names)]]
                turn += 1
                # A record waits only for the text that its own is compared to.
                awaited = setting.greedy and plain in names
                waiting: list[tuple[Record, Answer | None]] = []
                reference: Answer | None = None
                try:
                    for name in names:
                        record = Record(name, unit.task, unit.number, repeat, len(ids), **fields)
                        waiting.append(self.measure(runners[name], record, ids, mask))
                        if name == plain:
                            reference, awaited = waiting[-1][1] if setting.greedy else None, False
                        while waiting and not awaited:
                            record, answer = waiting[0]
                            if answer is not None and reference is not None:
                                record = self.compared(record, answer, reference, ids, mask)
                            del waiting[0]
                            yield record
                except KeyboardInterrupt:
                    yield from (record for record, _ in waiting)
                    raise

    def loaded(self, setting: Setting) -> tuple[Any, Any]:
        """Model and tokenizer of a setting; one dtype is held at a time."""
        if self._loaded is None or self._loaded[0] != setting.dtype:
            self._loaded, self._targets = None, {}
            gc.collect()
            device = "cuda" if torch.cuda.is_available() else None
            model, tokenizer = self._load(self.model, dtype=setting.dtype, device=device)
            if tokenizer is None:
                raise ConfigError(f"{self.model}: the model has no tokenizer, which prompts need")
            self._loaded = setting.dtype, model, tokenizer
        return self._loaded[1], self._loaded[2]

    def runner(self, contender: Contender, setting: Setting) -> Runner:
        """The strategy over a target that all strategies of the setting share, so that what it measures is shared."""
        model, tokenizer = self.loaded(setting)
        own = contender.config.compile if contender.kind == "decoder" and contender.config is not None else False
        target = self._target(model, own or setting.compile)
        return build(contender, target, tokenizer, setting)

    def _target(self, model: Any, compile: bool | str) -> HFTarget:
        if compile not in self._targets:
            self._targets[compile] = HFTarget(model, compile=compile)
        return self._targets[compile]

    def encode(self, unit: Unit, tokenizer: Any, device: torch.device) -> tuple[Tensor, Tensor]:
        """Ids and mask `[rows, length]`, padded on the left."""
        rows = []
        for prompt in unit.prompts:
            if self.chat and getattr(tokenizer, "chat_template", None):
                turn = [{"role": "user", "content": prompt.text}]
                made = tokenizer.apply_chat_template(
                    turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
                )
            else:
                made = tokenizer(prompt.text, return_tensors="pt")
            rows.append(made["input_ids"][0])
        longest, pad = max(map(len, rows)), _pad(self.loaded_model)
        ids = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0), value=pad) for row in rows])
        mask = torch.stack([torch.nn.functional.pad(torch.ones_like(row), (longest - len(row), 0)) for row in rows])
        return ids.to(device), mask.to(device)

    @property
    def loaded_model(self) -> Any:
        assert self._loaded is not None
        return self._loaded[1]

    def _skipped(self, name: str, fields: dict[str, Any], reason: Skipped) -> Record:
        self._say(f"{name}: skipped: {reason}")
        return Record(name, "", -1, **fields, skipped=str(reason))

    def warm_up(self, runner: Runner, ids: Tensor, mask: Tensor, setting: Setting) -> None:
        """Decode once, untimed. Raises Skipped where such a call is refused; other errors await the measured call."""
        tokens = self.tokens if setting.compile is True else min(self.tokens, _WARM_UP)
        try:
            runner(ids, mask, Call(tokens, setting.temperature, self.seed, _pad(self.loaded_model)))
        except (IncompatibleError, UnsupportedOptionError, NotImplementedError) as error:
            raise Skipped(str(error)) from error
        except Exception as error:
            self._say(f"in the warm-up: {type(error).__name__}: {error}")

    def measure(self, runner: Runner, record: Record, ids: Tensor, mask: Tensor) -> tuple[Record, Answer | None]:
        """Time one decoding, and fill its record in."""
        device, model = ids.device, self.loaded_model
        call = Call(self.tokens, record.temperature, self.seed + record.prompt + 1000 * record.repeat, _pad(model))
        forget_peak(device)
        try:
            for _ in range(_TRIES):
                _wait_for(device)
                compiling, start = _compiling(), self._clock()
                answer = runner(ids, mask, call)
                _wait_for(device)
                seconds = self._clock() - start
                if _compiling() == compiling:
                    break  # else a new shape was compiled in the meantime, which is no part of decoding
        except Exception as error:
            self._say(f"{record.strategy}, {record.task}, prompt {record.prompt}: {type(error).__name__}: {error}")
            return replace(record, error=f"{type(error).__name__}: {error}"), None
        new = new_tokens(answer.sequences, ids.shape[1], _ends(model))
        tokens = sum(map(len, new))
        shares = [share for row in new if (share := repeated(row)) is not None]
        passes, stats = answer.passes, answer.stats
        if stats is not None:
            passes = stats.target_passes
        elif passes is None and record.strategy in {one.name for one in self.contenders if one.kind == "plain"}:
            passes = tokens
        record = replace(
            record,
            prompt_tokens=int(mask.sum()),
            tokens=tokens,
            seconds=seconds,
            passes=passes,
            peak_memory=peak(device),
            guarantee=answer.guarantee,
            repeated=sum(shares) / len(shares) if shares else None,
        )
        if stats is not None:
            record = replace(
                record,
                judged_by_depth=stats.judged_by_depth,
                accepted_by_depth=stats.accepted_by_depth,
                seconds_draft=stats.seconds_draft,
                seconds_target=stats.seconds_target,
                seconds_verify=stats.seconds_verify,
                smallest_margin=stats.smallest_margin,
                near_ties=stats.near_ties,
            )
        return record, answer

    def compared(self, record: Record, answer: Answer, plain: Answer, ids: Tensor, mask: Tensor) -> Record:
        """The record with what its text has in common with that of plain `generate`."""
        ends = _ends(self.loaded_model)
        margins: list[float | None] = []
        texts = (new_tokens(one.sequences, ids.shape[1], ends) for one in (answer, plain))
        for row, (ours, theirs) in enumerate(zip(*texts, strict=True)):
            if ours == theirs:
                continue
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            if at is None:
                margins.append(None)  # one goes on where the other ends
                continue
            prefix = [*ids[row][mask[row].bool()].tolist(), *theirs[:at]]
            margins.append(_apart(self.loaded_model, prefix, ours[at], theirs[at]))
        known = [margin for margin in margins if margin is not None]
        worst = max(known) if known and len(known) == len(margins) else None
        return replace(record, identical=not margins, difference_margin=worst)


def new_tokens(sequences: Tensor, prompt: int, ends: frozenset[int]) -> list[list[int]]:
    """New ids of each row of `[rows, length]`, up to its first end token, which counts."""
    rows = []
    for row in sequences[:, prompt:].tolist():
        stop = next((at + 1 for at, token in enumerate(row) if token in ends), len(row))
        rows.append(row[:stop])
    return rows


@torch.inference_mode()
def _apart(model: Any, prefix: list[int], ours: int, theirs: int) -> float:
    options = {"logits_to_keep": 1} if "logits_to_keep" in parameters(model) else {}
    logits = model(input_ids=torch.tensor([prefix], device=model.device), **options).logits[0, -1].float()
    return float((logits[ours] - logits[theirs]).abs())


def _ends(model: Any) -> frozenset[int]:
    ends = model.generation_config.eos_token_id
    return frozenset(ends if isinstance(ends, list) else () if ends is None else (ends,))


def _pad(model: Any) -> int:
    config = model.generation_config
    return next((token for token in (config.pad_token_id, *sorted(_ends(model))) if token is not None), 0)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _compiling() -> float:
    """Seconds that compiling passes has taken in this process."""
    module = sys.modules.get("specdec.targets.compiled")  # which is imported where something is compiled
    return float(module.seconds()) if module is not None else 0.0
