"""Check that the package `speculators` reads what `specdec export` writes.

    python scripts/check_speculators.py            # makes .venv-speculators, writes a head, reads it there

`speculators` needs an older transformers than specdec, so it gets an environment of its own. This Python writes a
small EAGLE-3 head in its layout; the other one loads it with `SpeculatorModel.from_pretrained` and compares sizes,
layer ids, maps and weights. Ends with status 0 if all agree.

    --venv DIR         the environment to make or reuse; it gets the version of torch that this Python has

Environment variables:
    TORCH_INDEX_URL    package index to take torch from (and only torch), to choose a CPU or a CUDA wheel
    PIP_ARGS           further arguments for every pip call
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

READ = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from speculators import SpeculatorModel

folder = Path(sys.argv[1])
said = json.loads((folder / "config.json").read_text())
# Without its target nothing of the verifier is loaded, which is not part of the files.
model = SpeculatorModel.from_pretrained(str(folder))
assert type(model).__name__ == "Eagle3DraftModel" or "Eagle3" in type(model).__name__, type(model)
config = model.config
for name in ("draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
    assert getattr(config, name) == said[name], name
assert list(config.eagle_aux_hidden_state_layer_ids) == said["eagle_aux_hidden_state_layer_ids"]
own = model.state_dict()
for name, value in load_file(folder / "model.safetensors").items():
    assert name in own, f"{name} is not read"
    assert torch.equal(own[name].to(value.dtype), value), f"{name} differs"
print("speculators reads", len(own), "tensors as they were written")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=Path(".venv-speculators"))
    place = parser.parse_args().venv
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    found = subprocess.run([python, "-c", "import speculators"], capture_output=True)
    if found.returncode:
        # torch first and by version, because the newest one that speculators allows may be a wheel of gigabytes.
        torch = f"torch=={importlib.metadata.version('torch').partition('+')[0]}"
        index = os.environ.get("TORCH_INDEX_URL")
        pip = [python, "-m", "pip", "install", "--quiet", *shlex.split(os.environ.get("PIP_ARGS", ""))]
        subprocess.check_call([*pip, *(["--index-url", index] if index else []), torch])
        subprocess.check_call([*pip, torch, "speculators==0.9.0"])
        # It asks for these and reads nothing with them; built for another torch, they break transformers' import.
        subprocess.check_call([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision", "torchaudio"])
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return subprocess.call([python, "-c", READ, folder])


def write(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from specdec.heads.eagle3 import Eagle3Head
    from specdec.heads.formats.write import export_head

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "vocab_size": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    ids = torch.arange(64) * 3 + 7
    head = Eagle3Head.for_target(model, draft_ids=ids, own_lm_head=True, own_embed=True)
    model.save_pretrained(folder / "target")
    export_head(head, folder, "speculators", verifier=str(folder / "target"), architectures=("LlamaForCausalLM",))


if __name__ == "__main__":
    sys.exit(main())
