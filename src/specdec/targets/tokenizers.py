"""Whether two models speak the same tokens."""

from __future__ import annotations

from typing import Any

_PADDING = 1024  # published vocabularies of one tokenizer differ by less, from padding to round sizes


def vocabulary_problems(
    target_size: int, draft_size: int, target_tokenizer: Any, draft_tokenizer: Any, draft: str
) -> list[str]:
    """Reasons why ids of one model would mean other tokens to the other; empty if none is found.

    With both tokenizers their vocabularies are compared; padded sizes do not matter. Without them only sizes that
    no padding explains are a problem.
    """
    if target_tokenizer is not None and draft_tokenizer is not None:
        ours, theirs = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
        if ours == theirs:
            return []
        other = {index: token for token, index in theirs.items()}
        differ = [(index, token, other[index]) for token, index in ours.items() if other.get(index, token) != token]
        missing = abs(len(ours) - len(theirs))
        if not differ and missing <= _PADDING:
            return []  # one is the other plus added tokens, which the draft model will not guess
        shown = "; ".join(f"id {index} is {token!r} and {theirs!r}" for index, token, theirs in sorted(differ)[:3])
        return [
            f"target and {draft} have different tokenizers ({len(ours)} and {len(theirs)} tokens"
            + (f"; {len(differ)} ids differ: {shown}" if differ else "")
            + "). Use a draft model of the same tokenizer"
        ]
    if abs(target_size - draft_size) > max(_PADDING, max(target_size, draft_size) // 50):
        return [
            f"the target has a vocabulary of {target_size} and {draft} one of {draft_size}: more than padding "
            "explains, so they cannot share a tokenizer. Use a draft model of the same tokenizer"
        ]
    return []
