"""EAGLE heads for the target of most tests: fresh, broken, or taught one text by heart."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional as F

from specdec import Decoder
from specdec.drafters import Eagle, Eagle2, Eagle3
from specdec.heads.eagle import EagleHead
from specdec.heads.eagle3 import Eagle3Head
from specdec.schedulers import Fixed
from specdec.targets.taps import Taps
from tests.frontdoor.models import PROMPT, RAGGED_MASK, plain, target

BATCH = {"attention_mask": RAGGED_MASK, "pad_token_id": 0}
TAPS = ("layer:0", "layer:1")


def fresh(kind: str, model: Any = None, seed: int = 0, **options: Any) -> Any:
    """A random head for the model, in its dtype."""
    cls, given = (EagleHead, {}) if kind == "eagle" else (Eagle3Head, {"taps": TAPS})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls.for_target(target() if model is None else model, **{**given, **options}).eval()


def features(model: Any, tokens: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
    """The model's own states of a text `[rows, length]`, side by side."""
    with torch.no_grad():
        _, found = Taps(names).run(model, input_ids=tokens)
    return torch.cat([found[name] for name in names], -1)


def teach(head: Any, model: Any, text: torch.Tensor, steps: int = 80) -> Any:
    """Teach a head, in place, to go on with a text of the model `[1, length]`."""
    known = features(model, text, head.features)
    with torch.enable_grad():
        optimizer = torch.optim.Adam(head.parameters(), lr=5e-3)
        for _ in range(steps):
            states = head.fuse(known)[:, :-1]
            loss = torch.zeros(())
            for step in range(3):  # on its own states, as when it drafts
                tokens = text[:, 1 + step :]
                states = head(tokens, states[:, : tokens.shape[1]])
                logits = head.logits(states)[:, :-1]
                loss = loss + F.cross_entropy(logits.flatten(0, 1), text[:, 2 + step :].flatten())
                if head.kind == "eagle":
                    loss = loss + F.smooth_l1_loss(states, known[:, 1 + step :])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.zero_grad()  # other tests share the model, and its LM head was on the way
    return head.eval()


@lru_cache
def taught(kind: str) -> Any:
    """A head that has learnt, in some dozen steps, to go on with the target's greedy text after `PROMPT`."""
    return teach(fresh(kind), target(), plain(PROMPT, max_new_tokens=60))


DRAFTERS = {
    "eagle": lambda head=None, **options: Eagle(head or fresh("eagle"), **options),
    "eagle2": lambda head=None, **options: Eagle2(head or fresh("eagle"), **{"top_k": 4, **options}),
    "eagle3": lambda head=None, **options: Eagle3(head or fresh("eagle3"), **{"top_k": 4, **options}),
    "eagle3-chain": lambda head=None, **options: Eagle3(head or fresh("eagle3"), shape="chain", **options),
}


def kind_of(name: str) -> str:
    return "eagle3" if name.startswith("eagle3") else "eagle"


def with_head(name: str, head: str = "taught", **options: Any) -> Any:
    """A drafter of `DRAFTERS` with a taught or a fresh head."""
    made = taught(kind_of(name)) if head == "taught" else fresh(kind_of(name))
    return DRAFTERS[name](made, **options)


def decoder(drafter: Any, scheduler: Any = None, model: Any = None, **options: Any) -> Decoder:
    """A decoder for `target()` that drafts up to 16 nodes, 5 deep, in every round."""
    return Decoder(target() if model is None else model, drafter, scheduler=scheduler or Fixed(5, 16), **options)
