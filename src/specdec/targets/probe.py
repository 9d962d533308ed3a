"""What a model's attention can do, measured on tiny inputs instead of read off its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec.core.contracts import Caps
from specdec.core.errors import UnsupportedModelError
from specdec.targets.cached_lm import CachedLM
from specdec.targets.cached_session import CachedSession

_WRONG = {torch.float64: 1e-3, torch.float32: 1e-3}  # mean error in units of the logits' spread
_WRONG_HALF = 0.15


@dataclass(frozen=True, slots=True)
class Probe:
    """Measured capabilities of one model. error: the largest mean error met, in units of the logits' spread."""

    caps: Caps
    error: float


@torch.inference_mode()
def probe(lm: CachedLM) -> Probe:
    """Compare a chain, a tree and a ragged batch over the slot cache with plain passes over whole sequences."""
    ids = [(5 + 11 * i) % lm.spec.vocab_size for i in range(12)]
    prompt, limit = ids[:5], _WRONG.get(lm.dtype, _WRONG_HALF)
    try:
        session = lm.open([prompt])
        logits, _ = session.prefill()
        chain, _ = session.extend([0], _row(lm, ids[5:8]), [(-1, 0, 1)])
    except Exception as error:
        raise UnsupportedModelError(
            f"{lm.spec.name} cannot be run over a cache of keys and values: {type(error).__name__}: {error}"
        ) from error
    if len(session.cache.layers) == 0:
        raise UnsupportedModelError(
            f"{lm.spec.name} does not use the key-value cache it is given; it may keep a recurrent state"
        )
    plain = _plain(lm, ids[:8])
    worst = max(_error(logits[0], plain[4]), _error(chain[0], plain[5:8]))
    if not worst <= limit:  # so that NaN is refused
        raise UnsupportedModelError(_why_wrong(lm, _error(_plain(lm, prompt)[-1], plain[4]), worst, limit))
    session.commit(0, (0, 1))
    # A kernel without room for a mask is not tried: on a GPU it could end the process instead of raising.
    tree = lm.spec.takes_mask and _holds(_try_tree, lm, session, ids, limit)
    ragged = lm.spec.takes_mask and _holds(_try_ragged, lm, ids, limit)
    why = ""
    if not tree or not ragged:
        what = "a mask other than the causal one" if lm.spec.takes_mask else "any mask but its own"
        kernel = getattr(lm.model.config, "_attn_implementation", None)
        why = f"its attention implementation ({kernel}) does not honour {what}"
    return Probe(Caps(trees=tree, batches=ragged, forks=tree and ragged, why=why), worst)


def _why_wrong(lm: CachedLM, alone: float, worst: float, limit: float) -> str:
    """alone: error of the model's own plain passes, of a text and of a longer one that begins with it."""
    if alone != alone or worst != worst:
        return f"{lm.spec.name} gives logits that are not numbers (NaN). Check its weights and its dtype {lm.dtype}"
    if alone > limit:
        return (
            f"{lm.spec.name} gives a token other logits when further tokens stand in the same pass (error {alone:.2g} "
            f"of the logits' spread, {limit} allowed), so several drafted tokens cannot be checked in one: it is not "
            "causal, or in training mode with dropout, or its activations are quantised over the whole pass"
        )
    return (
        f"{lm.spec.name} scores a chain of drafted tokens differently from plain decoding (error {worst:.2g} of the "
        f"logits' spread, {limit} allowed): its attention does not follow the cache, positions or mask given"
    )


def _holds(attempt: Callable[..., bool], *args: Any) -> bool:
    """False also where a kernel refuses a shape that it was not made for."""
    try:
        return attempt(*args)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return False


def _try_tree(lm: CachedLM, session: CachedSession, ids: list[int], limit: float) -> bool:
    """Two siblings with a child each; then a chain in the two slots that the rejected ones left.

    In the second pass a committed token lies behind the nodes that follow it, so an attention that takes the order
    of the slots for that of the tokens would hide it.
    """
    text = ids[:7]
    if not _agree(lm, session, text, [ids[7], ids[8], ids[9], ids[10]], (-1, -1, 0, 1), limit):
        return False
    session.commit(0, (1, 3))
    return _agree(lm, session, [*text, ids[8], ids[10]], [ids[11], ids[3]], (-1, 0), limit)


def _agree(
    lm: CachedLM, session: CachedSession, text: list[int], tokens: list[int], parents: tuple[int, ...], limit: float
) -> bool:
    """Run these nodes after `text` in row 0; True if each scores as a plain pass over its own path does."""
    logits, _ = session.extend([0], _row(lm, tokens), [parents])
    paths: list[list[int]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else text), token])
    return all(_error(logits[0, i], _plain(lm, path)[-1]) <= limit for i, path in enumerate(paths))


def _try_ragged(lm: CachedLM, ids: list[int], limit: float) -> bool:
    """Two rows of different length with different numbers of nodes, the longer row having fewer."""
    session = lm.open([ids[:5], ids[2:5]])
    session.prefill()
    tokens = torch.tensor([[ids[5], 0, 0], ids[5:8]], device=lm.device)
    logits, _ = session.extend([0, 1], tokens, [(-1,), (-1, 0, 1)])
    want = [_plain(lm, ids[:6])[5:], _plain(lm, ids[2:8])[3:]]
    return all(_error(logits[row, : len(rows)], rows) <= limit for row, rows in enumerate(want))


def _row(lm: CachedLM, tokens: list[int]) -> Tensor:
    return torch.tensor([tokens], device=lm.device)


def _plain(lm: CachedLM, tokens: list[int]) -> Tensor:
    """Logits `[length, vocab]` of one pass over the whole sequence, without a cache."""
    ids = _row(lm, tokens)
    return lm.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]


def _error(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double().to(got.device)
    spread = want.std(-1).mean().clamp(min=1e-12)
    return float((got - want).abs().mean() / spread)
