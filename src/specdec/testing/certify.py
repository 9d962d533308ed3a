"""Certify one pair of models: what a decoder's text is worth on a user's own prompts, with figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.core.draft import Kind
from specdec.core.interfaces import Drafter
from specdec.decoder import Decoder
from specdec.drafters.none import NoDraft
from specdec.result import DecoderOutput
from specdec.schedulers.fixed import Fixed
from specdec.targets.compat import cache_keyword, parameters


@dataclass(frozen=True)
class Finding:
    """One question and its answer. `equal` of `asked` prompts agreed; `note` says what qualifies that."""

    name: str
    asked: int
    equal: int
    note: str = ""

    @property
    def all_equal(self) -> bool:
        return self.asked == self.equal


@dataclass(frozen=True)
class Certificate:
    """What was found for a model, a drafter and some prompts.

    level: "identical" (every text is plain decoding's), "near-ties" (texts differ only where the target's best two
    tokens are closer than `allowed`), or "failed".
    drift: largest difference of the top-2 margin between the passes that decoded and one-token passes on the same
    text. deficit: largest amount by which an emitted token fell short of the best one in one-token passes.
    near_ties: emitted tokens that fell short at all. positions: tokens looked at.
    """

    model: str
    dtype: str
    drafter: str
    exactness: str
    level: str
    findings: tuple[Finding, ...]
    drift: float
    deficit: float
    allowed: float
    near_ties: int
    positions: int
    tokens_per_pass: float

    @property
    def ok(self) -> bool:
        return self.level != "failed"

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "ok": self.ok}, indent=1)

    def __str__(self) -> str:
        lines = [
            f"{self.model} ({self.dtype}), drafter {self.drafter}, exactness {self.exactness}",
            *(f"  {f.name}: {f.equal} of {f.asked} equal" + (f" ({f.note})" if f.note else "") for f in self.findings),
            f"  one-token passes over the same text: {self.near_ties} of {self.positions} tokens are not the best one "
            f"there, by at most {self.deficit:.3g}; margins drift by up to {self.drift:.3g}",
            f"  {self.tokens_per_pass:.2f} tokens a pass",
            f"level of claim: {_CLAIMS[self.level].format(self.allowed)}",
        ]
        return "\n".join(lines)


_ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-2}
_ROUNDING_HALF = 0.5

_CLAIMS = {
    "identical": "identical: on these prompts the text is plain decoding's, token by token",
    "near-ties": "near-ties: texts differ from plain decoding's only where two tokens lie within {:.3g}, as far "
    "as rounding goes; passes of different width round differently, and either token is the model's",
    "failed": "failed: an emitted token lies further from the best one than {:.3g}, which is more than rounding",
}


def certify(
    model: Any,
    drafter: Drafter,
    prompts: Sequence[Tensor],
    *,
    max_new_tokens: int = 48,
    seed: int = 7,
    exactness: str = "algorithmic",
    name: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Certificate:
    """Compare decoding with `drafter` to plain decoding on `prompts` (each `[1, length]`), in the model's own dtype.

    Four questions: greedy text against `model.generate`; the emitted tokens under one-token passes over the same
    text; the text of a seed with and without speculation (for drafters that do not sample); a batch against its rows.
    name: what the certificate calls the model; by default where it was loaded from.
    """
    decoder = Decoder(model, drafter, scheduler=Fixed(), exactness=exactness)
    common = {"max_new_tokens": max_new_tokens, "do_sample": False, "pad_token_id": _pad(model)}
    singles, greedy_equal, drift, deficit, near, positions = [], 0, 0.0, 0.0, 0, 0
    emitted, passes, spread = 0, 0, 0.0
    for number, ids in enumerate(prompts, start=1):
        progress(f"greedy, prompt {number} of {len(prompts)}")
        mask = torch.ones_like(ids)
        out = decoder.generate(
            input_ids=ids, attention_mask=mask, return_dict_in_generate=True, output_logits=True, **common
        )
        assert isinstance(out, DecoderOutput) and out.stats is not None and out.logits is not None
        plain = model.generate(input_ids=ids, attention_mask=mask, **common)
        greedy_equal += torch.equal(out.sequences, plain)
        singles.append(out.sequences)
        narrow = _one_token_passes(model, out.sequences, ids.shape[1])  # [new tokens, vocab]
        wide = torch.cat([step.float() for step in out.logits])[: len(narrow)]
        chosen = out.sequences[0, ids.shape[1] :]
        spread = max(spread, float(narrow.std(-1).mean()))
        short = narrow.max(-1).values - narrow.gather(1, chosen[:, None])[:, 0]
        drift = max(drift, float((_margin(narrow) - _margin(wide)).abs().max()))
        deficit, near = max(deficit, float(short.max())), near + int((short > 0).sum())
        positions += len(chosen)
        emitted, passes = emitted + out.stats.emitted, passes + out.stats.target_passes
    findings = [Finding("greedy text against generate", len(prompts), greedy_equal)]
    findings.append(_sampled(model, decoder, drafter, prompts, max_new_tokens, seed, exactness, progress))
    findings.append(_batched(decoder, prompts, singles, common, progress))
    # A faulty pass drifts, too: what may pass for rounding is bounded by the dtype, in units of the logits' spread.
    allowed = min(2.0 * drift, _ROUNDING.get(model.dtype, _ROUNDING_HALF) * spread)
    identical = all(finding.all_equal for finding in findings if finding.asked)
    level = "identical" if identical else "near-ties" if deficit <= allowed else "failed"
    return Certificate(
        model=name or getattr(model.config, "_name_or_path", "") or type(model).__name__,
        dtype=str(model.dtype).removeprefix("torch."),
        drafter=drafter.name,
        exactness=exactness,
        level=level,
        findings=tuple(findings),
        drift=drift,
        deficit=deficit,
        allowed=allowed,
        near_ties=near,
        positions=positions,
        tokens_per_pass=emitted / passes,
    )


def _sampled(
    model: Any,
    decoder: Decoder,
    drafter: Drafter,
    prompts: Sequence[Tensor],
    new: int,
    seed: int,
    exactness: str,
    progress: Callable[[str], None],
) -> Finding:
    name = "text of a seed with and without speculation"
    if drafter.emits != frozenset({Kind.POINT}):
        note = "not asked: the drafter samples, so a seed's text depends on it; its law is proven by `specdec check`"
        return Finding(name, 0, 0, note)
    plain, equal = Decoder(model, NoDraft(), scheduler=Fixed(), exactness=exactness), 0
    for number, ids in enumerate(prompts, start=1):
        progress(f"sampled, prompt {number} of {len(prompts)}")
        kwargs = {"max_new_tokens": new, "do_sample": True, "seed": seed, "pad_token_id": _pad(model)}
        texts = [d.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **kwargs) for d in (decoder, plain)]
        equal += torch.equal(*texts)  # type: ignore[arg-type]
    return Finding(name, len(prompts), equal)


def _batched(
    decoder: Decoder,
    prompts: Sequence[Tensor],
    singles: Sequence[Tensor],
    common: dict[str, Any],
    progress: Callable[[str], None],
) -> Finding:
    progress("all prompts in one batch")
    longest, pad = max(ids.shape[1] for ids in prompts), common["pad_token_id"]
    ids = torch.cat([torch.nn.functional.pad(p, (longest - p.shape[1], 0), value=pad) for p in prompts])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(p), (longest - p.shape[1], 0)) for p in prompts])
    out = decoder.generate(input_ids=ids, attention_mask=mask, **common)
    assert isinstance(out, Tensor)
    equal = 0
    for row, (prompt, single) in enumerate(zip(prompts, singles, strict=True)):
        text = single[0, prompt.shape[1] :]
        equal += torch.equal(out[row, longest : longest + len(text)], text)
    return Finding("a batch against its rows alone", len(prompts), equal)


@torch.inference_mode()
def _one_token_passes(model: Any, text: Tensor, prompt: int) -> Tensor:
    """Logits `[new tokens, vocab]` float32 that plain decoding sees when it is made to write `text` `[1, length]`."""
    name = cache_keyword(parameters(model)) or "past_key_values"
    steps: list[Tensor] = []
    more: dict[str, Any] = {}
    for at in range(prompt, text.shape[1]):
        out = model(input_ids=text[:, at - 1 : at] if more else text[:, :at], use_cache=True, **more)
        more = {name: getattr(out, name, None) or out.past_key_values}
        steps.append(out.logits[0, -1].float())
    return torch.stack(steps)


def _margin(logits: Tensor) -> Tensor:
    best = logits.topk(2, dim=-1).values  # [tokens, 2]
    return best[:, 0] - best[:, 1]


def _pad(model: Any) -> int:
    config = model.generation_config
    eos = config.eos_token_id
    eos = eos[0] if isinstance(eos, list) else eos
    return next((token for token in (config.pad_token_id, eos) if token is not None), 0)
