"""What a model's attention can do, measured on tiny inputs instead of read off its name."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.core.contracts import Caps
from specdec.core.errors import UnsupportedModelError
from specdec.targets.cached_lm import CachedLM

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
    if worst > limit:
        raise UnsupportedModelError(
            f"{lm.spec.name} scores a chain of drafted tokens differently from plain decoding (error {worst:.2g} of "
            f"the logits' spread, {limit} allowed): its attention does not follow the cache, positions or mask given"
        )
    session.commit(0, (0, 1))
    tree, why = _try_tree(lm, session, ids, limit), ""
    ragged = _try_ragged(lm, ids, limit)
    if not tree or not ragged:
        what = "the tree mask" if lm.spec.takes_mask else "any mask but its own"
        why = f"its attention implementation does not honour {what}"
    return Probe(Caps(trees=tree, batches=ragged, why=why), worst)


def _try_tree(lm: CachedLM, session, ids: list[int], limit: float) -> bool:  # type: ignore[no-untyped-def]
    """Two siblings and a grandchild under one anchor, each against its own path."""
    tokens, parents = [ids[7], ids[8], ids[9], ids[10]], (-1, 0, 0, 1)
    try:
        logits, _ = session.extend([0], _row(lm, tokens), [parents])
    except Exception:
        return False
    base = ids[:7]
    paths = [[ids[7]], [ids[7], ids[8]], [ids[7], ids[9]], [ids[7], ids[8], ids[10]]]
    return all(_error(logits[0, i], _plain(lm, base + path)[-1]) <= limit for i, path in enumerate(paths))


def _try_ragged(lm: CachedLM, ids: list[int], limit: float) -> bool:
    """Two rows of different length that keep different numbers of nodes."""
    try:
        session = lm.open([ids[:5], ids[2:5]])
        session.prefill()
        tokens = torch.tensor([ids[5:7], ids[5:7]], device=lm.device)
        logits, _ = session.extend([0, 1], tokens, [(-1, 0), (-1, 0)])
    except Exception:
        return False
    want = [_plain(lm, ids[:7])[5:7], _plain(lm, ids[2:7])[3:5]]
    return all(_error(logits[i], want[i]) <= limit for i in range(2))


def _row(lm: CachedLM, tokens: list[int]) -> Tensor:
    return torch.tensor([tokens], device=lm.device)


def _plain(lm: CachedLM, tokens: list[int]) -> Tensor:
    """Logits `[length, vocab]` of one pass over the whole sequence, without a cache."""
    return lm.model(input_ids=_row(lm, tokens), use_cache=False).logits[0]


def _error(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double().to(got.device)
    spread = want.std(-1).mean().clamp(min=1e-12)
    return float((got - want).abs().mean() / spread)
