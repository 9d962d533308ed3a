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
    """One question and its answer. `equal` of `asked` prompts agreed; `note` says what qualifies that.

    unexplained: texts that differ by more than rounding: in a token that lies further from the other one than the
    certificate allows, or in their length alone.
    """

    name: str
    asked: int
    equal: int
    note: str = ""
    unexplained: int = 0

    @property
    def all_equal(self) -> bool:
        return self.asked == self.equal


@dataclass(frozen=True)
class Certificate:
    """What was found for a model, a drafter and some prompts.

    level: "identical" (every text is plain decoding's), "near-ties" (texts differ only where the two tokens that part
    them are closer than `allowed`, or, drawn, where rounding moves the edge between them), or "failed".
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
            *(f"  {f.name}: {f.equal} of {f.asked} equal{_remark(f)}" for f in self.findings),
            f"  one-token passes over the same text: {self.near_ties} of {self.positions} tokens are not the best one "
            f"there, by at most {self.deficit:.3g}; margins drift by up to {self.drift:.3g}",
            f"  {self.tokens_per_pass:.2f} tokens a pass",
            f"level of claim: {_CLAIMS[self.level].format(self.allowed)}",
        ]
        return "\n".join(lines)


_ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-2}
_ROUNDING_HALF = 0.5
_LIKELY = 1e-4  # tokens of less probability are not looked at: their scores drift most and matter least

_CLAIMS = {
    "identical": "identical: on these prompts the text is plain decoding's, token by token",
    "near-ties": "near-ties: texts differ from plain decoding's only where two tokens lie within {:.3g}, as far "
    "as rounding goes; passes of different width round differently, and either token is the model's",
    "failed": "failed: texts differ by more than rounding, which is {:.3g} here",
}


def _remark(finding: Finding) -> str:
    more = [f"{finding.unexplained} differ by more than rounding"] if finding.unexplained else []
    found = [*([finding.note] if finding.note else []), *more]
    return f" ({'; '.join(found)})" if found else ""


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
    singles, drift, deficit, near, positions = [], 0.0, 0.0, 0, 0
    laws: list[Tensor] = []  # of each prompt, logits [new tokens, vocab] of one-token passes
    greedy: list[float] = []  # how far the texts of each prompt are apart where they part
    emitted, passes, spread = 0, 0, 0.0
    for number, ids in enumerate(prompts, start=1):
        progress(f"greedy, prompt {number} of {len(prompts)}")
        mask = torch.ones_like(ids)
        out = decoder.generate(
            input_ids=ids, attention_mask=mask, return_dict_in_generate=True, output_logits=True, **common
        )
        assert isinstance(out, DecoderOutput) and out.stats is not None and out.logits is not None
        plain = model.generate(input_ids=ids, attention_mask=mask, **common)
        singles.append(out.sequences)
        narrow = _one_token_passes(model, out.sequences, ids.shape[1])  # [new tokens, vocab]
        laws.append(narrow)
        greedy.append(_apart(out.sequences[0, ids.shape[1] :], plain[0, ids.shape[1] :], narrow))
        wide = torch.cat([step.float() for step in out.logits])[: len(narrow)]
        chosen = out.sequences[0, ids.shape[1] :]
        spread = max(spread, float(narrow.std(-1).mean()))
        short = narrow.max(-1).values - narrow.gather(1, chosen[:, None])[:, 0]
        drift = max(drift, float((_margin(narrow) - _margin(wide)).abs().max()))
        deficit, near = max(deficit, float(short.max())), near + int((short > 0).sum())
        positions += len(chosen)
        emitted, passes = emitted + out.stats.emitted, passes + out.stats.target_passes
    # A faulty pass drifts, too: what may pass for rounding is bounded by the dtype, in units of the logits' spread.
    allowed = min(2.0 * drift, _ROUNDING.get(model.dtype, _ROUNDING_HALF) * spread)
    together = _batched(decoder, prompts, singles, laws, common, progress)
    findings = [
        _finding("greedy text against generate", greedy, allowed),
        _sampled(model, decoder, drafter, prompts, max_new_tokens, seed, exactness, allowed, progress),
        _finding("a batch against its rows alone", together, allowed),
    ]
    identical = all(finding.all_equal for finding in findings if finding.asked)
    explained = deficit <= allowed and not any(finding.unexplained for finding in findings)
    level = "identical" if identical else "near-ties" if explained else "failed"
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
    allowed: float,
    progress: Callable[[str], None],
) -> Finding:
    name = "text of a seed with and without speculation"
    if drafter.emits != frozenset({Kind.POINT}):
        note = "not asked: the drafter samples, so a seed's text depends on it; its law is proven by `specdec check`"
        return Finding(name, 0, 0, note)
    plain, apart = Decoder(model, NoDraft(), scheduler=Fixed(), exactness=exactness), []
    for number, ids in enumerate(prompts, start=1):
        progress(f"sampled, prompt {number} of {len(prompts)}")
        kwargs = {"max_new_tokens": new, "do_sample": True, "seed": seed, "pad_token_id": _pad(model)}
        kwargs |= {"return_dict_in_generate": True, "output_scores": True}
        one, other = (
            d.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **kwargs) for d in (decoder, plain)
        )
        apart.append(_drawn_apart(one, other, ids.shape[1], allowed))
    return _finding(name, apart, allowed)


def _finding(name: str, apart: Sequence[float], allowed: float) -> Finding:
    equal = sum(gap < 0 for gap in apart)
    return Finding(name, len(apart), equal, unexplained=sum(gap > allowed for gap in apart))


def _parting(one: Tensor, other: Tensor) -> int | None:
    """Place of the first difference of two texts, or of the end of the shorter one; None where they are equal."""
    length = min(len(one), len(other))
    differ = (one[:length] != other[:length]).nonzero()
    return int(differ[0]) if len(differ) else None if len(one) == len(other) else length


def _apart(text: Tensor, other: Tensor, logits: Tensor) -> float:
    """How far apart, in logits `[tokens, vocab]` along `text`, the tokens are that part two texts; -1 where none do."""
    at = _parting(text, other)
    if at is None:
        return -1.0
    if at >= min(len(text), len(other)):
        return float("inf")  # one of them only ends earlier
    return float((logits[at, text[at]] - logits[at, other[at]]).abs())


def _drawn_apart(one: Any, other: Any, prompt: int, allowed: float) -> float:
    """As `_apart` for drawn texts, whose noise is the same: 0 where rounding explains the difference, else infinite.

    It does if the scores agree up to `allowed`, and no more probability lies between the two tokens than the scores
    differ by.
    """
    texts = one.sequences[0, prompt:], other.sequences[0, prompt:]
    at = _parting(*texts)
    if at is None:
        return -1.0
    if at >= min(map(len, texts)):
        return float("inf")
    scores = [out.scores[at][0].double() for out in (one, other)]
    if not torch.equal(*(row.isfinite() for row in scores)):
        return float("inf")  # one of them could not be said at all
    laws = [row.softmax(-1) for row in scores]
    moved = float((scores[0] - scores[1])[laws[1] > _LIKELY].abs().max())
    low, high = sorted(int(text[at]) for text in texts)
    between = float(laws[1][low + 1 : high].sum())
    edges = float((laws[0].cumsum(-1) - laws[1].cumsum(-1)).abs().max())
    return 0.0 if moved <= allowed and between <= 2 * edges else float("inf")


def _batched(
    decoder: Decoder,
    prompts: Sequence[Tensor],
    singles: Sequence[Tensor],
    laws: Sequence[Tensor],
    common: dict[str, Any],
    progress: Callable[[str], None],
) -> list[float]:
    """Each row's text in the batch against its text alone: how far apart they are where they part."""
    progress("all prompts in one batch")
    longest, pad = max(ids.shape[1] for ids in prompts), common["pad_token_id"]
    ids = torch.cat([torch.nn.functional.pad(p, (longest - p.shape[1], 0), value=pad) for p in prompts])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(p), (longest - p.shape[1], 0)) for p in prompts])
    out = decoder.generate(input_ids=ids, attention_mask=mask, **common)
    assert isinstance(out, Tensor)
    apart = []
    for row, (prompt, single, logits) in enumerate(zip(prompts, singles, laws, strict=True)):
        text = single[0, prompt.shape[1] :]
        apart.append(_apart(text, out[row, longest : longest + len(text)], logits))
    return apart


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
