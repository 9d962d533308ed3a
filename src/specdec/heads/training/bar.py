"""A run as people see it: a bar, and a line for every measurement."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from transformers import TrainerCallback

__all__ = ["Bar"]


class Bar(TrainerCallback):
    """Shows how far a run has come; where nobody watches, lines alone are printed."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=1.0, text="")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._bar.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._bar.stop()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            text = (
                f"step {state.global_step}: loss {float(logs['loss']):.3f}, first token "
                f"{float(logs['token_loss']):.3f}, {float(logs['answer_tokens_per_second']):.0f} tokens/s"
            )
            self._bar.update(self._task, completed=float(logs["share"]), text=text)
            if not self._console.is_terminal:
                self._console.print(f"{100 * float(logs['share']):5.1f} % {text}", highlight=False, soft_wrap=True)
        elif "held_out_loss" in logs:
            rates = [str(value) for name, value in logs.items() if name.startswith("held_out_agree_")]
            self._console.print(
                f"held out, step {state.global_step}: loss {logs['held_out_loss']}, "
                f"{logs['held_out_tokens_per_pass']} tokens a pass, right by depth {' '.join(rates)}",
                highlight=False,
                soft_wrap=True,
            )
