"""Traces of tiny models, and a tokenizer whose tokens are what no page should be given as it is."""

from __future__ import annotations

from typing import Any

import torch

from specdec import Decoder
from specdec.schedulers import Fixed
from specdec.trace import record
from tests.frontdoor.models import LETTERS, PROMPT, VOCAB, target, tokenizer

NEW = 24
INPUTS = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
EVIL = {
    3: "</script><script>document.title='owned'</script>",
    4: "a\u202eb\u2066\u200f",
    5: "\x00\x1b[31m",
    6: "<b>&amp;",
}


class Words:
    """A tokenizer whose tokens are what no page should be given as it is."""

    def decode(self, ids: list[int]) -> str:
        return "".join(EVIL.get(one, f" word{one}\n") for one in ids)


def letters() -> Any:
    return tokenizer(extra=VOCAB - len(LETTERS))


def trace_of(drafter: Any, verifier: Any = None, inputs: Any = INPUTS, words: Any = None, **call: Any) -> Any:
    decoder = Decoder(target(), drafter, verifier, Fixed(4, 24), allow="consistent" if verifier else None)
    call = {"do_sample": False, **call}
    return record(decoder, words or letters(), inputs, max_new_tokens=NEW, **call)
