"""Draft model: a smaller model of the same tokenizer guesses a chain or a tree, one level after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from specdec.core.draft import Kind
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.sampling import Sampling
from specdec.core.state import Context, Row
from specdec.drafters.draft_model_config import DraftModelConfig
from specdec.drafters.model_session import ModelSession
from specdec.drafters.proposal import mirrored
from specdec.targets.cached_lm import CachedLM
from specdec.targets.load import load_model
from specdec.targets.tokenizers import vocabulary_problems
from specdec.targets.warpers import warpers


class DraftModel(Drafter):
    """Drafts chains drawn from a causal LM at temperature > 0, and its most likely chain for a greedy target.

    model: the draft model. It is used through its forward only; its generation config plays no part.
    tree: most children of a node, by depth; then drafts are trees of draws without replacement, or of the most likely
        tokens. Which of these places are drafted follows from the budget and from what siblings have been worth.
    expand: nodes that are expanded at each depth, and children of each; then drafts are trees of the likeliest tokens,
        POINT candidates, grown where the draft model is confident and kept to the worthiest nodes, as EAGLE-2 does.
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
        expand: int | None = None,
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
            model=where,
            tree=None if tree is None else tuple(tree),
            expand=expand,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
        own = warpers(self._config.temperature, self._config.top_k, self._config.top_p)
        self._own = None if own is None else Sampling(own, elementwise=True, greedy=self._config.temperature == 0)
        self.fanouts = self._config.tree
        self.branching = self.fanouts is not None and max(self.fanouts) > 1  # type: ignore[misc]
        self.kind = Kind.NO_REPLACE if self.branching else Kind.IID
        # A greedy target is drafted for greedily, with candidates that are no samples.
        self.emits = frozenset({self.kind, Kind.POINT})  # type: ignore[misc]
        self.expand = self._config.expand
        if self.expand is not None:
            self.branching, self.emits = self.expand > 1, frozenset({Kind.POINT})  # type: ignore[misc]

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
        return ModelSession(self.lm, context, self.samplings(context.rows), self.kind, self.fanouts, self.expand)

    def samplings(self, rows: Sequence[Row]) -> dict[int, Sampling]:
        """Row index to how the draft model's logits become the law q that its guesses are drawn from."""
        return mirrored(rows, self._own)


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
