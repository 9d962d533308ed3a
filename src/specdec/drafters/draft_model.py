"""Draft model: a smaller model of the same tokenizer guesses a chain, one token after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core import host
from specdec.core.draft import Draft, Kind
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.rng import Rng
from specdec.core.sampling import Sampling, best
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.draft_model_config import DraftModelConfig
from specdec.targets.cached_lm import CachedLM, CachedSession
from specdec.targets.load import load_model
from specdec.targets.tokenizers import vocabulary_problems
from specdec.targets.warpers import warpers

_DRAW = 6


class DraftModel(Drafter):
    """Drafts IID chains from a causal LM at temperature > 0, and its most likely chain for a greedy target.

    model: the draft model. It is used through its forward only; its generation config plays no part.
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
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        tokenizer: Any = None,
        config: DraftModelConfig | None = None,
    ) -> None:
        self.lm = CachedLM(model)
        self.tokenizer = tokenizer
        where = getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
        self._config = config or DraftModelConfig(model=where, temperature=temperature, top_k=top_k, top_p=top_p)
        own = warpers(self._config.temperature, self._config.top_k, self._config.top_p)
        self._own = None if own is None else Sampling(own, elementwise=True, greedy=self._config.temperature == 0)

    # A greedy target is drafted for greedily, with candidates that are no samples.
    emits = frozenset({Kind.IID, Kind.POINT})

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
        lm = drafter.lm
        self._vocab, self._limit = lm.spec.vocab_size, context_length(lm.model)
        fitting = [row for row in context.rows if len(row.tokens) < self._limit]
        self._place = {row.index: place for place, row in enumerate(fitting)}
        self._samplings = drafter.samplings(context.rows)
        self._heads: dict[int, int] = {}  # row index to the number of pending nodes that are known tokens
        self._session: CachedSession | None = None
        if any(row.room > 2 for row in fitting):  # the prompt's pass emits one token, the last one is never drafted
            longest = min(self._limit, max(row.max_length for row in fitting))
            prompts = [self._known(row.tokens) for row in fitting]
            self._session = lm.open(prompts, [row.group for row in fitting], longest)
            self._session.prefill()

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        depths = [self._depth(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        active = [place for place, depth in enumerate(depths) if depth > 0]
        if not active:
            return [Draft.empty()] * len(rows)
        self._retire(rows)
        drafting = [rows[place] for place in active]
        drafts = self._chains(drafting, [depths[place] for place in active], rng.fold(_DRAW))
        made = dict(zip(active, drafts, strict=True))
        return [made.get(place, Draft.empty()) for place in range(len(rows))]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            head = self._heads.pop(outcome.row.index, None)
            if head is not None and self._session is not None:
                # The last guess was never run, so of a wholly accepted chain one token is still missing.
                ran = len(outcome.draft) - 1
                self._session.commit(self._place[outcome.row.index], range(head + min(len(outcome.path), ran)))

    def _chains(self, rows: Sequence[Row], depths: Sequence[int], rng: Rng) -> list[Draft]:
        assert self._session is not None
        places = [self._place[row.index] for row in rows]
        missing = [self._known(row.tokens[self._session.length(at) :]) for row, at in zip(rows, places, strict=True)]
        self._heads.update({row.index: len(new) for row, new in zip(rows, missing, strict=True)})
        width, device = max(map(len, missing)), self._drafter.lm.device
        tokens = host.send([new + [0] * (width - len(new)) for new in missing], device)
        parents: list[Sequence[int]] = [range(-1, len(new) - 1) for new in missing]
        at_end = None  # where each row's last node stands, if not at the end of the pass
        if any(len(new) < width for new in missing):
            at_end = torch.arange(len(rows), device=device), host.send([len(new) - 1 for new in missing], device)
        chosen: list[Tensor] = []  # one [rows] a step
        laws: list[Tensor] = []  # one [rows, vocab] a step, where the guesses are samples
        samplings = [self._samplings[row.index] for row in rows]
        for step in range(max(depths)):
            logits, _ = self._session.extend(places, tokens, parents)
            token, law = self._draw(rows, samplings, logits[:, -1] if at_end is None else logits[at_end], chosen, rng)
            chosen.append(token)
            if law is not None:
                laws.append(law)
            # The guess becomes the row's next node; a row that needs no further guess takes part as padding.
            ends = [len(new) - 1 + step for new in missing]
            parents = [(end,) if step + 1 < depth else () for end, depth in zip(ends, depths, strict=True)]
            tokens, at_end = token[:, None].to(device), None
        tokens = torch.stack(chosen, 1)  # [rows, deepest]
        if self._context.greedy:
            return [Draft.point(tokens[at, :depth]) for at, depth in enumerate(depths)]
        q = torch.stack(laws, 1)  # [rows, deepest, vocab]
        return [Draft.sampled(tokens[at, :depth], q[at, :depth]) for at, depth in enumerate(depths)]

    def _draw(
        self,
        rows: Sequence[Row],
        samplings: Sequence[Sampling],
        logits: Tensor,
        chosen: Sequence[Tensor],
        rng: Rng,
    ) -> tuple[Tensor, Tensor | None]:
        """The next guess `[rows]` and the law `[rows, target vocab]` float64 it was drawn from."""
        scores = self._fit(logits)
        first = samplings[0]
        if first.elementwise and all(s is first for s in samplings):
            scores = first.apply(rows[0].prefix(scores.device)[:, :1], scores)  # the prefix is not looked at
        else:
            below = torch.stack(list(chosen), 1) if chosen else scores.new_zeros(len(rows), 0, dtype=torch.int64)
            scores = torch.cat([
                sampling.apply(torch.cat([row.prefix(scores.device), below[i : i + 1]], 1), scores[i : i + 1])
                for i, (row, sampling) in enumerate(zip(rows, samplings, strict=True))
            ])  # fmt: skip
        if self._context.greedy:
            return best(scores), None
        law = scores.softmax(-1, dtype=torch.float64)
        if first.greedy:  # the draft model's own temperature is 0: a certainty, and a sample of itself
            law = torch.zeros_like(law).scatter_(1, best(scores)[:, None], 1.0)
        return rng.categorical(law, at=[(row.copy, row.rounds, len(chosen)) for row in rows]), law

    def _fit(self, logits: Tensor) -> Tensor:
        """Draft logits as float32 scores over the target's vocabulary; NaN and infinities cost acceptance only."""
        vocab = self._context.vocab_size
        logits = logits if logits.shape[1] <= vocab else logits[:, :vocab]
        scores = torch.nan_to_num(logits.float(), nan=-1e30, posinf=1e30, neginf=-1e30)
        if scores.shape[1] < vocab:
            scores = nn.functional.pad(scores, (0, vocab - scores.shape[1]), value=-torch.inf)
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
