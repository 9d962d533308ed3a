"""From a drafter's logits to the laws that its guesses are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.core.sampling import Sampling, best
from specdec.core.state import Row
from specdec.drafters.sampled_tree import Step


def mirrored(rows: Sequence[Row], own: Sampling | None = None) -> dict[int, Sampling]:
    """Row index to how a drafter's logits become the law of its guesses: as the target's, or by its `own` warpers.

    One object for all rows that sample alike: equal objects are applied to all rows in one call.
    """
    mirrors = {id(row.sampling): row.sampling.mirror for row in rows}
    return {row.index: mirrors[id(row.sampling)] if own is None or row.sampling.greedy else own for row in rows}


def laws(
    rows: Sequence[Row],
    samplings: Sequence[Sampling],
    step: Step,
    logits: Tensor,
    ids: Tensor | None,
    vocab: int,
    device: torch.device,
) -> Tensor:
    """Laws `[rows, width, vocab]` float64 on `device` of the children of a step's nodes.

    samplings: of each row, how scores become a law. logits: `[rows, width, own vocabulary]`; what is no number costs
    acceptance only. ids: target ids of that vocabulary, ascending; None: it begins with the target's, and may be
    shorter or longer than that.
    """
    scores = processed(rows, samplings, step, _numbers(logits, vocab, device), ids, vocab)
    law = _law(scores, samplings[0].greedy)
    return _spread(law, ids, vocab, 0.0) if law.shape[-1] != vocab else law


def scores(
    rows: Sequence[Row],
    samplings: Sequence[Sampling],
    step: Step,
    logits: Tensor,
    vocab: int,
    device: torch.device,
) -> Tensor:
    """Processed scores `[rows, width, vocab]` on `device`, as of `laws` without ids."""
    found = processed(rows, samplings, step, _numbers(logits, vocab, device), None, vocab)
    return _spread(found, None, vocab, -torch.inf)


def processed(
    rows: Sequence[Row], samplings: Sequence[Sampling], step: Step, found: Tensor, ids: Tensor | None, vocab: int
) -> Tensor:
    """Scores after the samplings' processors: of the cut vocabulary, if none of these minds, else `[..., vocab]`."""
    first, device = samplings[0], found.device
    if first.elementwise and all(sampling is first for sampling in samplings):
        # No processor looks at a prefix, nor at what a token is called.
        return first.apply(rows[0].prefix(device)[:, :1], found.flatten(0, 1)).view_as(found)
    found = _spread(found, ids, vocab, -torch.inf)
    for at, (row, sampling) in enumerate(zip(rows, samplings, strict=True)):
        prefix = row.prefix(device)
        for place in range(len(step.above[at]) if step.depth else 1):
            seen = torch.cat([prefix, step.below[at, place : place + 1]], 1) if step.depth else prefix
            found[at, place] = sampling.apply(seen, found[at, place : place + 1])[0]
    return found


def _numbers(logits: Tensor, vocab: int, device: torch.device) -> Tensor:
    return torch.nan_to_num(logits[..., :vocab].float(), nan=-1e30, posinf=1e30, neginf=-1e30).to(device)


def _law(scores: Tensor, greedy: bool) -> Tensor:
    if not greedy:
        return scores.softmax(-1, dtype=torch.float64)
    # The drafter's own temperature is 0: a certainty, and a sample of itself.
    return torch.zeros_like(scores, dtype=torch.float64).scatter_(-1, best(scores)[..., None], 1.0)


def _spread(values: Tensor, ids: Tensor | None, vocab: int, fill: float) -> Tensor:
    """`[..., own vocabulary]` as `[..., vocab]`, `fill` for tokens that are not in it."""
    if ids is None and values.shape[-1] == vocab:
        return values
    out = values.new_full((*values.shape[:-1], vocab), fill)
    if ids is None:
        out[..., : values.shape[-1]] = values
    else:
        out[..., ids.to(values.device)] = values
    return out
