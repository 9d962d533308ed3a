"""Drafters that need no training on a real model: tokens a pass and speed against plain `generate`, in one run.

Every prompt is decoded greedily by every system in turn; the order rotates from prompt to prompt. A drafter runs twice:
as the default scheduler lets it, which is what users get, and "full", drafting as much as it likes in every round,
which shows what its guesses are worth. Tokens are counted from ids. Texts are held against plain `generate`: in float32
all must be equal, in bfloat16 the first difference must be a near-tie of the target.

    python benchmarks/draft_free.py PROMPTS.jsonl [--dtype bfloat16] [--per-task 4] [--tokens 96] [--out results.json]
                                    [--only jacobi "token-recycling, full"]

PROMPTS.jsonl: one object a line with "task" and "turns" (the first turn is used). Speeds are tokens over seconds summed
over the prompts of a task; "mean" is the mean over tasks, of tokens a pass and of speedups, each task counting alike.
Nodes a pass counts the anchor and scratch.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specdec import Decoder, load_model
from specdec.core.interfaces import Drafter
from specdec.drafters import Jacobi, Lookahead, Merge, PromptLookup, SelfSkip, TokenRecycling
from specdec.schedulers import Fixed

if __package__:
    from benchmarks.smollm2 import near_tie, prompts_of
else:
    from smollm2 import near_tie, prompts_of  # beside this script

PLAIN = "plain generate"
DRAFTERS: dict[str, tuple[Callable[[Any], Drafter], Fixed]] = {
    "prompt-lookup": (lambda model: PromptLookup(), Fixed(10)),
    "jacobi": (lambda model: Jacobi(), Fixed(4)),
    "lookahead": (lambda model: Lookahead(), Fixed(4, 64)),
    "lookahead, from the prompt": (lambda model: Lookahead(prompt=True), Fixed(4, 64)),
    "lookahead, simple": (lambda model: Lookahead(form="simple"), Fixed(4)),
    "token-recycling": (lambda model: TokenRecycling(), Fixed(8, 60)),
    "self-skip": (lambda model: SelfSkip(exit_layer=max(1, 2 * model.config.num_hidden_layers // 3)), Fixed(4)),
    "merge: lookup, recycling": (lambda model: Merge(PromptLookup(), TokenRecycling()), Fixed(10, 64)),
}
"""Name to a drafter for a model, and the scheduler that lets it draft as much as it likes."""

Run = Callable[..., Any]


@dataclass
class Sums:
    """What one system did on the prompts of one task."""

    seconds: float = 0.0
    tokens: int = 0
    passes: int = 0
    nodes: int = 0
    margins: list[float] = field(default_factory=list)

    @property
    def per_pass(self) -> float:
        return self.tokens / self.passes


def systems(model: Any, only: Iterable[str] | None = None) -> dict[str, Run]:
    """Every system by name, plain `generate` first."""
    made: dict[str, Run] = {PLAIN: model.generate}
    for name, (build, full) in DRAFTERS.items():
        made[name] = Decoder(model, build(model)).generate
        made[f"{name}, full"] = Decoder(model, build(model), scheduler=full).generate
    if only is None:
        return made
    if unknown := sorted(set(only) - set(made)):
        raise SystemExit(f"there is no system {', '.join(unknown)}; expected {', '.join(made)}")
    return {name: run for name, run in made.items() if name == PLAIN or name in only}


def measure(
    model: Any,
    made: dict[str, Run],
    prompts: list[tuple[str, torch.Tensor]],
    call: dict[str, Any],
    allowed: float,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, Sums]]:
    """System to task to sums. Exits where a text differs from plain `generate` by more than a margin of `allowed`."""
    sums: dict[str, dict[str, Sums]] = {name: defaultdict(Sums) for name in made}
    for number, (task, ids) in enumerate(prompts):
        order = [*made][number % len(made) :] + [*made][: number % len(made)]
        texts = {}
        for name in order:
            start = time.perf_counter()
            out = made[name](
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                return_dict_in_generate=True,
                do_sample=False,
                **call,
            )
            held = sums[name][task]
            held.seconds += time.perf_counter() - start
            texts[name] = out.sequences
            new = out.sequences.shape[1] - ids.shape[1]
            stats = getattr(out, "stats", None)
            held.tokens += new
            held.passes += stats.target_passes if stats else new
            held.nodes += stats.nodes_scored if stats else new
            advance()
        for name, text in texts.items():
            if (margin := near_tie(model, text, texts[PLAIN])) is not None:
                if margin > allowed:
                    raise SystemExit(f"{name}, {task}: differs from plain generate by a margin of {margin:.3g}")
                sums[name][task].margins.append(margin)
    return sums


def rows(sums: dict[str, dict[str, Sums]]) -> dict[str, dict[str, Any]]:
    """What is shown and kept: per task and on average tokens a pass, speedup and nodes a pass."""
    plain, found = sums[PLAIN], {}
    for name, by_task in sums.items():
        per_pass = {task: held.per_pass for task, held in by_task.items()}
        speedup = {
            task: held.tokens / held.seconds * plain[task].seconds / plain[task].tokens
            for task, held in by_task.items()
        }
        found[name] = {
            "tokens_per_pass": {**per_pass, "mean": statistics.mean(per_pass.values())},
            "speedup": {**speedup, "mean": statistics.mean(speedup.values())},
            "nodes_per_pass": sum(h.nodes for h in by_task.values()) / sum(h.passes for h in by_task.values()),
            "texts_differing": [margin for held in by_task.values() for margin in held.margins],
            "tokens_a_second": sum(h.tokens for h in by_task.values()) / sum(h.seconds for h in by_task.values()),
        }
    return found


def shown(found: dict[str, dict[str, Any]], title: str) -> Table:
    columns = [*next(iter(found.values()))["speedup"]]
    table = Table("tokens a pass (speed)", *columns, "nodes a pass", "texts differing", title=title)
    for name, row in found.items():
        cells = [f"{row['tokens_per_pass'][c]:.2f} ({row['speedup'][c]:.2f}x)" for c in columns]
        margins = row["texts_differing"]
        worst = f"{len(margins)}" + (f" (margins up to {max(margins):.2g})" if margins else "")
        table.add_row(name, *cells, f"{row['nodes_per_pass']:.1f}", worst)
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--only", nargs="*", help="systems to run, besides plain generate")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)

    model, tokenizer = load_model(options.model, dtype=options.dtype)
    made = systems(model, options.only)
    prompts = prompts_of(options.prompts, options.per_task, tokenizer)
    call = {"max_new_tokens": options.tokens, "pad_token_id": tokenizer.eos_token_id}
    allowed = 0.0 if options.dtype in ("float32", "float64") else 1.0
    measure(model, made, prompts[:1], {**call, "max_new_tokens": min(8, options.tokens)}, float("inf"))  # warm-up
    with Progress() as progress:
        work = progress.add_task(options.dtype, total=len(prompts) * len(made))
        sums = measure(model, made, prompts, call, allowed, lambda: progress.advance(work))
    found = rows(sums)
    title = f"{options.model}, {options.dtype}, {len(prompts)} prompts of {options.tokens} tokens"
    Console(width=240).print(shown(found, title))
    if options.out:
        facts = {
            "model": options.model, "dtype": options.dtype, "prompts": len(prompts), "tokens": options.tokens,
            "torch": torch.__version__, "transformers": transformers.__version__, "threads": torch.get_num_threads(),
            "machine": platform.machine(), "systems": found,
        }  # fmt: skip
        options.out.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
