"""Where the time of a round goes: the models' forward passes, and everything around them.

For each strategy, in one run, the milliseconds of an average round: the target's forward, the drafter's forward (a
head or a draft model, its logits included), and what is left of drafting, of the target pass, and of verification.
"outside" is the share of time in none of the models. The pass over the prompt is left out.

    python benchmarks/round_profile.py PROMPTS.jsonl --head checkpoints/smollm2-135m/eagle [--compile] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from smollm2 import prompts_of  # beside this script

from specdec import Decoder, load_model
from specdec.core.interfaces import Drafter, Scheduler
from specdec.drafters import Eagle, Eagle2, Merge, NoDraft, PromptLookup
from specdec.heads.base import Head
from specdec.heads.cached import CachedHead
from specdec.heads.decoder import DecoderHead
from specdec.heads.load import load_head
from specdec.schedulers import Adaptive, Fixed
from specdec.targets.compiled import CompiledLM

PARTS = ("target forward", "drafter forward", "rest of drafting", "rest of the pass", "verification and commit")


class Spent:
    """Seconds inside watched methods; a call inside another counts once, for the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = False

    @contextmanager
    def watch(self, owner: type, method: str, name: Callable[[Any], str]) -> Iterator[None]:
        """Time a method of all objects of a class while the context lasts; `name` says where an object's time goes."""
        inner = getattr(owner, method)

        def timed(one: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return inner(one, *args, **kwargs)
            self._inside, start = True, time.perf_counter()
            try:
                return inner(one, *args, **kwargs)
            finally:
                self._inside = False
                self.seconds[name(one)] += time.perf_counter() - start

        setattr(owner, method, timed)
        try:
            yield
        finally:
            setattr(owner, method, inner)


def rounds_of(decoder: Decoder, ids: torch.Tensor, tokens: int, spent: Spent) -> Iterator[dict[str, float]]:
    """One entry a round, without the pass over the prompt."""
    before = dict(spent.seconds)
    for event in decoder.stream(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens):
        now = dict(spent.seconds)
        passed = {name: now[name] - before.get(name, 0.0) for name in now}
        before = now
        if event.number == 0:
            continue
        times, target, drafter = event.times, passed.get("target", 0.0), passed.get("drafter", 0.0)
        yield {
            PARTS[0]: target, PARTS[1]: drafter,
            PARTS[2]: times.draft - drafter, PARTS[3]: times.target - target, PARTS[4]: times.verify,
            "total": times.total, "tokens": float(sum(len(row.tokens) for row in event.rows)),
            "width": float(event.width),
        }  # fmt: skip


def strategies(head: Head) -> dict[str, tuple[Drafter, Scheduler]]:
    return {
        "plain decoding": (NoDraft(), Adaptive()),
        "prompt lookup": (PromptLookup(), Adaptive()),
        "chain of 5 (eagle)": (Eagle(head), Fixed(5)),
        "tree of 31 (eagle2)": (Eagle2(head, nodes=31), Fixed(6, 31)),
        "eagle2, adaptive": (Eagle2(head), Adaptive()),
        "merge, adaptive": (Merge(PromptLookup(), Eagle2(head)), Adaptive()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--head", type=Path, required=True, help="folder of an EAGLE head")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-task", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only", nargs="*", help="strategies to run, by the names in the table")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    model, tokenizer = load_model(options.model, dtype=options.dtype)
    prompts = [ids for _, ids in prompts_of(options.prompts, options.per_task, tokenizer)]
    decoders = {
        name: Decoder(model, drafter, scheduler=scheduler, compile=options.compile)
        for name, (drafter, scheduler) in strategies(load_head(options.head)).items()
        if not options.only or name in options.only
    }
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number in range(-1, len(prompts)):  # the first once more, as a warm-up
        for name, decoder in decoders.items():
            spent = Spent()
            with ExitStack() as stack:
                watch_models(stack, spent, model, options.compile)
                made = list(rounds_of(decoder, prompts[max(0, number)], options.tokens, spent))
            if number >= 0:
                found[name] += made
    show(found, options)


def watch_models(stack: ExitStack, spent: Spent, model: torch.nn.Module, compiled: bool) -> None:
    """Time the forward passes themselves: the modules', or the compiled passes that stand for them."""
    if compiled:
        which = lambda lm: "drafter" if isinstance(lm.plain, CachedHead) else "target"  # noqa: E731
        stack.enter_context(spent.watch(CompiledLM, "_call", which))
    else:
        stack.enter_context(spent.watch(type(model), "forward", lambda _: "target"))
        stack.enter_context(spent.watch(DecoderHead, "forward", lambda _: "drafter"))
    stack.enter_context(spent.watch(DecoderHead, "logits", lambda _: "drafter"))


def show(found: dict[str, list[dict[str, float]]], options: argparse.Namespace) -> None:
    """Print the table; means, since the parts then add up, and the median round beside them."""
    table = Table(
        "strategy", *PARTS, "round", "median", "width", "tokens a pass", "outside", title="milliseconds a round"
    )
    facts = {}
    for name, rounds in found.items():
        mean = {key: statistics.fmean(one[key] for one in rounds) for key in rounds[0]}
        outside = 1.0 - (mean[PARTS[0]] + mean[PARTS[1]]) / mean["total"]
        middle = statistics.median(one["total"] for one in rounds)
        cells = [f"{1e3 * mean[part]:.2f}" for part in (*PARTS, "total")]
        more = [f"{1e3 * middle:.2f}", f"{mean['width']:.1f}", f"{mean['tokens']:.2f}", f"{100 * outside:.1f} %"]
        table.add_row(name, *cells, *more)
        facts[name] = {**mean, "median": middle, "outside": outside, "rounds": len(rounds)}
    Console(width=200).print(table)
    if options.out:
        head = {"model": options.model, "dtype": options.dtype, "compile": options.compile, "torch": torch.__version__}
        options.out.write_text(json.dumps({**head, "threads": torch.get_num_threads(), "strategies": facts}, indent=1))


if __name__ == "__main__":
    main()
