"""The transformers Trainer, led by a recipe: time budgets, unrolled steps, held-out acceptance, whole checkpoints."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from specdec.heads.training.acceptance import Acceptance
from specdec.heads.training.data import Batches
from specdec.heads.training.objectives import Objective
from specdec.heads.training.recipe import Recipe
from specdec.heads.training.schedule import Progress, cosine

__all__ = ["Conductor", "HeadTrainer", "last_checkpoint"]

MARK = "specdec.json"
"""Written last into a checkpoint: one without it was left half-written."""

Source = Callable[[dict[str, Tensor]], dict[str, Tensor]]


class HeadTrainer(Trainer):
    """Trains an objective on batches whose target states come from `source`, and measures drafts on held-out text."""

    def __init__(
        self,
        objective: Objective,
        source: Source,
        recipe: Recipe,
        progress: Progress,
        args: TrainingArguments,
        train: Batches,
        held_out: Batches,
        callbacks: list[TrainerCallback],
    ) -> None:
        super().__init__(
            model=objective,
            args=args,
            data_collator=lambda items: items[0],  # an item is a batch already
            train_dataset=train,
            eval_dataset=held_out,
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)  # who shows progress is among the callbacks
        self.objective, self.source, self.recipe, self.progress = objective, source, recipe, progress
        self.held_out = held_out
        self._seen: dict[str, Any] = {"steps": 0, "token_loss": 0.0, "answers": 0, "since": time.monotonic()}

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The recipe's learning rate, which may follow the time as well as the steps."""
        if self.lr_scheduler is None:  # type: ignore[has-type]
            factor = cosine(self.progress, self.recipe.warmup, self.recipe.lr_end)
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        out = model(inputs["input_ids"], inputs["answer"], self._states(inputs))
        self._seen["steps"] += 1
        self._seen["token_loss"] = self._seen["token_loss"] + out["token_loss"].detach()
        self._seen["answers"] = self._seen["answers"] + inputs["answer"].sum()
        return (out["loss"], out) if return_outputs else out["loss"]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add what the loss alone does not say: loss of the first drafted token, and tokens of answers a second."""
        if "loss" in logs and (steps := self._seen["steps"]):
            took = max(1e-9, time.monotonic() - self._seen["since"])
            logs["token_loss"] = round(float(self._seen["token_loss"]) / steps, 4)
            logs["answer_tokens_per_second"] = round(float(self._seen["answers"]) / took, 1)
            logs["share"] = round(self.progress.of(self.state.global_step), 4)
            self._seen = {"steps": 0, "token_loss": 0.0, "answers": 0, "since": time.monotonic()}
        super().log(logs, *args, **kwargs)

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Measure on all held-out batches; logged and returned."""
        if not len(self.held_out):
            return {}
        began = time.monotonic()
        figures = self.measure()
        self.log({f"held_out_{name}": value for name, value in figures.items()})
        handler: Any = self.callback_handler
        self.control = handler.on_evaluate(self.args, self.state, self.control, figures)  # type: ignore[has-type]
        self._seen["since"] += time.monotonic() - began
        return figures

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """`loss`, `token_loss` and the figures of `Acceptance` for held-out text.

        Every process measures all of it, so that all of them call a sharded model equally often.
        """
        model = self.model_wrapped
        training = model.training
        model.eval()
        steps, self.objective.steps = self.objective.steps, 1
        count = Acceptance(self.recipe.depth)
        sums = {"loss": 0.0, "token_loss": 0.0}
        tokens = 0
        try:
            for index in range(len(self.held_out)):
                inputs = self._prepare_inputs(self.held_out[index])
                with self.compute_loss_context_manager():
                    out = model(inputs["input_ids"], inputs["answer"], self._states(inputs), depth=self.recipe.depth)
                size = int(inputs["answer"].sum())
                tokens += size
                for name in sums:
                    sums[name] += float(out[name]) * size
                count.add(out["hits"].cpu(), self.held_out.spans(index))
        finally:
            self.objective.steps = steps
            model.train(training)
        return {name: round(value / max(1, tokens), 4) for name, value in sums.items()} | count.figures()

    def _states(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        device = inputs["input_ids"].device
        return {name: value.to(device) for name, value in self.source(inputs).items()}


class Conductor(TrainerCallback):
    """Keeps the time, decides when to measure, save and stop, and marks checkpoints that are whole.

    about: what a resumed run must find again. saved: called with the whole state of the objective when a checkpoint is
    written. stopped: whether the run was asked to stop before its end. history: measurements so far.
    """

    def __init__(self, recipe: Recipe, progress: Progress, about: dict[str, Any], saved: Callable[[Any], None]) -> None:
        self.recipe, self.progress, self.about, self.saved = recipe, progress, about, saved
        self.stopped = False
        self.history: list[dict[str, float]] = []
        self._trainer: HeadTrainer | None = None
        self._done = {"measure": 0, "save": 0}

    def watch(self, trainer: HeadTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        share = self.progress.of(state.global_step)
        self._done = {"measure": int(share / self.recipe.measure_every), "save": int(share / self.recipe.save_every)}

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **_: Any) -> None:
        self.history.append({"step": state.global_step, **metrics})

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._trainer is not None
        late = self.progress.of(state.global_step) >= self.recipe.unroll_from
        self._trainer.objective.steps = self.recipe.unrolled if late else 1
        self.progress.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.stop()
        if args.world_size > 1:
            self._agree()
        share = self.progress.of(state.global_step)
        over = share >= 1.0
        for name, every in (("measure", self.recipe.measure_every), ("save", self.recipe.save_every)):
            if (number := int(share / every + 1e-9)) > self._done[name] and not over:
                self._done[name] = number
                setattr(control, "should_evaluate" if name == "measure" else "should_save", True)
        if over or self.stopped:
            control.should_evaluate = over
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._trainer is not None
        # Of a sharded model every process gives its part.
        whole = self._trainer.accelerator.get_state_dict(self._trainer.model)
        if not args.should_save:
            return
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.saved(whole)
        mark = {**self.about, "spent": self.progress.spent, "measured": self.history}
        (folder / MARK).write_text(json.dumps(mark) + "\n", encoding="utf-8")

    def _agree(self) -> None:
        """The first process's clock, and a wish to stop of any process, count for all."""
        from accelerate.utils import broadcast_object_list, gather_object

        clock = [self.progress.spent]
        broadcast_object_list(clock)
        self.progress.spent = clock[0]
        self.stopped = any(gather_object([self.stopped]))

    @contextmanager
    def interruptible(self, say: Callable[[str], None]) -> Iterator[None]:
        """Within: a Ctrl-C or SIGTERM ends the run after its step, with a checkpoint; another one ends it at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def stop(number: int, _: Any) -> None:
            self.stopped = True
            signal.signal(number, before[signal.Signals(number)])
            say("stopping after this step; once more stops at once, without a checkpoint")

        for number in before:
            signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def last_checkpoint(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint and what it says of its run; half-written ones and those of others are left out."""
    found = []
    for path in folder.glob("checkpoint-*"):
        with suppress(FileNotFoundError, NotADirectoryError, ValueError):
            found.append((int(path.name.removeprefix("checkpoint-")), path, json.loads((path / MARK).read_text())))
    return max(found, key=lambda item: item[0])[1:] if found else None


def drop_unfinished(folder: Path, before: Collection[Path]) -> None:
    """Remove what this run left half-written in `folder`: checkpoints without a mark that were not there `before`."""
    for path in set(folder.glob("checkpoint-*")) - set(before):
        if not (path / MARK).exists():
            shutil.rmtree(path, ignore_errors=True)
