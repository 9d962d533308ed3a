"""Speed on a real model: plain `generate`, transformers' prompt lookup and specdec, interleaved, on real prompts.

Every prompt is decoded greedily by every system in turn; the order rotates from prompt to prompt. Tokens are
counted from ids. Before any time is recorded, outputs are checked: in float32 all must equal plain `generate`;
in bfloat16 the first difference must be a near-tie of the target, shown by one teacher-forced pass.

    python benchmarks/smollm2.py PROMPTS.jsonl [--dtype bfloat16] [--per-task 4] [--tokens 96] [--out results.json]

PROMPTS.jsonl: one object a line with "task" and "turns" (the first turn is used). Speeds are tokens over seconds,
summed over the prompts of a task; "overall" is the sum over all prompts.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specdec import Decoder, load_model
from specdec.core.draft import Draft
from specdec.core.interfaces import StatelessDrafter
from specdec.drafters import NoDraft, PromptLookup
from specdec.schedulers import Adaptive, Fixed


class AlwaysWrong(StatelessDrafter):
    """Guesses the token that was just emitted, five times, moved by one: practically never right."""

    name = "always-wrong"

    def propose(self, row, budget, rng, context):
        guess = [(row.anchor + 1 + i) % context.vocab_size for i in range(min(budget.depth, budget.nodes))]
        return Draft.point(guess) if guess else Draft.empty()


def systems(model) -> dict[str, Callable[..., torch.Tensor]]:
    made: dict[str, Callable[..., torch.Tensor]] = {"plain generate": model.generate}
    for k in (3, 5, 10):
        made[f"transformers lookup k={k}"] = lambda k=k, **kw: model.generate(prompt_lookup_num_tokens=k, **kw)
    same = PromptLookup(max_ngram=2, match="first")
    for k in (3, 5, 10):
        made[f"specdec, same settings k={k}"] = Decoder(model, same, scheduler=Fixed(k)).generate
    made["specdec default"] = Decoder(model, PromptLookup()).generate
    made["specdec none"] = Decoder(model, NoDraft()).generate
    made["specdec always wrong, adaptive"] = Decoder(model, AlwaysWrong(), scheduler=Adaptive()).generate
    return made


def prompts_of(path: Path, per_task: int, tokenizer) -> list[tuple[str, torch.Tensor]]:
    taken: dict[str, int] = defaultdict(int)
    found = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if taken[entry["task"]] < per_task:
            taken[entry["task"]] += 1
            chat = [{"role": "user", "content": entry["turns"][0]}]
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
            found.append((entry["task"], ids["input_ids"]))
    return found


@torch.inference_mode()
def near_tie(model, text: torch.Tensor, reference: torch.Tensor) -> float | None:
    """Margin of the target at the first difference, by one pass over the common prefix; None if there is none."""
    length = min(text.shape[1], reference.shape[1])
    differ = (text[0, :length] != reference[0, :length]).nonzero()
    if not len(differ):
        return None if text.shape == reference.shape else float("inf")
    at = int(differ[0])
    logits = model(input_ids=reference[:, :at], logits_to_keep=1).logits[0, -1].float()
    return float((logits[text[0, at]] - logits[reference[0, at]]).abs())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--only", nargs="*", help="systems to run, besides plain generate")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    model, tokenizer = load_model(options.model, dtype=options.dtype)
    made = systems(model)
    if options.only:
        made = {name: run for name, run in made.items() if name == "plain generate" or name in options.only}
    prompts = prompts_of(options.prompts, options.per_task, tokenizer)
    allowed = 0.0 if options.dtype in ("float32", "float64") else 1.0
    common = {"do_sample": False, "max_new_tokens": options.tokens, "pad_token_id": tokenizer.eos_token_id}

    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    tokens: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    differing: dict[str, list[float]] = defaultdict(list)
    for run in made.values():  # warm-up
        run(
            input_ids=prompts[0][1],
            attention_mask=torch.ones_like(prompts[0][1]),
            **{**common, "max_new_tokens": 8},
        )
    with Progress() as progress:
        work = progress.add_task(options.dtype, total=len(prompts) * len(made))
        for number, (task, ids) in enumerate(prompts):
            order: Sequence[str] = list(made)
            order = [*order[number % len(order) :], *order[: number % len(order)]]
            results = {}
            for name in order:
                start = time.perf_counter()
                text = made[name](input_ids=ids, attention_mask=torch.ones_like(ids), **common)
                spent = time.perf_counter() - start
                results[name] = (text, spent)
                progress.advance(work)
            reference = results["plain generate"][0]
            for name, (text, spent) in results.items():
                margin = near_tie(model, text, reference)
                if margin is not None:
                    if margin > allowed:
                        raise SystemExit(f"{name}, {task}: differs from plain generate by a margin of {margin:.3g}")
                    differing[name].append(margin)
                for where in (task, "overall"):
                    seconds[name][where] += spent
                    tokens[name][where] += text.shape[1] - ids.shape[1]

    columns = [*dict.fromkeys(task for task, _ in prompts), "overall"]
    speed = {name: {c: tokens[name][c] / seconds[name][c] for c in columns} for name in made}
    table = Table("system", *columns, "texts differing", title=f"{options.model}, {options.dtype}: tokens a second")
    for name in made:
        plain = speed["plain generate"]
        cells = [f"{speed[name][c]:.1f} ({speed[name][c] / plain[c]:.2f}x)" for c in columns]
        worst = f"{len(differing[name])}" + (f" (margins up to {max(differing[name]):.2g})" if differing[name] else "")
        table.add_row(name, *cells, worst)
    Console(width=220).print(table)
    if options.out:
        facts = {
            "model": options.model, "dtype": options.dtype, "prompts": len(prompts), "tokens": options.tokens,
            "torch": torch.__version__, "transformers": transformers.__version__, "threads": torch.get_num_threads(),
            "machine": platform.machine(), "speed": speed, "differing": differing,
        }  # fmt: skip
        options.out.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
