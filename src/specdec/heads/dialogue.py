"""A dialogue with a target's own answers, and its form as tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ENDS", "Dialogue", "from_tensors", "to_tensors"]

ENDS = ("eos", "limit", "loop")
"""How a dialogue's last answer ended, by the number that a shard stores."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One dialogue with a target's own answers.

    number: its place in the recipe, which names it. source: template, such as `"summary/3"`. ids: all tokens.
    spans: where the answers lie, (start, end) each, end of turn included. end: one of `ENDS`.
    """

    number: int
    source: str
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    greedy: bool
    end: str = "limit"

    @property
    def prompt_length(self) -> int:
        """Tokens before the first answer."""
        return self.spans[0][0]

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(end - start for start, end in self.spans)

    @property
    def fraction(self) -> float:
        """Where the hash of its prompt lies in [0, 1), by which data is split: equal for both answers to one prompt."""
        prompt = self.ids[: self.prompt_length]
        return int.from_bytes(hashlib.sha256(repr(prompt).encode()).digest()[:6], "big") / 2**48


def to_tensors(dialogues: Sequence[Dialogue], sources: Sequence[str]) -> dict[str, Tensor]:
    """All ids in a row, and where dialogues and answers begin and end; templates by their place in `sources`."""
    place = {source: index for index, source in enumerate(sources)}
    return {
        "ids": torch.tensor([token for d in dialogues for token in d.ids], dtype=torch.int32),
        "offsets": _offsets([len(d.ids) for d in dialogues]),
        "spans": torch.tensor([span for d in dialogues for span in d.spans], dtype=torch.int32).view(-1, 2),
        "span_offsets": _offsets([len(d.spans) for d in dialogues]),
        "numbers": torch.tensor([d.number for d in dialogues], dtype=torch.int64),
        "sources": torch.tensor([place[d.source] for d in dialogues], dtype=torch.int32),
        "greedy": torch.tensor([d.greedy for d in dialogues], dtype=torch.bool),
        "ends": torch.tensor([ENDS.index(d.end) for d in dialogues], dtype=torch.int8),
    }


_NAMES = {"ids", "offsets", "spans", "span_offsets", "numbers", "sources", "greedy", "ends"}


def _cuts(offsets: Sequence[int], length: int) -> bool:
    """Whether these are where the parts of `length` things begin, and the end of the last."""
    return bool(offsets) and offsets[0] == 0 and offsets[-1] == length and list(offsets) == sorted(offsets)


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64).cumsum(0)])


def from_tensors(tensors: Mapping[str, Tensor], sources: Sequence[str], vocab_size: int) -> list[Dialogue]:
    """The dialogues that `to_tensors` was given. Raises ValueError, naming the fault, where tensors are amiss."""
    if missing := sorted(_NAMES - set(tensors)):
        raise ValueError(f"it lacks {', '.join(missing)}")
    for name in sorted(_NAMES):
        values, pairs = tensors[name], name == "spans"
        if values.is_floating_point() or values.dim() != 1 + pairs or (pairs and values.shape[1] != 2):
            raise ValueError(f"its {name} are {values.dtype} of shape {list(values.shape)}, which is no list of them")
    ids = tensors["ids"].tolist()
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        found = min(ids) if min(ids) < 0 else max(ids)
        raise ValueError(f"it has the id {found}, expected 0 to {vocab_size - 1}")
    offsets, spans, at = (tensors[name].tolist() for name in ("offsets", "spans", "span_offsets"))
    columns = [tensors[name].tolist() for name in ("numbers", "sources", "greedy", "ends")]
    if (
        len({len(offsets), len(at), *(len(c) + 1 for c in columns)}) != 1
        or not _cuts(offsets, len(ids))
        or not _cuts(at, len(spans))
    ):
        raise ValueError("its tensors do not fit together")
    for name, numbers, count in (("sources", columns[1], len(sources)), ("ends", columns[3], len(ENDS))):
        if outside := [number for number in numbers if not 0 <= number < count]:
            raise ValueError(f"its {name} hold {outside[0]}, expected 0 to {count - 1}")
    for i in range(len(columns[0])):
        answers = spans[at[i] : at[i + 1]]
        places = [0, *(place for span in answers for place in span), offsets[i + 1] - offsets[i]]
        if not answers or places != sorted(places):
            raise ValueError(f"the answers of its dialogue {i} do not lie in the dialogue: {answers}")
    return [
        Dialogue(
            number,
            sources[source],
            tuple(ids[offsets[i] : offsets[i + 1]]),
            tuple((start, end) for start, end in spans[at[i] : at[i + 1]]),
            greedy,
            ENDS[end],
        )
        for i, (number, source, greedy, end) in enumerate(zip(*columns, strict=True))
    ]
