"""One generation's drafting with a draft model, whose cache follows each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from specdec.core import host
from specdec.core.draft import ANCHOR, Draft, Kind
from specdec.core.interfaces import DraftSession
from specdec.core.rng import Rng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters import growth
from specdec.drafters.proposal import laws, scores
from specdec.drafters.sampled_tree import Step, grow
from specdec.drafters.shares import Shares
from specdec.drafters.tree_shape import TreeShape, best_shape, tree_shape
from specdec.targets.branches import Branches
from specdec.targets.cached_lm import CachedLM
from specdec.targets.cached_session import CachedSession

_DRAW = 6


class ModelSession(DraftSession):
    """The cache holds committed tokens first, then the guesses not yet judged.

    samplings: of each row, how the model's logits become the law of its guesses. kind: of guesses for a target that
    samples. fanouts, expand: the shapes of trees, as of `DraftModel`.
    """

    def __init__(
        self,
        lm: CachedLM,
        context: Context,
        samplings: Mapping[int, Sampling],
        kind: Kind,
        fanouts: Sequence[int] | None,
        expand: int | None,
    ) -> None:
        self._context, self._samplings = context, samplings
        self._kind, self._fanouts, self._expand = kind, fanouts, expand
        lm = lm.compiled(context.compiles)
        self._device = lm.device
        self._vocab, self._limit = lm.spec.vocab_size, context_length(lm.model)
        fitting = [row for row in context.rows if len(row.tokens) < self._limit]
        self._place = {row.index: place for place, row in enumerate(fitting)}
        self._places = dict(self._place)  # of rows that have ended too
        # Row index to the number of pending nodes that are known tokens, and the guesses that were run after them.
        self._pending: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._shares: dict[int, Shares] = {}
        # Of the last drafts for a greedy target: scores, a level each, and row index to place, shape and draft.
        self._said: list[Tensor] = []
        self._made: dict[int, tuple[int, TreeShape, Draft]] = {}
        self._values: dict[int, Sequence[float] | Tensor] = {}  # of the nodes of trees that followed its confidence
        self._session: CachedSession | None = None
        if any(row.room > 2 for row in fitting):  # the prompt's pass emits one token, the last one is never drafted
            longest = min(self._limit, max(row.max_length for row in fitting))
            prompts = [self._known(row.tokens) for row in fitting]
            self._session = lm.open(prompts, [row.group for row in fitting], longest)
            self._session.prefill()

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        depths = [self._depth(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        active = [place for place, depth in enumerate(depths) if depth > 0]
        self._said, self._made, self._values = [], {}, {}
        if not active:
            return [Draft.empty()] * len(rows)
        self._retire(rows)
        drafting = [rows[place] for place in active]
        if self._expand is not None:
            limits = [replace(budgets[place], depth=depths[place]) for place in active]
            drafts = self._likeliest(drafting, limits, self._expand)
        else:
            shapes = [self._shape(rows[place], budgets[place], depths[place]) for place in active]
            drafts = self._grow(drafting, shapes, rng.fold(_DRAW))
        made = dict(zip(active, drafts, strict=True))
        return [made.get(place, Draft.empty()) for place in range(len(rows))]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            index = outcome.row.index
            if index in self._shares:
                self._shares[index].observe(outcome)
            if (pending := self._pending.pop(index, None)) is not None and self._session is not None:
                head, opened = pending
                # Guesses without guesses below them were never run: one that is kept is missing in the cache.
                ran = {node: head + number for number, node in enumerate(opened)}
                kept = [ran[node - 1] for node in outcome.path if node - 1 in ran]
                self._session.commit(self._place[index], [*range(head), *kept])

    def confidences(self, row: Row) -> Tensor | None:
        """Products along each path of the draft model's probabilities; None for drafts that were drawn from them."""
        if row.index in self._values:
            return torch.as_tensor(self._values[row.index]).exp()
        if row.index not in self._made:
            return None
        at, shape, draft = self._made[row.index]
        tokens, chances = draft.token_tensor(self._context.device), {ANCHOR: torch.ones((), dtype=torch.float64)}
        for level, said in zip(shape.levels, self._said, strict=False):
            found = said[at].softmax(-1, dtype=torch.float64)  # [width, vocab]
            for law, node, family in zip(found, level.nodes, level.children, strict=False):
                for child in family:
                    chances[child] = chances[node] * law[tokens[child]]
        return torch.stack([chances[node] for node in range(len(shape))])

    def follow(self, ancestors: Mapping[int, int]) -> None:
        if self._session is None:
            return
        # A source without a place has ended, so whoever goes on from it has ended too.
        alive = [(row, source) for row, source in ancestors.items() if source in self._place]
        for row, _ in alive:
            self._pending.pop(row, None)
        self._session.follow({self._places[row]: self._place[source] for row, source in alive})
        self._place.update({row: self._places[row] for row, _ in alive})

    def _shape(self, row: Row, budget: Budget, depth: int) -> TreeShape:
        """What to draft for a row, decided before anything is drawn."""
        if (fanouts := self._fanouts) is None:
            return tree_shape(tuple(range(-1, depth - 1)))
        most = min(max(fanouts), self._context.vocab_size)
        if row.index not in self._shares:
            self._shares[row.index] = Shares(most)
        return best_shape(
            [min(fan, most) for fan in fanouts], self._shares[row.index].values(), replace(budget, depth=depth)
        )

    def _likeliest(self, rows: Sequence[Row], budgets: Sequence[Budget], most: int) -> list[Draft]:
        """Trees of the draft model's likeliest tokens by its own law, which no processor has changed."""
        assert self._session is not None
        places = [self._place[row.index] for row in rows]
        logits, heads = self._catch_up(rows)
        for place, head in zip(places, heads, strict=True):
            self._session.commit(place, range(head))
        fan = min(most, self._vocab, self._context.vocab_size)
        levels = growth.widths(budgets, fan, fan)
        branches = Branches(self._session, places, levels) if levels else None
        grown = growth.grow(_Confidences(branches, logits, self._context, fan), budgets, fan)
        made = grown.drafts(budgets) if fan > 1 else grown.chains(budgets)
        for row, kept in zip(rows, made, strict=True):
            self._pending[row.index] = 0, kept.expanded
            self._values[row.index] = kept.values
        return [kept.draft for kept in made]

    def _catch_up(self, rows: Sequence[Row]) -> tuple[Tensor, list[int]]:
        """Run the tokens that are not in the cache, as pending nodes.

        Returns logits `[rows, 1, vocab]` of each row's last one, and how many there were in each row.
        """
        assert self._session is not None
        places = [self._place[row.index] for row in rows]
        missing = [self._known(row.tokens[self._session.length(at) :]) for row, at in zip(rows, places, strict=True)]
        heads = [len(new) for new in missing]
        tokens = host.send([new + [0] * (max(heads) - len(new)) for new in missing], self._device)
        logits, _ = self._session.extend(places, tokens, [range(-1, head - 1) for head in heads])
        ends = host.send([head - 1 for head in heads], logits.device)  # where each row's last token stands
        return logits[torch.arange(len(rows), device=logits.device), ends][:, None], heads

    def _grow(self, rows: Sequence[Row], shapes: Sequence[TreeShape], rng: Rng) -> list[Draft]:
        assert self._session is not None
        session, places = self._session, [self._place[row.index] for row in rows]
        samplings = [self._samplings[row.index] for row in rows]
        kind = Kind.POINT if self._context.greedy else self._kind
        vocab, device = self._context.vocab_size, self._context.device
        first, heads = self._catch_up(rows)
        for row, head, shape in zip(rows, heads, shapes, strict=True):
            self._pending[row.index] = head, shape.opened

        def oracle(step: Step) -> Tensor:
            logits = first
            if step.depth:
                # A row without nodes of this depth takes part as padding.
                parents = [[head - 1 + node for node in above] for head, above in zip(heads, step.above, strict=True)]
                tokens = step.tokens.clamp(max=self._vocab - 1).to(self._device)
                logits, _ = session.extend(places, tokens, parents)
            if kind is not Kind.POINT:
                return laws(rows, samplings, step, logits, None, vocab, device)
            self._said.append(scores(rows, samplings, step, logits, vocab, device))
            return self._said[-1]

        drafts = grow(shapes, oracle, kind, rng, [(row.copy, row.rounds) for row in rows])
        if kind is Kind.POINT:
            made = zip(rows, shapes, drafts, strict=True)
            self._made = {row.index: (at, shape, draft) for at, (row, shape, draft) in enumerate(made)}
        return drafts

    def _depth(self, row: Row, budget: Budget) -> int:
        """How deep this row may draft: 0 once the draft model's context is full."""
        if self._session is None or row.index not in self._place:
            return 0
        return max(0, min(budget.depth, budget.nodes, self._limit - len(row.tokens)))

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Tokens as the draft model's embedding knows them; padding ids of a larger target become its last id."""
        top = self._vocab - 1
        return [min(token, top) for token in tokens]

    def _retire(self, live: Sequence[Row]) -> None:
        assert self._session is not None
        kept = {row.index: self._place[row.index] for row in live if row.index in self._place}
        if len(kept) < len(self._place):
            self._session.retire(list(kept.values()))
            self._place = kept


class _Confidences:
    """What the draft model says may follow, over the part of its vocabulary that the target knows."""

    def __init__(self, branches: Branches | None, logits: Tensor, context: Context, fan: int) -> None:
        self._branches, self._logits, self._context, self._fan = branches, logits, context, fan

    def root(self) -> growth.Children:
        return self._children(self._logits)

    def below(self, frontier: growth.Frontier) -> growth.Children:
        assert self._branches is not None
        device = self._logits.device
        return self._children(self._branches.step(frontier.tokens.to(device), frontier.seen.to(device)))

    def _children(self, logits: Tensor) -> growth.Children:
        return growth.likeliest(logits[..., : self._context.vocab_size].to(self._context.device), self._fan)


def context_length(model: nn.Module) -> int:
    """Positions for which a draft model was made."""
    config = model.config.get_text_config(decoder=True)  # type: ignore[union-attr,operator]
    return int(getattr(config, "max_position_embeddings", None) or 1 << 30)
