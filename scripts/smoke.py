"""Check an installed specdec from outside its source tree: import, command line, one exact decoding.

    python smoke.py

Prints one line a check and exits with 0, or with the first failure. The model is a tiny random Llama.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path


def main() -> None:
    import specdec

    version = importlib.metadata.version("specdec-hf")
    assert specdec.__version__ == version, f"the package says {specdec.__version__}, its metadata {version}"
    assert "torch" not in sys.modules, "importing specdec imported torch"
    assert (Path(specdec.__file__).parent / "py.typed").is_file(), "the package has no py.typed"
    print(f"specdec {version} imported from {Path(specdec.__file__).parent}")

    command = Path(sys.executable).with_name("specdec")
    listed = subprocess.run([command, "plugins"], capture_output=True, text=True)
    assert listed.returncode == 0, f"`specdec plugins` failed:\n{listed.stdout}{listed.stderr}"
    assert "prompt-lookup" in listed.stdout, f"`specdec plugins` does not list prompt-lookup:\n{listed.stdout}"
    print("specdec plugins lists the built-in strategies")

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from specdec import Decoder
    from specdec.drafters import PromptLookup
    from specdec.schedulers import Fixed

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()
    prompt = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7]])
    options = {"max_new_tokens": 48, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(prompt, **options)
    # Fixed, so that measured times do not decide whether anything is drafted at all.
    decoder = Decoder(model, drafter=PromptLookup(), scheduler=Fixed(depth=4))
    ours = decoder.generate(prompt, return_dict_in_generate=True, **options)
    assert torch.equal(plain, ours.sequences), f"expected {plain.tolist()}, found {ours.sequences.tolist()}"
    assert ours.stats.accepted > 0, "no drafted token was accepted, so nothing was shown"
    print(f"prompt lookup gives the tokens of generate, {ours.stats.tokens_per_pass:.2f} tokens per pass")


if __name__ == "__main__":
    main()
