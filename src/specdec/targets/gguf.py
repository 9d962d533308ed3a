"""Models in GGUF files, their weights unpacked: the model computes on plain tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specdec.core.errors import ModelNotFoundError
from specdec.targets.missing import explained, missing, require

__all__ = ["GGUF_NEEDS", "from_gguf"]

GGUF_NEEDS = ("gguf>=0.10", "accelerate>=1.1")


def from_gguf(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file, its weights unpacked to `dtype`."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not path.is_file():
        raise ModelNotFoundError(f"there is no file {str(path)!r}; expected a GGUF file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelNotFoundError(f"{str(path)!r} is not a GGUF file: it does not begin with 'GGUF'")
    require(f"reading {path.name}", missing(GGUF_NEEDS))
    options: dict[str, Any] = {"gguf_file": path.name, "dtype": dtype}
    if hasattr(transformers, "GgufConfig"):
        # Where a kernel for them is installed, newer versions would keep the weights in their blocks.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with explained(str(path)):
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), **options)
        tokenizer = _smollm_tokenizer(path)
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is not None:
        # The weights are plain now; left in place, it would refuse save_pretrained.
        quantizer.remove_quantization_config(model)
    return model, tokenizer


def _smollm_tokenizer(path: Path) -> Any | None:
    """The tokenizer in a GGUF file of the SmolLM family, None for other files.

    Built here from the file's own lists, because what transformers makes of them depends on its version:
    5.0 takes the begin token for the end token and adds five tokens of another model; 5.24 gets these right
    but, like 5.0, does not split digits off first, so that "\\n\\n1" is other tokens than in training.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(str(path)).fields

    def texts(key: str) -> list[str]:
        field = fields[f"tokenizer.{key}"]
        return [bytes(field.parts[part]).decode("utf-8") for part in field.data]

    def number(key: str) -> int:
        field = fields[f"tokenizer.ggml.{key}"]
        return int(field.parts[field.data[0]][0])

    if "tokenizer.ggml.pre" not in fields or texts("ggml.pre") != ["smollm"]:
        return None
    tokens = texts("ggml.tokens")
    merges = [(left, right) for left, right in (merge.split(" ", 1) for merge in texts("ggml.merges"))]
    backend = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    control = [tokens[i] for i, part in enumerate(types.data) if int(types.parts[part][0]) == 3]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokens[number("bos_token_id")],
        eos_token=tokens[number("eos_token_id")],
        unk_token=tokens[number("unknown_token_id")],
        pad_token=tokens[number("padding_token_id")],
        model_max_length=int(fields["llama.context_length"].parts[-1][0]),
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    tokenizer.chat_template = texts("chat_template")[0]
    return tokenizer
