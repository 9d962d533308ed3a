"""Milliseconds a round that decoding adds to its forward passes: specdec beside transformers' assisted generation.

A tiny Llama drafts for a tiny Llama, k = 4, on one thread; greedy, and sampled at temperature 0.9. For each engine
the widths of all its passes are recorded once; then the engine, and the same passes done by `model.forward` on a
DynamicCache without anybody's code, are timed in turn. The difference, per round, is the engine's overhead. Medians
over repeats.

    python benchmarks/overhead.py [--repeats 15] [--tokens 200] [--out results.json]
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from specdec import Decoder
from specdec.drafters import DraftModel
from specdec.schedulers import Fixed
from specdec.targets.compat import cache_keyword, parameters

K = 4


def llama(layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def widths_of(run: Callable[[], object], models: list[LlamaForCausalLM]) -> list[tuple[int, int, int]]:
    """(model, width, tokens in the cache before) of every pass that `run` makes."""
    passes: list[tuple[int, int, int]] = []

    def recorder(number: int):
        def record(_, args, kwargs):
            ids = kwargs.get("input_ids", args[0] if args else None)
            cache = kwargs.get("cache", kwargs.get("past_key_values"))
            passes.append((number, ids.shape[1], int(cache.get_seq_length()) if cache is not None else 0))

        return record

    hooks = [m.register_forward_pre_hook(recorder(i), with_kwargs=True) for i, m in enumerate(models)]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return passes


@torch.inference_mode()
def bare(passes: list[tuple[int, int, int]], models: list[LlamaForCausalLM]) -> None:
    """The same passes on caches of the same lengths, and nothing else."""
    caches = [DynamicCache(config=m.config) for m in models]
    ids = torch.ones(1, 4096, dtype=torch.int64)
    name = cache_keyword(parameters(models[0]))
    for number, width, before in passes:
        cache = caches[number]
        surplus = cache.get_seq_length() - before
        if surplus > 0:
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[:, :, :before], layer.values[:, :, :before]
        models[number](input_ids=ids[:, :width], **{name: cache}, use_cache=True, logits_to_keep=width)


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--out", help="write the table as JSON here")
    options = parser.parse_args()
    torch.set_num_threads(1)

    target = llama(4, seed=0)
    drafts = {"all accepted": copy.deepcopy(target), "none accepted": llama(1, seed=1)}
    ids = torch.arange(3, 35)[None]
    rows = []
    for case, draft in drafts.items():
        draft.generation_config.num_assistant_tokens = K
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        models = [target, draft]
        modes = {"greedy": {"do_sample": False}, "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 0}}
        for mode, sampling in modes.items():
            kwargs = {"max_new_tokens": options.tokens, "min_new_tokens": None, **sampling}
            decoder = Decoder(target, DraftModel(draft), scheduler=Fixed(depth=K))
            engines = {
                "specdec": lambda decoder=decoder, kwargs=kwargs: decoder.generate(ids, **kwargs),
                "transformers": lambda draft=draft, kwargs=kwargs: target.generate(
                    ids, assistant_model=draft, **kwargs
                ),
            }
            recorded = {name: widths_of(run, models) for name, run in engines.items()}
            spent: dict[str, list[float]] = {name: [] for name in engines}
            for _ in track(range(options.repeats), description=f"{mode}, {case}"):
                for name, run in engines.items():
                    if mode == "sampled":
                        torch.manual_seed(0)
                    # The recorded run drew with another seed; record again so that passes match what is timed.
                    if mode == "sampled" and not spent[name]:
                        recorded[name] = widths_of(run, models)
                        torch.manual_seed(0)
                    whole = timed(run)
                    alone = timed(partial(bare, recorded[name], models))
                    rounds = sum(1 for number, _, _ in recorded[name] if number == 0)
                    spent[name].append((whole - alone) / rounds)
            for name in engines:
                rounds = sum(1 for number, _, _ in recorded[name] if number == 0)
                rows.append(
                    {
                        "mode": mode,
                        "case": case,
                        "engine": name,
                        "rounds": rounds,
                        "passes": len(recorded[name]),
                        "ms a round above the passes": round(statistics.median(spent[name]), 3),
                    }
                )
    table = Table(*rows[0], title=f"overhead, k = {K}, {options.tokens} tokens, one thread")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
