"""Compose a decoder from its parts, decode, and see what each round did.

python examples/compose_by_hand.py [MODEL]
"""

from __future__ import annotations

import sys

from specdec import Decoder, load_model
from specdec.drafters import Merge, PromptLookup, TokenRecycling
from specdec.schedulers import Fixed
from specdec.verifiers import Walk


def main(name: str = "smollm2-135m", tokens: int = 48) -> None:
    model, tokenizer = load_model(name)
    decoder = Decoder(
        model,
        drafter=Merge(PromptLookup(), TokenRecycling()),
        verifier=Walk(),
        scheduler=Fixed(depth=5, nodes=16),
    )
    inputs = tokenizer("the sea and the sky and the sea and the sky and the", return_tensors="pt")
    stream = decoder.stream(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=tokens,
        do_sample=False,
    )
    for event in stream:
        (row,) = event.rows
        print(f"{len(row.draft):2d} nodes, {row.accepted} accepted: {tokenizer.decode(row.tokens)!r}")
    print(f"{stream.stats.tokens_per_pass:.2f} tokens a pass; {stream.guarantee}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
