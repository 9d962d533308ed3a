"""Whether held-out prompts have words in common with training data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from specdec.heads.dialogue import Dialogue

__all__ = ["without_overlap"]


def without_overlap(
    held_out: Sequence[Dialogue], training: Iterable[Dialogue], special: Collection[int], n: int = 13
) -> list[Dialogue]:
    """The held-out dialogues none of whose user turns has `n` tokens in a row that a training dialogue has anywhere.

    special: ids that mark turns; no run of tokens goes across one. What stands in every held-out dialogue, such as a
    system prompt, is not looked at.
    """
    turns = [list(_turns(dialogue, special)) for dialogue in held_out]
    everywhere = set.intersection(*map(set, turns)) if len(turns) > 1 else set()
    owners: dict[tuple[int, ...], set[int]] = {}
    for index, own in enumerate(turns):
        for turn in own:
            if turn not in everywhere:
                for gram in _grams(turn, n):
                    owners.setdefault(gram, set()).add(index)
    shared: set[int] = set()
    for dialogue in training:
        for gram in _grams(dialogue.ids, n):
            if gram in owners:
                shared |= owners[gram]
    return [dialogue for index, dialogue in enumerate(held_out) if index not in shared]


def _turns(dialogue: Dialogue, special: Collection[int]) -> Iterator[tuple[int, ...]]:
    """What is not an answer, cut at special tokens."""
    start = 0
    for answer, end in (*dialogue.spans, (len(dialogue.ids), len(dialogue.ids))):
        part: list[int] = []
        for token in dialogue.ids[start:answer]:
            if token in special:
                yield tuple(part)
                part = []
            else:
                part.append(token)
        yield tuple(part)
        start = end


def _grams(ids: Sequence[int], n: int) -> Iterator[tuple[int, ...]]:
    for start in range(len(ids) - n + 1):
        yield tuple(ids[start : start + n])
