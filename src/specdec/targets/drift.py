"""How far a wide pass moves what decides a token, measured once a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.core import host
from specdec.targets.cached_lm import CachedLM

_PROMPT, _TOKENS = 16, 40
_WIDTHS = (3, 6, 17)


@dataclass(frozen=True, slots=True)
class Drift:
    """The largest difference met between one-token passes and passes over chains of drafted tokens.

    margin: of the difference between the two largest logits.
    """

    margin: float


@torch.inference_mode()
def measure(lm: CachedLM) -> Drift:
    """Score a fixed pseudo-random text and one that the model continues itself, token by token and in wide passes."""
    margin = 0.0
    for own in (False, True):
        text = [(7 + 7919 * i * i + 31 * i) % lm.spec.vocab_size for i in range(_PROMPT + (0 if own else _TOKENS))]
        narrow = _narrow(lm, text, _PROMPT)  # adds to the text what the model says, where that is its own
        for width in _WIDTHS:
            margin = max(margin, _difference(narrow, _wide(lm, text, _PROMPT, width)))
    return Drift(margin)


def _narrow(lm: CachedLM, text: list[int], start: int) -> Tensor:
    """Logits `[tokens, vocab]` after each of the tokens from `start`; a text that ends is continued greedily."""
    session = lm.open([text[:start]], expected=start + _TOKENS)
    last, _ = session.prefill()  # [1, vocab]
    found = []
    for place in range(start, start + _TOKENS):
        if place == len(text):
            text.extend(int(token) for token in host.read(last[0].argmax())[0])
        logits, _ = session.extend([0], _row(lm, text[place : place + 1]), [(-1,)])
        session.commit(0, (0,))
        last = logits[:, 0]
        found.append(last[0])
    return torch.stack(found)


def _wide(lm: CachedLM, text: list[int], start: int, width: int) -> Tensor:
    """The same logits from passes over chains of `width` tokens."""
    session = lm.open([text[:start]], expected=len(text))
    session.prefill()
    found = []
    for place in range(start, len(text), width):
        tokens = text[place : place + width]
        logits, _ = session.extend([0], _row(lm, tokens), [tuple(range(-1, len(tokens) - 1))])
        session.commit(0, range(len(tokens)))
        found.append(logits[0])
    return torch.cat(found)


def _difference(narrow: Tensor, wide: Tensor) -> float:
    narrow, wide = narrow.double(), wide.double()
    top = narrow.topk(2, dim=-1).indices  # [tokens, 2]
    before, after = narrow.gather(1, top), wide.gather(1, top)
    (moved,) = host.read(((before[:, 0] - before[:, 1]) - (after[:, 0] - after[:, 1])).abs().max())
    return float(moved[0])


def _row(lm: CachedLM, tokens: list[int]) -> Tensor:
    return host.send([tokens], lm.device)
