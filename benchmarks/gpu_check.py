"""What specdec does on a GPU, in under four minutes and without a download; says so and exits 0 where there is none.

1. identity: float32, a small random Llama, greedy, chain and tree against `generate`, alone and in a ragged batch;
   device-to-host reads a round, counted by torch's sync debug mode.
2. cost: milliseconds of a verification pass over 1 to 64 nodes at 1B and 8B shapes in bfloat16, random weights.
3. speed: tokens a second against plain `generate` with a drafter scripted to about 3.5 tokens a pass, batch 1 and 8.
4. overhead: milliseconds a round above passes of the same width.

    python benchmarks/gpu_check.py [--out benchmarks/results/gpu_check.json] [--small]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.core.interfaces import StatelessDrafter
from specdec.drafters import NoDraft
from specdec.schedulers import Fixed
from specdec.targets.cached_lm import CachedLM

SHAPES = {
    "1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32),
    "8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32),
}
TINY = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8)


def llama(shape: dict, dtype: torch.dtype, device: str, vocab: int = 32000) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        eos_token_id=None,
        pad_token_id=0,
        **shape,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(default)


class Scripted(StatelessDrafter):
    """Knows the text and guesses `right` tokens of it, then wrong ones; branching adds a wrong sibling everywhere."""

    name = "scripted"

    def __init__(self, texts: dict, rights: list[int], nodes: int, branching: bool = False) -> None:
        self.texts, self.rights, self.nodes, self.branching = texts, rights, nodes, branching

    def propose(self, row, budget, rng, context):
        text = self.texts[tuple(row.tokens[: row.prompt_length])]
        at, count = len(row.tokens), min(budget.depth, self.nodes)
        right = self.rights[row.rounds % len(self.rights)]
        guess = [t if i < right else (t + 1) % context.vocab_size for i, t in enumerate(text[at : at + count])]
        if not self.branching:
            return Draft.point(guess)
        tokens, parents, parent = [], [], -1
        for token in guess:
            tokens += [(token + 1) % context.vocab_size, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return Draft.point(tokens, parents)


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(run, device: str, repeats: int = 5) -> float:
    spent = []
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        run()
        synchronise(device)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def texts_of(model, prompts: list[list[int]], new: int) -> dict[tuple[int, ...], list[int]]:
    found = {}
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        found[tuple(prompt)] = model.generate(ids, max_new_tokens=new, do_sample=False)[0].tolist()
    return found


def padded(prompts: list[list[int]], device) -> dict[str, torch.Tensor]:
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(p)) + p for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    return {"input_ids": torch.tensor(ids, device=device), "attention_mask": torch.tensor(mask, device=device)}


def identity(device: str) -> dict:
    model = llama(TINY, torch.float32, device, vocab=512)
    prompts = [list(range(3, 20)), [7, 8, 9], [11] * 9]
    texts = texts_of(model, prompts, 48)
    for branching in (False, True):
        drafter = Scripted(texts, [4, 0, 2, 1, 3], 4, branching)
        decoder = Decoder(model, drafter, scheduler=Fixed(depth=4, nodes=16))
        for some in (prompts[:1], prompts):
            out = decoder.generate(**padded(some, device), max_new_tokens=48, do_sample=False)
            for row, prompt in enumerate(some):
                got = out[row, -48:].tolist()
                assert got == texts[tuple(prompt)][-48:], f"branching={branching}, {len(some)} rows: row {row} differs"
    report = {"identity": "chain and tree, alone and in a ragged batch of 3: equal to generate"}
    if device == "cuda":
        decoder = Decoder(model, Scripted(texts, [4, 0, 2], 4), scheduler=Fixed(depth=4))
        report["reads a round"] = reads_a_round(decoder, padded(prompts[:1], device))
    return report


def reads_a_round(decoder: Decoder, inputs: dict) -> float:
    """Synchronising operations a round; 1.0 is the one read that is allowed."""
    stream = decoder.stream(**inputs, max_new_tokens=48, do_sample=False)
    next(stream)
    counts = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in stream:
                counts.append(len(caught))
                caught.clear()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return statistics.mean(counts)


def cost_curve(lm: CachedLM, device: str, batch: int = 1) -> dict[int, float]:
    prompts = [list(range(5, 5 + 200))] * batch
    curve = {}
    with torch.inference_mode():
        session = lm.open(prompts)
        session.prefill()
        for nodes in (1, 2, 4, 8, 16, 32, 64):
            tokens = torch.ones(batch, nodes, dtype=torch.int64, device=device)
            parents = [tuple(range(-1, nodes - 1))] * batch

            def one(tokens=tokens, parents=parents):
                session.extend(range(batch), tokens, parents)
                for row in range(batch):
                    session.commit(row, ())

            one()
            curve[nodes] = 1e3 * seconds(one, device)
    return curve


def speed(model, device: str, batch: int, new: int) -> dict:
    prompts = [[3 + i, *range(5, 104)] for i in range(batch)]
    texts = texts_of(model, prompts, new + 16)
    inputs = padded(prompts, device)
    # 4, 2, 3, 1 right of 4: with the target's own token 3.5 tokens a pass
    decoder = Decoder(model, Scripted(texts, [4, 2, 3, 1], 4), scheduler=Fixed(depth=4))
    plain = Decoder(model, NoDraft())
    kwargs = dict(**inputs, max_new_tokens=new, do_sample=False)
    runs = {
        "generate": lambda: model.generate(**kwargs),
        "specdec": lambda: decoder.generate(**kwargs),
        "specdec none": lambda: plain.generate(**kwargs),
    }
    for run in runs.values():
        run()
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(3):
        for name, run in runs.items():
            spent[name].append(seconds(run, device, repeats=1))
    rate = {name: batch * new / statistics.median(values) for name, values in spent.items()}
    out = decoder.generate(**kwargs, return_dict_in_generate=True)
    passes_ms = 1e3 * out.stats.seconds_target / out.stats.rounds
    return {
        "batch": batch,
        "tokens a second": rate,
        "times generate": rate["specdec"] / rate["generate"],
        "tokens a pass": out.stats.tokens_per_pass,
        "ms a round": 1e3 * out.stats.seconds_total / out.stats.rounds,
        "ms a round in the target's pass, as queued": passes_ms,
    }


def overhead(model, lm: CachedLM, device: str, new: int) -> dict:
    """Milliseconds a round above a pass of the same width."""
    prompt = list(range(5, 205))
    texts = texts_of(model, [prompt], new + 16)
    decoder = Decoder(model, Scripted(texts, [4], 4), scheduler=Fixed(depth=4))
    kwargs = dict(**padded([prompt], device), max_new_tokens=new, do_sample=False)
    rounds = decoder.generate(**kwargs, return_dict_in_generate=True).stats.rounds
    whole = seconds(lambda: decoder.generate(**kwargs), device, repeats=5)
    ids = torch.tensor([prompt[:5]], device=device)
    with torch.inference_mode():
        from transformers import DynamicCache

        cache = DynamicCache(config=model.config)
        name = lm.spec.cache_name
        model(input_ids=torch.tensor([prompt], device=device), use_cache=True, **{name: cache})

        def alone():
            model(input_ids=ids, use_cache=True, **{name: cache})

        one = seconds(lambda: [alone() for _ in range(10)], device) / 10
    return {"ms a round above a bare pass of 5 tokens": 1e3 * (whole / rounds - one), "rounds": rounds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--small", action="store_true", help="tiny shapes on whatever device there is")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.small:
        print("no CUDA device: nothing was measured (try --small to run the script on the CPU)")
        return 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = {"tiny": TINY} if options.small else SHAPES
    report = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        **identity(device),
    }
    for name, shape in shapes.items():
        model = llama(shape, torch.float32 if options.small else torch.bfloat16, device)
        lm = CachedLM(model)
        new = 32 if options.small else 64
        report[name] = {
            "ms a pass by nodes": cost_curve(lm, device),
            "ms a pass by nodes, batch 8": cost_curve(lm, device, 8),
            "overhead": overhead(model, lm, device, new),
            "speed": [speed(model, device, batch, new) for batch in (1, 8)],
        }
        del model, lm
        if device == "cuda":
            torch.cuda.empty_cache()
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        with open(options.out, "w") as file:
            file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
