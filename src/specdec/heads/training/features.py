"""The target's states for batches of text: computed as they are needed, or once and kept in files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.errors import CheckpointError
from specdec.heads.training.data import Text, fingerprint
from specdec.heads.training.disk import named
from specdec.targets.taps import Taps, available

__all__ = ["FeatureStore", "Features", "mark_of"]

BATCH = 4096  # tokens of a pass that fills a store, padding included


class Features:
    """Calls the target once a batch, without gradients; nothing on it is changed.

    names: as in `Needs.features`. Text is padded on the right, so that causal attention needs no mask.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.model, self.names = model, tuple(names)
        if missing := sorted(set(names) - set(available(model, self.names))):
            raise CheckpointError(f"the head reads {', '.join(missing)}, which {type(model).__name__} does not have")
        from specdec.targets.compat import parameters

        self._extra: dict[str, Any] = {"use_cache": False}
        if "logits_to_keep" in parameters(model):
            self._extra["logits_to_keep"] = 1  # the LM head's share of a pass is not needed
        self._taps = Taps(self.names)

    @torch.no_grad()
    def __call__(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Name to `[b, n, size]`, on the target's device and in its dtype, for `batch["input_ids"]`."""
        device = next(self.model.parameters()).device
        with torch.autocast(device.type, enabled=False):
            return self._taps.run(self.model, input_ids=batch["input_ids"].to(device), **self._extra)[1]


class FeatureStore:
    """States of whole shards in bfloat16 files, each written whole or not at all, for several heads to read.

    folder: holds one safetensors file a shard and name. target: what `mark_of` says of the model; a file that was
    written for another model, or for another shard, is refused with CheckpointError when it is read.
    """

    def __init__(self, folder: str | os.PathLike[str], names: Sequence[str], target: str) -> None:
        self.folder, self.names, self.target = Path(folder), tuple(names), target
        self._open: dict[tuple[str, int], tuple[Any, list[int]]] = {}

    def fill(
        self,
        shards: Sequence[Sequence[Text]],
        features: Callable[[dict[str, Tensor]], dict[str, Tensor]],
        progress: Callable[[int], None] = lambda tokens: None,
        turn: tuple[int, int] = (0, 1),
    ) -> None:
        """Compute what is not there yet, shard by shard; progress is told of tokens as they are done.

        turn: (i, n) takes each n-th shard from the i-th on, where several processes fill one store.

        features: what `Features` of (at least) these names returns. Raises CheckpointError, naming the cause, where a
        file cannot be written, as on a full disk; shards that were finished before stay.
        """
        from safetensors.torch import save_file

        self.folder.mkdir(parents=True, exist_ok=True)
        for number, shard in enumerate(shards):
            if number % turn[1] != turn[0]:
                continue
            if all(self._path(name, number).is_file() for name in self.names):
                progress(sum(len(text.ids) for text in shard))
                continue
            lengths = [len(text.ids) for text in shard]
            starts = [0]
            for length in lengths:
                starts.append(starts[-1] + length)
            states: dict[str, Tensor] = {}
            for batch in _by_length(lengths):
                ids = nn.utils.rnn.pad_sequence([shard[i].ids for i in batch], batch_first=True)
                for name, value in features({"input_ids": ids}).items():
                    if name not in states:
                        states[name] = torch.empty(starts[-1], value.shape[-1], dtype=torch.bfloat16)
                    for row, i in enumerate(batch):
                        states[name][starts[i] : starts[i + 1]] = value[row, : lengths[i]]
                progress(sum(lengths[i] for i in batch))
            about = {"target": self.target, "shard": fingerprint(shard), "lengths": json.dumps(lengths)}
            for name in self.names:
                path = self._path(name, number)
                part = path.with_suffix(f".{os.getpid()}.tmp")
                try:
                    with named(self.folder, "the target's features"):
                        save_file({"states": states[name]}, part, metadata=about)
                        os.replace(part, path)
                finally:
                    part.unlink(missing_ok=True)

    def check(self, shards: Sequence[Sequence[Text]]) -> None:
        """Raise CheckpointError where a file is broken, or was made for another model or other text."""
        for number, shard in enumerate(shards):
            for name in self.names:
                self._slices(name, number, fingerprint(shard))

    def __call__(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Name to `[b, n, size]` bfloat16 on the CPU for the dialogues at `batch["places"]`; zeros where padded."""
        width = batch["input_ids"].shape[1]
        found: dict[str, Tensor] = {}
        for name in self.names:
            rows = []
            for shard, number, length in batch["places"].tolist():
                states, starts = self._slices(name, shard)
                rows.append(states[starts[number] : starts[number] + length])
            out = rows[0].new_zeros(len(rows), width, rows[0].shape[-1])
            for place, row in zip(out, rows, strict=True):
                place[: len(row)] = row
            found[name] = out
        return found

    def _slices(self, name: str, shard: int, text: str | None = None) -> tuple[Any, list[int]]:
        key = (name, shard)
        if key in self._open and text is None:
            return self._open[key]
        from safetensors import SafetensorError, safe_open

        path = self._path(name, shard)
        try:
            file = safe_open(path, framework="pt")
            about = file.metadata() or {}
            states, lengths = file.get_slice("states"), json.loads(about["lengths"])
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{path} is not a whole file of features: {error}. Remove it to make it anew"
            ) from error
        if about.get("target") != self.target:
            raise CheckpointError(
                f"{path} holds features of another model ({about.get('target')}, expected {self.target}). "
                "Give each target a folder of its own"
            )
        if text is not None and about.get("shard") != text:
            raise CheckpointError(
                f"{path} holds features of other text than shard {shard} of the data (or cut at another length). "
                "Remove it to make it anew, or give the data a folder of its own"
            )
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        self._open[key] = (states, starts)
        return self._open[key]

    def _path(self, name: str, shard: int) -> Path:
        return self.folder / f"{name.replace(':', '-')}-{shard:05}.safetensors"


def mark_of(model: Any) -> str:
    """A short hash of a model's sizes and of a sample of its weights: equal for equal models in any dtype's storage."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        sample = weight.detach().flatten()[:: max(1, weight.numel() // 16)][:16].to("cpu", torch.float32)
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(sample.to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def _by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Indices in batches of at most BATCH tokens, dialogues of about equal length together."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= BATCH:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
