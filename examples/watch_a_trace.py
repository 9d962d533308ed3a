"""Decode a prompt and write a page on which every round can be watched; `--open` shows it in the browser.

python examples/watch_a_trace.py [MODEL] [--out trace.html] [--open]
"""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from specdec import Decoder, load_model
from specdec.drafters import Merge, PromptLookup, TokenRecycling
from specdec.schedulers import Fixed
from specdec.trace import explorers, page, record


def main(name: str = "smollm2-135m", out: str = "trace.html", show: bool = False, tokens: int = 48) -> None:
    model, tokenizer = load_model(name)
    # Always as much, so that there is something to see; the default scheduler drafts what pays.
    decoder = Decoder(model, drafter=Merge(PromptLookup(), TokenRecycling()), scheduler=Fixed(depth=5, nodes=16))
    encoded = tokenizer("the sea and the sky and the sea and the sky and the", return_tensors="pt")
    inputs = {key: encoded[key] for key in ("input_ids", "attention_mask")}
    trace = record(decoder, tokenizer, inputs, max_new_tokens=tokens, do_sample=False)
    # One file, which needs neither network nor server. It holds the prompt and the text.
    path = Path(out).resolve()
    path.write_text(page(trace, explorers(), f"{name}, {decoder.drafter.name}"), encoding="utf-8")
    for fact in ("target passes", "tokens per pass", "acceptance rate", "guarantee"):
        print(f"{fact}: {trace['facts'][fact]}")
    print(f"{len(trace['rounds'])} rounds in {path.as_uri()}")
    if show and not webbrowser.open(path.as_uri()):
        print("there is no browser that could be started from here; open the file yourself")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m", help="hub id, folder, .gguf file or alias")
    parser.add_argument("--out", default="trace.html", help="the file to write")
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    given = parser.parse_args()
    main(given.model, given.out, given.open)
