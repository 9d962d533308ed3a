"""The target's states for batches of text: computed as they are needed, or once and kept in files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.errors import CheckpointError
from specdec.heads.training.data import Corpus
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

    folder: holds one safetensors file a shard and name; the files of other texts in it are left alone. corpus: its
    `shards`, which batches point into by `places`, and their `marks`. target: what `mark_of` says of the model; a file
    that was written for another model is refused with CheckpointError.
    """

    def __init__(self, folder: str | os.PathLike[str], names: Sequence[str], target: str, corpus: Corpus) -> None:
        self.folder, self.names, self.target, self.corpus = Path(folder), tuple(names), target, corpus
        self._open: dict[tuple[str, int], Any] = {}
        self._starts = [list(accumulate((len(text.ids) for text in shard), initial=0)) for shard in corpus.shards]

    def fill(
        self,
        features: Callable[[dict[str, Tensor]], dict[str, Tensor]],
        progress: Callable[[int], None] = lambda tokens: None,
        turn: tuple[int, int] = (0, 1),
    ) -> None:
        """Compute what is not there yet, shard by shard; progress is told of tokens as they are done.

        features: what `Features` of (at least) these names returns. turn: (i, n) takes each n-th shard from the i-th
        on, where several processes fill one store. Raises CheckpointError, naming the cause, where a file cannot be
        written, as on a full disk; shards that were finished before stay.
        """
        from safetensors.torch import save_file

        for number in range(turn[0], len(self.corpus.shards), turn[1]):
            shard, starts = self.corpus.shards[number], self._starts[number]
            if all(self._path(name, number).is_file() for name in self.names):
                progress(starts[-1])
                continue
            states: dict[str, Tensor] = {}
            for batch in _by_length([len(text.ids) for text in shard]):
                ids = nn.utils.rnn.pad_sequence([shard[i].ids for i in batch], batch_first=True)
                for name, value in features({"input_ids": ids}).items():
                    if name not in states:
                        states[name] = torch.empty(starts[-1], value.shape[-1], dtype=torch.bfloat16)
                    for row, i in enumerate(batch):
                        states[name][starts[i] : starts[i + 1]] = value[row, : len(shard[i].ids)]
                progress(sum(len(shard[i].ids) for i in batch))
            with named(self.folder, "the target's features"):
                self.folder.mkdir(parents=True, exist_ok=True)
                for name in self.names:
                    path = self._path(name, number)
                    part = path.with_suffix(f".{os.getpid()}.tmp")
                    try:
                        save_file({"states": states[name]}, part, metadata={"target": self.target})
                        os.replace(part, path)
                    finally:
                        part.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise CheckpointError where a file is missing, broken, or was made for another model."""
        for number in range(len(self.corpus.shards)):
            for name in self.names:
                self._states(name, number)

    def __call__(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Name to `[b, n, size]` bfloat16 on the CPU for the texts at `batch["places"]`; zeros where padded."""
        width = batch["input_ids"].shape[1]
        found: dict[str, Tensor] = {}
        for name in self.names:
            rows = []
            for shard, number, length in batch["places"].tolist():
                start = self._starts[shard][number]
                rows.append(self._states(name, shard)[start : start + length])
            out = rows[0].new_zeros(len(rows), width, rows[0].shape[-1])
            for place, row in zip(out, rows, strict=True):
                place[: len(row)] = row
            found[name] = out
        return found

    def _states(self, name: str, shard: int) -> Any:
        """A file's tensor, of which slices are read as they are asked for."""
        if (name, shard) not in self._open:
            from safetensors import SafetensorError, safe_open

            path = self._path(name, shard)
            try:
                file = safe_open(path, framework="pt")
                states, target = file.get_slice("states"), (file.metadata() or {}).get("target")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{path} is not a whole file of features: {error}. Remove it to make it anew"
                ) from error
            if target != self.target:
                raise CheckpointError(
                    f"{path} holds features of another model ({target}, expected {self.target}). "
                    "Give each target a folder of its own"
                )
            self._open[name, shard] = states
        return self._open[name, shard]

    def _path(self, name: str, shard: int) -> Path:
        return self.folder / f"{name.replace(':', '-')}-{self.corpus.marks[shard]}.safetensors"


def mark_of(model: Any) -> str:
    """A short hash of a model's sizes and of a sample of its weights: equal for equal models in any dtype's storage."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        sample = weight.detach().flatten()[:: max(1, weight.numel() // 16)][:16].to("cpu", torch.float32)
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(sample.to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def _by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Indices in batches of at most BATCH tokens, texts of about equal length together."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= BATCH:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
