"""Whether a tree that is grown for every round takes more tokens than the best tree that is the same in all of them.

Every round is drafted with a large dynamic tree, so that most of what smaller trees would hold is in it. From the same
rounds follow, for each budget: what the dynamic tree of so many nodes would have had accepted (the nodes of largest
confidence), and what the best fixed tree would (the places that were right most often, chosen with hindsight from these
very rounds, which no tree that is fixed beforehand can beat). A place is a path of ranks among siblings. Nothing is
timed, so the machine may be busy.

    python benchmarks/fixed_trees.py PROMPTS.jsonl --drafter eagle2:FOLDER
        [--per-task 4] [--tokens 96] [--depth 8] [--nodes 192] [--budgets 8 16 32 60] [--out results.json]

PROMPTS.jsonl: one object a line with "task" and "turns" (the first turn is used).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from calibration import Watched, drafter_of  # beside this script
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from smollm2 import prompts_of

from specdec import Decoder, load_model
from specdec.analysis.tree_budgets import TreeBudgets
from specdec.core.state import Outcome
from specdec.schedulers import Fixed


class Record(TreeBudgets):
    """What `Watched` enters rounds in."""

    def add(self, outcome: Outcome, confidences: Sequence[float] | None) -> None:
        assert confidences is not None, "the drafter gives no confidences, so it has no dynamic trees"
        self.enter(outcome.draft.parents, outcome.path, confidences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--drafter", required=True, help="NAME[:ARG] or a config as JSON")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=192)
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16, 32, 60])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    model, tokenizer = load_model(options.model, dtype=options.dtype)
    prompts = prompts_of(options.prompts, options.per_task, tokenizer)
    given, drafter = drafter_of(options.drafter)
    found: dict[str, Record] = defaultdict(Record)
    with Progress() as progress:
        work = progress.add_task(drafter.name, total=len(prompts))
        for task, ids in prompts:
            watched = Watched(drafter, (found["overall"], found[task]))
            decoder = Decoder(model, watched, scheduler=Fixed(options.depth, options.nodes))
            decoder.generate(ids, max_new_tokens=options.tokens, do_sample=False, pad_token_id=tokenizer.eos_token_id)
            progress.advance(work)
    table = Table("task", "rounds", *(f"{budget} nodes: dynamic, best fixed" for budget in options.budgets))
    for task, rounds in found.items():
        pairs = (f"{rounds.dynamic(budget):.2f}, {rounds.fixed(budget):.2f}" for budget in options.budgets)
        table.add_row(task, str(rounds.drafts), *pairs)
    Console(width=180).print(table)
    if options.out:
        facts = {
            "model": options.model, "dtype": options.dtype, "prompts": len(prompts), "tokens": options.tokens,
            "depth": options.depth, "nodes": options.nodes, "drafter": given, "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tasks": {task: rounds.figures(options.budgets) for task, rounds in found.items()},
        }  # fmt: skip
        options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
