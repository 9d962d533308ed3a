"""A decoder from a config, a dict or a YAML file, and back: what it writes down builds it again.

python examples/from_config.py [MODEL]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import yaml

from specdec import Decoder
from specdec.core.errors import ConfigError

PARTS = """
drafter:
  type: merge
  drafters:
    - {type: prompt-lookup, max_ngram: 3}
    - token-recycling   # a name alone stands for its defaults
scheduler: {type: fixed, depth: 5, nodes: 16}
"""


def main(name: str = "smollm2-135m", tokens: int = 48) -> None:
    decoder = Decoder.from_config({"target": {"model": name, "dtype": "float32"}, **yaml.safe_load(PARTS)})

    # Back to text. What nobody chose is written too, so that the file means the same when a default changes.
    text = yaml.safe_dump(decoder.config.model_dump(mode="json", exclude_none=True), sort_keys=False)
    print(text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.yaml"
        path.write_text(text, encoding="utf-8")
        again = Decoder.from_config(path)  # loads the target that it names, and its tokenizer
    assert again.config == decoder.config

    # A mistake is named by its place, before a weight is read; `specdec validate FILE` does the same.
    try:
        Decoder.from_config({"target": name, "drafter": {"type": "prompt-lookup", "max_ngrams": 3}})
    except ConfigError as error:
        print(f"refused: {error}\n")

    inputs = again.tokenizer("the sea and the sky and the sea and the sky and the", return_tensors="pt")
    out = again.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
    )
    print(again.tokenizer.decode(out.sequences[0]))
    print(f"{out.stats.tokens_per_pass:.2f} tokens a pass; {out.guarantee}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
