"""Certify a model and a drafter on prompts of one's own: what may be said of the text, with figures.

python examples/certify_a_pair.py [MODEL]
"""

from __future__ import annotations

import sys

from specdec import load_model
from specdec.drafters import PromptLookup
from specdec.testing.certify import certify

PROMPTS = ("one two three one two three one", "the sea and the sky and the sea")


def main(name: str = "smollm2-135m", tokens: int = 24) -> None:
    model, tokenizer = load_model(name)
    encoded = [tokenizer(text, return_tensors="pt")["input_ids"] for text in PROMPTS]
    certificate = certify(model, PromptLookup(), encoded, max_new_tokens=tokens, name="the model")
    print(certificate)
    if not certificate.ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main(*sys.argv[1:2])
