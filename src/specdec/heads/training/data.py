"""Dialogues as batches: answers marked, lengths alike, the same batches in every run of one seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Dataset

from specdec.core.errors import DataError
from specdec.heads.shards import ShardReader

__all__ = ["Batches", "Corpus", "Text", "fingerprint"]

BUCKETS = 64  # batches whose texts are sorted by length together


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One dialogue, cut to what is trained on.

    ids: `[tokens]` int64. spans: where the target's answers lie, (start, end); the rest is read and never learnt.
    greedy: whether the answers are the target's likeliest tokens. place: shard, and number in the shard.
    """

    ids: Tensor
    spans: tuple[tuple[int, int], ...]
    greedy: bool = True
    place: tuple[int, int] = (0, 0)

    @property
    def answer_tokens(self) -> int:
        return sum(end - start for start, end in self.spans)

    def answers(self) -> Tensor:
        """The tokens of the answers."""
        return torch.cat([self.ids[start:end] for start, end in self.spans])


class Corpus:
    """The dialogues of a reader's shards, parted into training and held out by the hash of their prompts.

    share: held out. length: longer dialogues are cut to as many tokens. only: marks of the shards to take, in this
    order, where data has grown since; None takes all.
    shards: all texts, a list a shard. marks: a short hash of each of these lists.
    Raises DataError, as the reader does, where a shard is broken, and where one of `only` is not there.
    """

    def __init__(self, reader: ShardReader, share: float, length: int, only: Sequence[str] | None = None) -> None:
        found: dict[str, list[tuple[Text, float]]] = {}
        for path, entry in reader.shards:
            texts = []
            for dialogue in reader.read(path, entry):
                spans = tuple((start, min(end, length)) for start, end in dialogue.spans if start < length)
                text = Text(torch.tensor(dialogue.ids[:length]), spans, dialogue.greedy)
                texts.append((text, dialogue.fraction))
            found[fingerprint([text for text, _ in texts])] = texts
        self.marks = tuple(found if only is None else only)
        if missing := [mark for mark in self.marks if mark not in found]:
            raise DataError(
                f"{len(missing)} of the {len(self.marks)} shards that the run was begun with are not in the data any "
                "more (or are cut at another length): name the folders that it was begun with"
            )
        self.shards: list[list[Text]] = []
        self.train: list[Text] = []
        self.held_out: list[Text] = []
        for mark in self.marks:
            shard: list[Text] = []
            for text, fraction in found[mark]:
                placed = replace(text, place=(len(self.shards), len(shard)))
                shard.append(placed)
                (self.held_out if fraction < share else self.train).append(placed)
            self.shards.append(shard)

    def measured(self, tokens: int) -> list[Text]:
        """Held-out texts with about so many tokens of answers, greedy ones if there are any."""
        chosen: list[Text] = []
        for text in [text for text in self.held_out if text.greedy] or self.held_out:
            if tokens <= 0:
                break
            chosen.append(text)
            tokens -= text.answer_tokens
        return chosen


class Batches(Dataset):
    """Whole batches as the items of a data set, so that any sampler shuffles, shares out and skips whole batches.

    An item holds `input_ids` `[b, n]` int64, padded with zeros on the right, `answer` `[b, n]` bool, true where a
    token belongs to an answer, and `places` `[b, 3]`: shard, number and length of each text. Texts of about equal
    length go together; none is shared out over two batches. Which ones follows from `seed` alone.

    tokens: most tokens of a batch, padding included; a longer text is a batch of its own.
    """

    def __init__(self, texts: Sequence[Text], tokens: int, seed: int) -> None:
        self.texts = [text for text in texts if text.answer_tokens > 1]  # of fewer, nothing can be drafted
        order = torch.randperm(len(self.texts), generator=torch.Generator().manual_seed(seed)).tolist()
        mean = max(1, sum(len(text.ids) for text in self.texts) // max(1, len(self.texts)))
        window = max(1, BUCKETS * tokens // mean)
        self._batches: list[list[Text]] = []
        for start in range(0, len(order), window):
            batch: list[Text] = []
            # From the longest on, so that the first of a batch is as wide as the batch.
            for text in sorted((self.texts[i] for i in order[start : start + window]), key=lambda t: -len(t.ids)):
                if batch and len(batch[0].ids) * (len(batch) + 1) > tokens:
                    self._batches.append(batch)
                    batch = []
                batch.append(text)
            if batch:
                self._batches.append(batch)

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        batch = self._batches[index]
        width = len(batch[0].ids)
        ids = torch.zeros(len(batch), width, dtype=torch.int64)
        answer = torch.zeros(len(batch), width, dtype=torch.bool)
        for row, text in enumerate(batch):
            ids[row, : len(text.ids)] = text.ids
            for start, end in text.spans:
                answer[row, start:end] = True
        return {
            "input_ids": ids,
            "answer": answer,
            "places": torch.tensor([[*text.place, len(text.ids)] for text in batch]),
        }

    def spans(self, index: int) -> list[tuple[tuple[int, int], ...]]:
        """Where the answers of each row of an item lie."""
        return [text.spans for text in self._batches[index]]


def fingerprint(texts: Sequence[Text]) -> str:
    """A short hash of ids and answers: whether two runs read the same data."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"{text.spans}{len(text.ids)};".encode())
        digest.update(text.ids.numpy().tobytes())
    return digest.hexdigest()[:16]
