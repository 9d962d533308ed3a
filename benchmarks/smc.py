"""Particles on a real model: how likely the target finds their texts, and how fast they come.

For each number of particles: the target's mean log-likelihood of the text a token, with its standard error over
prompts and seeds, beside that of plain sampling; tokens a round, effective sample size, speed. One particle is also
compared with the draft model and a token of the target after every K, sampled by plain forward passes. Runs are
interleaved; sampling is from the whole vocabulary (`top_k=0`).

    python benchmarks/smc.py PROMPTS.jsonl --draft FOLDER [--model smollm2-135m] [--dtype bfloat16] [--per-task 4]
        [--tokens 81] [--depth 4] [--particles 1 2 4 8 16] [--seeds 1] [--temperature 1.0] [--out results.json]

--draft self-skip:N takes the target's first N layers instead of a draft model.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
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
from specdec.drafters import DraftModel, SelfSkip
from specdec.schedulers import Fixed
from specdec.targets.layers import with_layers
from specdec.verifiers import SMC


@torch.inference_mode()
def mean_log_likelihood(model: Any, text: torch.Tensor, prompt: int, temperature: float) -> float:
    """Of the tokens of `text` `[1, length]` after the first `prompt`, each given those before it."""
    logits = model(text).logits[0, prompt - 1 : -1].double() / temperature
    return float(logits.log_softmax(-1).gather(1, text[0, prompt:, None]).mean())


@torch.inference_mode()
def draft_and_bonus(model: Any, draft: Any, ids: torch.Tensor, tokens: int, depth: int, temperature: float, seed: int):
    """The law of one particle without specdec: K tokens of the draft model, then one of the target, and so on."""
    generator, text = torch.Generator().manual_seed(seed), ids
    eos = model.generation_config.eos_token_id
    ends = set(eos if isinstance(eos, list) else [eos])
    for number in range(tokens):
        says = model if number == 0 or (number - 1) % (depth + 1) == depth else draft
        law = (says(text).logits[0, -1].double() / temperature).softmax(-1)
        token = torch.multinomial(law, 1, generator=generator)
        text = torch.cat([text, token[None]], 1)
        if int(token) in ends:
            break
    return text


def summary(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
    return mean, spread / math.sqrt(len(values))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=81)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--particles", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--reference", action="store_true", help="sample draft and bonus by plain passes too; slow")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model, tokenizer = load_model(args.model, dtype=args.dtype)
    if args.draft.startswith("self-skip:"):
        layers = int(args.draft.partition(":")[2])
        drafter: Any = SelfSkip(exit_layer=layers, draw=True)
        draft: Any = with_layers(model, range(layers)).model
    else:
        draft, _ = load_model(args.draft, dtype=args.dtype)
        drafter = DraftModel(draft)
    prompts = prompts_of(args.prompts, args.per_task, tokenizer)
    call = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": args.temperature}
    decoders = {
        count: Decoder(model, drafter, SMC(count), Fixed(args.depth), allow="consistent") for count in args.particles
    }
    likelihoods: dict[str, list[float]] = defaultdict(list)
    seconds: dict[str, float] = defaultdict(float)
    emitted: dict[str, int] = defaultdict(int)
    per_round: dict[str, list[float]] = defaultdict(list)
    sizes: dict[str, list[float]] = defaultdict(list)
    console = Console(stderr=True)
    with Progress(console=console) as progress:
        for number, (_, ids) in enumerate(progress.track(prompts)):
            for seed in range(args.seeds):
                runs = ["plain", *map(str, args.particles), *(["draft and bonus"] if args.reference else [])]
                turn = (number + seed) % len(runs)
                for name in [*runs[turn:], *runs[:turn]]:
                    started = time.perf_counter()
                    if name == "plain":
                        torch.manual_seed(1000 * number + seed)
                        text = model.generate(ids, max_new_tokens=args.tokens, **call)
                    elif name == "draft and bonus":
                        chance = 1000 * number + seed
                        text = draft_and_bonus(model, draft, ids, args.tokens, args.depth, args.temperature, chance)
                    else:
                        out = decoders[int(name)].generate(
                            ids, max_new_tokens=args.tokens, seed=1000 * number + seed, return_dict_in_generate=True,
                            **call,
                        )  # fmt: skip
                        text = out.sequences
                        (ensemble,) = out.particles
                        sizes[name] += ensemble.ess[1:]
                        per_round[name].append((out.stats.emitted - int(name)) / (out.stats.target_passes - int(name)))
                    seconds[name] += time.perf_counter() - started
                    emitted[name] += text.shape[1] - ids.shape[1]
                    likelihoods[name].append(mean_log_likelihood(model, text, ids.shape[1], args.temperature))
    speed = {name: emitted[name] / seconds[name] for name in seconds}
    rows = []
    for name, values in likelihoods.items():
        mean, error = summary(values)
        shift, shift_error = summary([value - plain for value, plain in zip(values, likelihoods["plain"], strict=True)])
        rows.append({
            "particles": name, "log_likelihood": mean, "error": error,
            "from_plain": shift, "from_plain_error": shift_error,
            "speed": speed[name] / speed["plain"],
            "tokens_a_round": summary(per_round[name])[0] if per_round[name] else None,
            "ess": summary(sizes[name])[0] if sizes[name] else None,
        })  # fmt: skip
    table = Table("particles", "log-likelihood a token", "from plain", "speed of plain", "tokens a round", "mean ESS")
    for row in rows:
        table.add_row(
            row["particles"], f"{row['log_likelihood']:.3f} ± {row['error']:.3f}",
            f"{row['from_plain']:+.3f} ± {row['from_plain_error']:.3f}", f"{row['speed']:.2f}",
            "" if row["tokens_a_round"] is None else f"{row['tokens_a_round']:.2f}",
            "" if row["ess"] is None else f"{row['ess']:.2f}",
        )  # fmt: skip
    Console().print(table)
    if args.out:
        facts = {
            "model": args.model, "draft": Path(args.draft).name, "dtype": args.dtype, "prompts": len(prompts),
            "tokens": args.tokens, "depth": args.depth, "temperature": args.temperature, "seeds": args.seeds,
            "threads": torch.get_num_threads(), "torch": torch.__version__, "transformers": transformers.__version__,
            "python": platform.python_version(), "machine": platform.machine(),
        }  # fmt: skip
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
