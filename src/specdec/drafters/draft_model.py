"""Draft model: a smaller model of the same tokenizer guesses a chain or a tree, one level after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core import host
from specdec.core.draft import ANCHOR, Draft, Kind
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.rng import Rng
from specdec.core.sampling import Sampling, best
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.draft_model_config import DraftModelConfig
from specdec.drafters.sampled_tree import Step, grow
from specdec.drafters.shares import Shares
from specdec.drafters.tree_shape import TreeShape, best_shape, tree_shape
from specdec.targets.cached_lm import CachedLM, CachedSession
from specdec.targets.load import load_model
from specdec.targets.tokenizers import vocabulary_problems
from specdec.targets.warpers import warpers

_DRAW = 6


class DraftModel(Drafter):
    """Drafts chains drawn from a causal LM at temperature > 0, and its most likely chain for a greedy target.

    model: the draft model. It is used through its forward only; its generation config plays no part.
    tree: most children of a node, by depth; then drafts are trees of draws without replacement, or of the most likely
        tokens. Which of these places are drafted follows from the budget and from what siblings have been worth.
    temperature, top_k, top_p: the draft model's own sampling. By default it mirrors the target's processors that
        depend on scores and prefix alone, which raises acceptance; the output's law does not depend on it.
    tokenizer: its tokenizer, compared with the target's where that is known.

    Rows that outgrow the draft model's context are decoded plainly. Vocabularies may be padded differently.
    Source: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318.
    """

    name = "draft-model"

    def __init__(
        self,
        model: nn.Module,
        *,
        tree: Sequence[int] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        tokenizer: Any = None,
        config: DraftModelConfig | None = None,
    ) -> None:
        self.lm = CachedLM(model)
        self.tokenizer = tokenizer
        where = getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
        self._config = config or DraftModelConfig(
            model=where, tree=tree, temperature=temperature, top_k=top_k, top_p=top_p
        )
        own = warpers(self._config.temperature, self._config.top_k, self._config.top_p)
        self._own = None if own is None else Sampling(own, elementwise=True, greedy=self._config.temperature == 0)
        self.fanouts = self._config.tree
        self.branching = self.fanouts is not None and max(self.fanouts) > 1  # type: ignore[misc]
        self.kind = Kind.NO_REPLACE if self.branching else Kind.IID
        # A greedy target is drafted for greedily, with candidates that are no samples.
        self.emits = frozenset({self.kind, Kind.POINT})  # type: ignore[misc]

    @property
    def config(self) -> DraftModelConfig:
        return self._config

    @classmethod
    def from_config(cls, config: DraftModelConfig) -> DraftModel:
        model, tokenizer = load_model(
            config.model,
            dtype=config.dtype,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
        return cls(model, tokenizer=tokenizer, config=config)

    def problems(self, target: Target, tokenizer: Any = None) -> list[str]:
        return vocabulary_problems(
            target.vocab_size, self.lm.spec.vocab_size, tokenizer, self.tokenizer, "the draft model"
        )

    def begin(self, context: Context) -> DraftSession:
        return _Session(self, context)

    def samplings(self, rows: Sequence[Row]) -> dict[int, Sampling]:
        """Row index to how the draft model's logits become the law q that its guesses are drawn from."""
        # One object for all rows that sample alike: equal objects are applied to all rows in one call.
        mirrors = {id(row.sampling): row.sampling.mirror for row in rows}
        own = self._own
        return {row.index: mirrors[id(row.sampling)] if own is None or row.sampling.greedy else own for row in rows}


class _Session(DraftSession):
    """The draft model's cache follows each row: committed tokens first, then the guesses not yet judged."""

    def __init__(self, drafter: DraftModel, context: Context) -> None:
        self._drafter, self._context = drafter, context
        lm = drafter.lm.compiled() if context.compiles else drafter.lm
        self._vocab, self._limit = lm.spec.vocab_size, context_length(lm.model)
        fitting = [row for row in context.rows if len(row.tokens) < self._limit]
        self._place = {row.index: place for place, row in enumerate(fitting)}
        self._places = dict(self._place)  # of rows that have ended too
        self._samplings = drafter.samplings(context.rows)
        # Row index to the number of pending nodes that are known tokens, and the guesses that were run after them.
        self._pending: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._shares: dict[int, Shares] = {}
        # Of the last drafts for a greedy target: scores, a level each, and row index to place, shape and draft.
        self._said: list[Tensor] = []
        self._made: dict[int, tuple[int, TreeShape, Draft]] = {}
        self._session: CachedSession | None = None
        if any(row.room > 2 for row in fitting):  # the prompt's pass emits one token, the last one is never drafted
            longest = min(self._limit, max(row.max_length for row in fitting))
            prompts = [self._known(row.tokens) for row in fitting]
            self._session = lm.open(prompts, [row.group for row in fitting], longest)
            self._session.prefill()

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        depths = [self._depth(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        active = [place for place, depth in enumerate(depths) if depth > 0]
        self._said, self._made = [], {}
        if not active:
            return [Draft.empty()] * len(rows)
        self._retire(rows)
        drafting = [rows[place] for place in active]
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
        if row.index not in self._made:
            return None
        at, shape, draft = self._made[row.index]
        tokens, chances = draft.token_tensor(self._context.device), {ANCHOR: torch.ones((), dtype=torch.float64)}
        for level, scores in zip(shape.levels, self._said, strict=False):
            laws = scores[at].softmax(-1, dtype=torch.float64)  # [width, vocab]
            for law, node, family in zip(laws, level.nodes, level.children, strict=False):
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
        fanouts = self._drafter.fanouts
        if fanouts is None:
            return tree_shape(tuple(range(-1, depth - 1)))
        most = min(max(fanouts), self._context.vocab_size)
        if row.index not in self._shares:
            self._shares[row.index] = Shares(most)
        return best_shape(
            [min(fan, most) for fan in fanouts], self._shares[row.index].values(), replace(budget, depth=depth)
        )

    def _grow(self, rows: Sequence[Row], shapes: Sequence[TreeShape], rng: Rng) -> list[Draft]:
        assert self._session is not None
        places = [self._place[row.index] for row in rows]
        missing = [self._known(row.tokens[self._session.length(at) :]) for row, at in zip(rows, places, strict=True)]
        heads = [len(new) for new in missing]
        self._pending.update({
            row.index: (head, shape.opened) for row, head, shape in zip(rows, heads, shapes, strict=True)
        })  # fmt: skip
        kind = Kind.POINT if self._context.greedy else self._drafter.kind
        samplings = [self._samplings[row.index] for row in rows]

        def laws(step: Step) -> Tensor:
            assert self._session is not None
            if step.depth:
                # A row without nodes of this depth takes part as padding.
                parents = [[head - 1 + node for node in above] for head, above in zip(heads, step.above, strict=True)]
                tokens = step.tokens.clamp(max=self._vocab - 1).to(self._drafter.lm.device)
                logits, _ = self._session.extend(places, tokens, parents)
            else:
                tokens = host.send([new + [0] * (max(heads) - len(new)) for new in missing], self._drafter.lm.device)
                logits, _ = self._session.extend(places, tokens, [range(-1, head - 1) for head in heads])
                ends = host.send([head - 1 for head in heads], logits.device)  # where each row's last token stands
                logits = logits[torch.arange(len(rows), device=logits.device), ends][:, None]
            found = self._laws(rows, samplings, step, logits)
            if kind is Kind.POINT:
                self._said.append(found)
            return found

        drafts = grow(shapes, laws, kind, rng, [(row.copy, row.rounds) for row in rows])
        if kind is Kind.POINT:
            made = zip(rows, shapes, drafts, strict=True)
            self._made = {row.index: (at, shape, draft) for at, (row, shape, draft) in enumerate(made)}
        return drafts

    def _laws(self, rows: Sequence[Row], samplings: Sequence[Sampling], step: Step, logits: Tensor) -> Tensor:
        """Laws `[rows, width, target vocab]` float64 of the children of a step's nodes; scores for a greedy target."""
        scores, first = self._fit(logits), samplings[0]
        if first.elementwise and all(s is first for s in samplings):
            flat = scores.flatten(0, 1)
            scores = first.apply(rows[0].prefix(scores.device)[:, :1], flat).view_as(scores)  # no prefix is looked at
        else:
            for i, (row, sampling) in enumerate(zip(rows, samplings, strict=True)):
                prefix = row.prefix(scores.device)
                for place in range(len(step.above[i]) if step.depth else 1):
                    seen = torch.cat([prefix, step.below[i, place : place + 1]], 1) if step.depth else prefix
                    scores[i, place] = sampling.apply(seen, scores[i, place : place + 1])[0]
        if self._context.greedy:
            return scores
        if not first.greedy:
            return scores.softmax(-1, dtype=torch.float64)
        # The draft model's own temperature is 0: a certainty, and a sample of itself.
        return torch.zeros_like(scores, dtype=torch.float64).scatter_(-1, best(scores)[..., None], 1.0)

    def _fit(self, logits: Tensor) -> Tensor:
        """Draft logits as float32 scores over the target's vocabulary; NaN and infinities cost acceptance only."""
        vocab = self._context.vocab_size
        scores = torch.nan_to_num(logits[..., :vocab].float(), nan=-1e30, posinf=1e30, neginf=-1e30)
        if scores.shape[-1] < vocab:
            scores = nn.functional.pad(scores, (0, vocab - scores.shape[-1]), value=-torch.inf)
        return scores.to(self._context.device)

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


def context_length(model: nn.Module) -> int:
    """Positions for which a draft model was made."""
    config = model.config.get_text_config(decoder=True)  # type: ignore[union-attr,operator]
    return int(getattr(config, "max_position_embeddings", None) or 1 << 30)


def example(vocab_size: int) -> DraftModel:
    """A drafter for checks, with a random model of a few hundred weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DraftModel(LlamaForCausalLM(config).eval())
