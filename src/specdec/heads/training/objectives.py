"""What each kind of head is trained for: from a batch of text and the target's states of it to a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specdec.heads.base import Head
from specdec.heads.training.losses import CHUNK, Teacher, feature_loss, token_loss
from specdec.heads.training.recipe import Recipe
from specdec.heads.training.unroll import unroll
from specdec.heads.training.vocabulary import positions

__all__ = ["DraftModelObjective", "DraftObjective", "MedusaObjective", "Objective"]


class Objective(nn.Module):
    """A head with its loss: what a trainer calls, with the head's parameters and no others.

    head: the module that is trained. recipe: its numbers. reads: names of the target's states that the head reads.
    teacher: weight and bias of the target's LM head, cut as the head's guesses are. draft_ids: what it may guess.
    scale: root mean square of the features, for noise.

    features: names of the states that batches must hold: those that are read, and `"final"`, of which the target's
    law is made. steps: steps of a draft that are trained at present.
    """

    def __init__(
        self,
        head: nn.Module,
        recipe: Recipe,
        *,
        reads: tuple[str, ...],
        teacher: tuple[Tensor, Tensor | None],
        draft_ids: Tensor | None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.head, self.recipe, self.reads, self.scale = head, recipe, reads, scale
        self.steps = 1
        self.features = tuple(dict.fromkeys((*reads, "final")))
        self._teacher = teacher  # in a tuple, and so neither saved nor moved
        vocab = len(teacher[0]) if draft_ids is None else int(draft_ids.max()) + 1
        self.register_buffer("places", positions(draft_ids, vocab), persistent=False)

    @classmethod
    def of(cls, head: Head, recipe: Recipe, scale: float = 1.0) -> Objective:
        """The objective of a head that is bound to its target."""
        return cls(head, recipe, reads=head.features, teacher=Head.lm_rows(head), draft_ids=head.draft_ids, scale=scale)

    def forward(
        self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor], depth: int = 0
    ) -> dict[str, Tensor]:
        """The results of `loss`, and with a depth `hits` too; one door, for trainers that shard what lies behind it.

        input_ids, answer: `[b, n]`, an item of `Batches`. states: name to `[b, n, size]`.
        """
        found = self.loss(input_ids, answer, states)
        return {**found, "hits": self.hits(input_ids, answer, states, depth)} if depth else found

    def loss(self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor]) -> dict[str, Tensor]:
        """`loss`, a mean over the tokens of the answers, and `token_loss`, that of the first drafted token, in nats."""
        raise NotImplementedError

    def hits(self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor], depth: int) -> Tensor:
        """`[depth, b, n]` bool: whether a draft under the text's token a guesses token a + 1 + k, by (k, row, a).

        Where token a + 1 + k is not one of an answer, false. The draft's own earlier tokens count as right: of what
        comes after its first miss nothing is used.
        """
        raise NotImplementedError

    def taps(self, states: dict[str, Tensor]) -> Tensor:
        """What the head reads, side by side, in its dtype and on its device: `[b, n, sizes]`."""
        like = next(self.head.parameters())
        return torch.cat([states[name] for name in self.reads], -1).to(device=like.device, dtype=like.dtype)

    def known(self, ids: Tensor) -> Tensor:
        """1.0 for ids that the head may guess, else 0.0."""
        return (self._places(ids) >= 0).float()

    def labels(self, input_ids: Tensor, states: dict[str, Tensor], rows: Tensor, at: Tensor) -> Teacher | Tensor:
        """Of the tokens at (rows, at): the target's law, made of the states before them, or their draft ids."""
        if self.recipe.labels == "hard":
            return self._places(input_ids[rows, at]).clamp(min=0)  # those that have none weigh nothing
        return Teacher(states["final"][rows, at - 1], *self._teacher)

    def _places(self, ids: Tensor) -> Tensor:
        table: Tensor = self.places  # type: ignore[assignment]
        return torch.where(ids < len(table), table[ids.clamp(max=len(table) - 1)], -1)


class DraftObjective(Objective):
    """EAGLE and EAGLE-3: a head that runs along the text, one state a token.

    EAGLE learns the target's next feature (SmoothL1) and, with less weight, the target's law of the token after;
    features are moved by noise before it reads them (arXiv 2401.15077, sections 4.2 and 4.3). EAGLE-3 learns tokens
    only, over several steps of a draft (arXiv 2503.01840, section 3.2); further steps are open to EAGLE, too.
    """

    def loss(self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor]) -> dict[str, Tensor]:
        head: Any = self.head
        recipe = self.recipe
        rows, at = answer[:, 2:].nonzero(as_tuple=True)
        at = at + 2
        count = max(1, len(rows))
        clean = taps = self.taps(states)
        regresses = recipe.kind == "eagle" and recipe.feature_weight > 0
        if self.training and recipe.kind == "eagle" and recipe.noise > 0:
            taps = clean + torch.empty_like(clean).uniform_(-1, 1) * (recipe.noise * self.scale)
        known = self.known(input_ids[rows, at])
        outs, weights, loss = [], [], taps.new_zeros((), dtype=torch.float32)
        every = sum(recipe.unroll_decay**step for step in range(self.steps))
        for step, state in enumerate(unroll(head, input_ids, head.fuse(taps), self.steps)):
            share = recipe.unroll_decay**step / every / count
            made = (at >= step + 2).float() * share  # no draft begins before the first token
            out = state[rows, (at - 2 - step).clamp(min=0)]  # [tokens, d], which guess the tokens at (rows, at)
            outs.append(head.lm_input(out))
            weights.append(made * known)
            if regresses:
                loss = loss + recipe.feature_weight * feature_loss(out, clean[rows, at - 1], made)
        tokens = token_loss(outs, weights, self.labels(input_ids, states, rows, at), *head.lm_rows())
        weight = recipe.token_weight if regresses else 1.0
        first = tokens[0].detach() / weights[0].sum().clamp(min=1e-9)
        return {"loss": loss + weight * tokens.sum(), "token_loss": first}

    def hits(self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor], depth: int) -> Tensor:
        head: Any = self.head
        found = torch.zeros(depth, *input_ids.shape, dtype=torch.bool, device=input_ids.device)
        for step, state in enumerate(unroll(head, input_ids, head.fuse(self.taps(states)), depth)):
            # Index t of step k guesses token t + 2 + k, of the draft under token t + 1.
            rows, before = answer[:, 2 + step :].nonzero(as_tuple=True)
            guess = head.to_target(head.logits(state[rows, before]).argmax(-1))
            found[step, rows, before + 1] = guess == input_ids[rows, before + 2 + step]
        return found


class MedusaObjective(Objective):
    """Medusa: head k guesses, from the state before a token, the token k + 1 after it (arXiv 2401.10774, 2.2)."""

    def loss(self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor]) -> dict[str, Tensor]:
        head: Any = self.head
        heads = head.config.heads
        rows, at = answer[:, 2:].nonzero(as_tuple=True)
        at = at + 2
        # States that some head reads: those of places up to heads + 1 before a token of an answer.
        read = torch.zeros_like(answer)
        for ahead in range(2, heads + 2):
            read[:, :-ahead] |= answer[:, ahead:]
        index = torch.full(answer.shape, -1, device=answer.device)
        index[read] = torch.arange(int(read.sum()), device=answer.device)
        out = head(self.taps(states)[read])  # [states, heads, d]
        known = self.known(input_ids[rows, at])
        label = self.labels(input_ids, states, rows, at)
        every = sum(self.recipe.head_decay**number for number in range(heads))
        guesses, weights = [], []
        for number in range(heads):
            made = (at >= number + 2).float() * known
            guesses.append(out[index[rows, (at - 2 - number).clamp(min=0)].clamp(min=0), number])
            weights.append(made * (self.recipe.head_decay**number / every / max(1, len(rows))))
        if head.lm_head is None:
            tokens = token_loss(guesses, weights, label, *head.lm_rows())
        else:
            biases = head.lm_head_bias if head.lm_head_bias is not None else [None] * heads
            tokens = torch.cat(
                [
                    token_loss([guess], [weight], label, own, None if bias is None else bias.detach())
                    for guess, weight, own, bias in zip(guesses, weights, head.lm_head, biases, strict=True)
                ]
            )
        first = tokens[0].detach() / weights[0].sum().clamp(min=1e-9)
        return {"loss": tokens.sum(), "token_loss": first}

    def hits(self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor], depth: int) -> Tensor:
        head: Any = self.head
        found = torch.zeros(depth, *input_ids.shape, dtype=torch.bool, device=input_ids.device)
        read = torch.zeros_like(answer)  # states that some head reads
        for number in range(min(depth, head.config.heads)):
            read[:, : -2 - number] |= answer[:, 2 + number :]
        # All heads at once make logits of many times a batch's size, so a few states at a time.
        some = self.taps(states)[read].split(CHUNK)
        said = input_ids.new_zeros(*input_ids.shape, head.config.heads)
        said[read] = torch.cat([head.guesses(part, 1)[..., 0] for part in some])
        for number in range(min(depth, head.config.heads)):
            # The state at t was what token t + 1 was drawn from, and head k guesses token t + 2 + k.
            rows, before = answer[:, 2 + number :].nonzero(as_tuple=True)
            found[number, rows, before + 1] = said[rows, before, number] == input_ids[rows, before + 2 + number]
        return found


class DraftModelObjective(Objective):
    """A draft model: the cross entropy of the target's law of each token of an answer, which is KL up to a constant.

    head: a decoder of transformers without its LM head, whose rows are those of its embedding.
    """

    def loss(self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor]) -> dict[str, Tensor]:
        head: Any = self.head
        rows, at = answer[:, 1:].nonzero(as_tuple=True)
        at = at + 1
        out = head(input_ids=input_ids, use_cache=False)[0][rows, at - 1]
        weight = torch.full((len(rows),), 1 / max(1, len(rows)), device=out.device)
        label = self.labels(input_ids, states, rows, at)
        tokens = token_loss([out], [weight], label, head.get_input_embeddings().weight)
        return {"loss": tokens.sum(), "token_loss": tokens[0].detach()}

    def hits(self, input_ids: Tensor, answer: Tensor, states: dict[str, Tensor], depth: int) -> Tensor:
        head: Any = self.head
        found = torch.zeros(depth, *input_ids.shape, dtype=torch.bool, device=input_ids.device)
        rows, at = answer[:, 1:].nonzero(as_tuple=True)
        out = head(input_ids=input_ids, use_cache=False)[0][rows, at]  # after token at, about token at + 1
        guess = nn.functional.linear(out, head.get_input_embeddings().weight.to(out.dtype)).argmax(-1)
        right = torch.zeros_like(answer)
        right[rows, at + 1] = guess == input_ids[rows, at + 1]
        # Given right tokens before it, what a guess depends on is the text alone, whoever began the draft where.
        for step in range(min(depth, input_ids.shape[1] - 1)):
            found[step, :, : -1 - step] = right[:, 1 + step :]
        return found
