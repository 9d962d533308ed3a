"""The stronger floating-point mode on a real model in bfloat16: how many texts hold, and what that costs.

Of the prompts' greedy texts by prompt lookup, how many equal plain `generate`. Fixed width: how many texts and logits
equal those of the same decoder without drafts, bit for bit, for prompt lookup and for a drafter of wide random trees,
and the time in proportion to the same drafts unpadded. Runs that are compared are interleaved, and their order
alternates.

    python benchmarks/exactness.py PROMPTS.jsonl [--per-task 4] [--tokens 96] [--widths 8 16] [--out results.json]

PROMPTS.jsonl: one object a line with "task" and "turns" (the first turn is used).
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from smollm2 import prompts_of  # beside this script

from specdec import Decoder, load_model
from specdec.core.draft import ANCHOR, Draft
from specdec.core.interfaces import StatelessDrafter
from specdec.drafters import NoDraft, PromptLookup
from specdec.schedulers import Fixed


class RandomTrees(StatelessDrafter):
    """Wide trees around a known text: at each level its token among up to three wrong ones, in any order."""

    name = "random-trees"
    branching = True

    def __init__(self) -> None:
        self.text: list[int] = []

    def propose(self, row, budget, rng, context):
        chance = random.Random(len(row.tokens))
        ahead = self.text[len(row.tokens) : len(row.tokens) + min(budget.depth, chance.randint(1, 4))]
        tokens, parents, at = [], [], ANCHOR
        for token in ahead:
            siblings = [(token + shift) % context.vocab_size for shift in (0, 101, 202, 303)[: chance.randint(2, 4)]]
            chance.shuffle(siblings)
            if len(tokens) + len(siblings) > budget.nodes:
                break
            parents += [at] * len(siblings)
            at = len(tokens) + siblings.index(token)
            tokens += siblings
        return Draft.point(tokens, parents)


def same_bits(one, other) -> bool:
    return (
        torch.equal(one.sequences, other.sequences)
        and len(one.logits) == len(other.logits)
        and all(torch.equal(a, b) for a, b in zip(one.logits, other.logits, strict=True))
    )


def timed(decoders: dict[str, Decoder], swap: bool, **kwargs: Any) -> dict[str, tuple[Any, float]]:
    """Results and seconds of each decoder, run in the order given or in the reverse one."""
    found = {}
    for name in reversed(decoders) if swap else decoders:
        start = time.perf_counter()
        result = decoders[name].generate(**kwargs)
        found[name] = (result, time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--widths", type=int, nargs="*", default=[8, 16])
    parser.add_argument("--only", choices=["plain", "fixed-width"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    model, tokenizer = load_model(options.model, dtype=options.dtype)
    prompts = [ids for _, ids in prompts_of(options.prompts, options.per_task, tokenizer)]
    call = {"do_sample": False, "max_new_tokens": options.tokens, "pad_token_id": tokenizer.eos_token_id}
    asked = {"return_dict_in_generate": True, "output_logits": True}
    equal: dict[str, int] = defaultdict(int)
    seconds: dict[str, float] = defaultdict(float)

    trees = RandomTrees()
    lookup = Decoder(model, PromptLookup())
    drafters = {"lookup": PromptLookup(), "trees": trees}
    if options.only != "fixed-width":
        print(f"drift of margins: {lookup.target.drift.margin:.3g}")
    with Progress() as progress:
        for number, ids in enumerate(progress.track(prompts, description=options.dtype)):
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **call}
            swap = bool(number % 2)
            if options.only != "fixed-width":
                equal["algorithmic, lookup"] += torch.equal(lookup.generate(**given), model.generate(**given))
            if options.only != "plain":
                for width in options.widths:
                    mode = f"fixed-width:{width}"
                    want = Decoder(model, NoDraft(), exactness=mode).generate(**given, **asked)
                    trees.text = want.sequences[0].tolist()
                    for kind, drafter in drafters.items():
                        # Unpadded drafts get the same budget, one that fills the width, so that both draft the same.
                        effort = Fixed(depth=width - 1, nodes=width - 1)
                        both = {
                            "padded": Decoder(model, drafter, scheduler=effort, exactness=mode),
                            "unpadded": Decoder(model, drafter, scheduler=effort),
                        }
                        results = timed(both, swap, **given, **asked)
                        for name, (_, spent) in results.items():
                            seconds[f"{mode} {kind} {name}"] += spent
                        equal[f"{mode} {kind}"] += same_bits(results["padded"][0], want)

    count = len(prompts)
    table = Table("mode", "texts as the reference", "time in proportion", title=f"{options.model}, {options.dtype}")
    if options.only != "fixed-width":
        table.add_row("algorithmic, lookup", f"{equal['algorithmic, lookup']} of {count}", "")
    for name in [name for name in equal if name.startswith("fixed")]:
        ratio = seconds[f"{name} padded"] / seconds[f"{name} unpadded"]
        table.add_row(name, f"{equal[name]} of {count}, all bits", f"{ratio:.2f}")
    Console(width=140).print(table)
    if options.out:
        facts = {
            "model": options.model, "dtype": options.dtype, "prompts": count, "tokens": options.tokens,
            "torch": torch.__version__, "transformers": transformers.__version__, "threads": torch.get_num_threads(),
            "machine": platform.machine(), "equal": equal, "seconds": seconds,
        }  # fmt: skip
        options.out.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
