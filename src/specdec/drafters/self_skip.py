"""Self-skip: the target drafts for itself, with some of its layers left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.contracts import Needs
from specdec.core.draft import ANCHOR, Draft, Kind
from specdec.core.interfaces import Drafter, DraftSession, Target
from specdec.core.rng import Rng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Row
from specdec.drafters.proposal import laws, mirrored, scores
from specdec.drafters.sampled_tree import Step, grow
from specdec.drafters.self_skip_config import SelfSkipConfig
from specdec.drafters.tree_shape import tree_shape
from specdec.targets.warpers import warpers

_DRAW = 9


class SelfSkip(Drafter):
    """Guesses a chain with the target's own first `exit_layer` layers, its norm and its LM head, or with all layers
    but those in `skip`, or both; the whole target then checks it. By default half of the layers.

    The guesses are run over the target's own cache: early layers' keys of committed tokens are what they would have
    made themselves, later layers' are better. So no prompt is run twice and nothing is stored twice.

    draw: draw guesses at temperature > 0 instead of taking the most probable tokens. temperature, top_k, top_p: of
        these draws; by default they mirror the target's sampling.

    Without training, and with a target that was not trained for it, few layers guess badly: try `skip` with layers
    from the middle first. Source: LayerSkip (Elhoushi et al., arXiv 2404.16710), Draft & Verify (Zhang et al., arXiv
    2309.08168).
    """

    name = "self-skip"
    needs = Needs(shared=("layers",))

    def __init__(
        self,
        *,
        exit_layer: int | None = None,
        skip: Sequence[int] = (),
        draw: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> None:
        self._config = SelfSkipConfig(
            exit_layer=exit_layer, skip=tuple(skip), draw=draw, temperature=temperature, top_k=top_k, top_p=top_p
        )
        own = warpers(temperature, top_k, top_p)
        self._own = None if own is None else Sampling(own, elementwise=True, greedy=temperature == 0)
        self.emits = frozenset({Kind.IID, Kind.POINT} if draw else {Kind.POINT})

    @property
    def config(self) -> SelfSkipConfig:
        return self._config

    @classmethod
    def from_config(cls, config: SelfSkipConfig) -> SelfSkip:
        return cls(**config.model_dump(exclude={"type"}))

    def problems(self, target: Target, tokenizer: object = None) -> list[str]:
        if (layers := target.shared("layers")) is None:
            return []  # what is needed and not there is said elsewhere
        config, count = self._config, len(layers)  # type: ignore[arg-type]
        found = []
        if config.exit_layer is not None and config.exit_layer > count:
            found.append(f"exit_layer={config.exit_layer}: the target has {count} layers; expected 1 to {count - 1}")
        if beyond := [layer for layer in config.skip if layer >= count]:
            found.append(f"skip={beyond}: the target has {count} layers; expected layers 0 to {count - 1}")
        if not found and len(self.kept(count)) in (0, count):
            found.append(
                f"exit_layer={config.exit_layer}, skip={list(config.skip)}: {len(self.kept(count))} of the target's "
                f"{count} layers are left; expected 1 to {count - 1}, or drafting costs what it should save"
            )
        return [f"drafter '{self.name}': {problem}" for problem in found]

    def kept(self, count: int) -> tuple[int, ...]:
        """The layers that draft, of `count`."""
        end = self._config.exit_layer
        if end is None:
            end = count if self._config.skip else max(1, count // 2)
        return tuple(layer for layer in range(min(end, count)) if layer not in self._config.skip)

    def begin(self, context: Context) -> DraftSession:
        return _Session(self, context)

    def samplings(self, rows: Sequence[Row]) -> dict[int, Sampling]:
        """Row index to how logits become the law of the guesses."""
        return mirrored(rows, self._own)


class _Session(DraftSession):
    """Runs chains as pending nodes in the target's cache and drops them again; holds nothing of its own."""

    def __init__(self, drafter: SelfSkip, context: Context) -> None:
        self._context = context
        self._kind = Kind.IID if Kind.IID in drafter.emits and not context.greedy else Kind.POINT
        self._lent = context.lend(drafter.kept(len(context.shared["layers"])))  # type: ignore[arg-type,misc]
        self._samplings = drafter.samplings(context.rows)
        self._made: dict[int, tuple[int, Draft]] = {}  # row index to place among those drafted for, and draft
        self._said: list[Tensor] = []  # scores [rows, 1, vocab], a level each, of chains that are not drawn

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        depths = [self._depth(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        active = [place for place, depth in enumerate(depths) if depth]
        drafts = [Draft.empty()] * len(rows)
        self._made, self._said = {}, []
        if active:
            drafting = [rows[place] for place in active]
            made = self._chains(drafting, [depths[place] for place in active], rng.fold(_DRAW))
            for at, (place, draft) in enumerate(zip(active, made, strict=True)):
                drafts[place] = draft
                self._made[rows[place].index] = at, draft
        return drafts

    def confidences(self, row: Row) -> Tensor | None:
        """Products along the chain of the skipping model's probabilities; None for a chain that was drawn."""
        if row.index not in self._made or self._kind is Kind.IID:
            return None
        at, draft = self._made[row.index]
        tokens = draft.token_tensor(self._context.device)
        said = torch.stack([level[at, 0] for level in self._said[: len(draft)]])  # [nodes, vocab]
        return said.softmax(-1, dtype=torch.float64).gather(1, tokens[:, None])[:, 0].cumprod(0)

    def _depth(self, row: Row, budget: Budget) -> int:
        limit = self._context.context_length
        room = budget.depth if limit is None else limit - len(row.tokens)
        return max(0, min(budget.depth, budget.nodes, room))

    def _chains(self, rows: Sequence[Row], depths: Sequence[int], rng: Rng) -> list[Draft]:
        lent, context = self._lent, self._context
        places = [row.index for row in rows]
        missing = [row.tokens[lent.length(row.index) :] for row in rows]  # the anchor, and what waits to be confirmed
        heads = [len(new) for new in missing]
        samplings = [self._samplings[place] for place in places]

        def oracle(step: Step) -> Tensor:
            if step.depth:
                # A row whose chain is long enough takes part as padding.
                parents = [[head - 1 + node for node in above] for head, above in zip(heads, step.above, strict=True)]
                logits = lent.extend(places, step.tokens.to(lent.lm.device), parents)
            else:
                tokens = host.send([[*new, *[0] * (max(heads) - len(new))] for new in missing], lent.lm.device)
                logits = lent.extend(places, tokens, [range(-1, head - 1) for head in heads])
                ends = host.send([head - 1 for head in heads], logits.device)
                logits = logits[torch.arange(len(rows), device=logits.device), ends][:, None]
            if self._kind is Kind.IID:
                return laws(rows, samplings, step, logits, None, context.vocab_size, context.device)
            self._said.append(scores(rows, samplings, step, logits, context.vocab_size, context.device))
            return self._said[-1]

        shapes = [tree_shape(tuple(range(ANCHOR, depth - 1))) for depth in depths]
        try:
            return grow(shapes, oracle, self._kind, rng, [(row.copy, row.rounds) for row in rows])
        finally:
            lent.drop(places)


def example(vocab_size: int) -> SelfSkip:
    """A drafter for checks, which draws."""
    return SelfSkip(exit_layer=2, draw=True)
