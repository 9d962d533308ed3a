"""Other libraries for `specdec bench -s NAME=call:benchmarks/peers/peers.py:FUNCTION`; absent ones are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Decode = Callable[..., Tensor]


def economize_lookup(model: Any, tokenizer: Any) -> Decode:
    """Prompt lookup of economize, ten tokens a round, greedy, one row."""
    import economize
    from economize.techniques.lookup import LookupConfig

    ready = economize.apply(model, LookupConfig())
    config = economize.DecodeConfig(cycle_length=11)

    def decode(ids: Tensor, mask: Tensor, *, max_new_tokens: int, **options: Any) -> Tensor:
        _only_greedy_single_rows("economize", ids, options)
        out = ready.decode(ids, max_new_tokens, decoding=config, stop=tokenizer.eos_token_id)
        return _joined(ids, torch.as_tensor(out.tokens))

    return decode


def flashspec_ngram(model: Any, tokenizer: Any) -> Decode:
    """N-gram drafter of flashspec, greedy, one row."""
    from flashspec import BanditConfig, FlashSpecConfig, SamplingConfig, SpeculativeEngine
    from flashspec.engine import NgramDrafter, TargetModel

    config = FlashSpecConfig(
        device=str(model.device),
        drafter_strategy="bandit",  # its name for one arm a drafter
        bandit=BanditConfig(n_arms=1),
        sampling=SamplingConfig(temperature=0.0),
    )
    target = TargetModel("target", model.device, model.dtype, model=model)
    engine = SpeculativeEngine(config, [NgramDrafter()], target)
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]

    def decode(ids: Tensor, mask: Tensor, *, max_new_tokens: int, **options: Any) -> Tensor:
        _only_greedy_single_rows("flashspec", ids, options)
        out = engine.generate(ids, max_new_tokens=max_new_tokens, eos_token_ids=ends)
        return _joined(ids, out.output_ids[0, : out.n_tokens_generated])

    return decode


def _only_greedy_single_rows(library: str, ids: Tensor, options: dict[str, Any]) -> None:
    if len(ids) > 1 or options.get("do_sample"):
        raise NotImplementedError(f"the adapter of {library} decodes one row, greedily")


def _joined(ids: Tensor, new: Tensor) -> Tensor:
    return torch.cat([ids[0], new.to(ids.device, ids.dtype)])[None]
