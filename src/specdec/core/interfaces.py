"""The four roles that parts play. Base classes with defaults, so that they can grow without breaking a part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from specdec.core.contracts import Caps, Exactness, Needs
from specdec.core.draft import Draft, Kind
from specdec.core.population import Population
from specdec.core.state import Budget, Context, Outcome, Round, Row, Scores
from specdec.core.verdict import RowVerdict, Verdict

if TYPE_CHECKING:
    from specdec.core.config import StrategyConfig
    from specdec.core.forest import Forest
    from specdec.core.rng import Rng
    from specdec.core.sampling import Laws


class Part(ABC):
    """What all parts share: a name for messages and a config that rebuilds them."""

    role: ClassVar[str]
    name: ClassVar[str]

    @property
    def config(self) -> StrategyConfig | None:
        """The config from which the registry builds an equal part, or None where there is none."""
        return None


class Drafter(Part):
    """Owns guesses and its own caches. Everything of one generation lives in the session that `begin` returns.

    emits: the kinds of candidates its drafts may hold.
    branching: whether a draft may be a tree.
    drafts: False only for a drafter that never guesses.
    free: drafting takes no model's pass; drafts are POINT, hold no scratch and lie on the host, and sessions say how
        sure they are of each node and go by outcomes alone. `merge` may then ask for more nodes than it keeps, the
        likeliest of them, and tells the session of these.
    needs: features and modules of the target, by name.
    """

    role = "drafter"

    emits: frozenset[Kind] = frozenset({Kind.POINT})
    branching: bool = False
    drafts: bool = True
    free: bool = False
    needs: Needs = Needs()

    @abstractmethod
    def begin(self, context: Context) -> DraftSession:
        """Start one generation, after the pass over the prompts."""

    def for_target(self, target: Target) -> Drafter:
        """The drafter that serves `target`, asked for when a decoder is composed, before anything else; usually itself.

        For drafters with files that do not say all about their target. Nothing may be changed in this one, which other
        decoders may share.
        """
        return self

    def problems(self, target: Target, tokenizer: Any = None) -> list[str]:
        """Reasons of its own why this drafter cannot serve `target`, whose tokenizer is given where it is known.

        Checked when a decoder is composed, and again when a call brings a tokenizer.
        """
        return []


class DraftSession(ABC):
    """One generation's drafting.

    Each round the engine calls `observe` with the outcomes of the round before, first with those of the pass over the
    prompts, and then `propose`.
    """

    @abstractmethod
    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        """One draft for each live row, within its budget. Rows must not be changed."""

    def observe(self, outcomes: Sequence[Outcome]) -> None:  # noqa: B027 - optional by design
        """Learn what became of the last drafts, and the logits and features of every node of the pass."""

    def follow(self, ancestors: Mapping[int, int]) -> None:  # noqa: B027 - optional by design
        """Rows, by index, have gone on from the text of other rows, as they were; called after `observe`.

        Where particles are resampled. What is kept for a row should then be what was kept for its ancestor; a row
        that had ended may live again. By default nothing: right for whoever reads `row.tokens` anew.
        """

    def confidences(self, row: Row) -> Tensor | None:
        """`[nodes]`: the chance it gave each node of this row's last draft to be accepted; None where it gives none.

        For measurements, and for `merge` where the drafter is `free`.
        """
        return None

    def shown(self, row: Row) -> Mapping[str, Any]:
        """What else there is to see of this row's last draft, by name, as JSON of token ids; for pages that show it.

        Known names: "window" (rows of ids), "pool" (pairs of an id and the ids that may follow it) and "drafters"
        (pairs of a name and nodes of the pass). Asked before the round's outcome is told; decoding never asks.
        """
        return {}


class StatelessDrafter(Drafter):
    """The short road to a drafter: one function from a row to a draft."""

    def begin(self, context: Context) -> DraftSession:
        return _EachRow(self, context)

    @abstractmethod
    def propose(self, row: Row, budget: Budget, rng: Rng, context: Context) -> Draft:
        """The draft for one row, within `budget`. The row must not be changed."""


class _EachRow(DraftSession):
    def __init__(self, drafter: StatelessDrafter, context: Context) -> None:
        self._drafter, self._context = drafter, context

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        return [
            self._drafter.propose(row, budget, rng.fold(row.copy, row.rounds), self._context)
            for row, budget in zip(rows, budgets, strict=True)
        ]


class Verifier(Part):
    """Owns the law: decides which path is kept and draws the target's own token after it.

    exactness: what the law of the output is; `bias_note` must say how it differs where it is APPROXIMATE.
    judges: kinds of candidates it can judge.
    branching: whether it can judge trees.
    rejects: whether it may throw drafted tokens away, which needs a target that can roll back.
    greedy: whether it can decode at temperature 0.
    draws_by_position: the token of a position follows from that position's law and noise alone, whatever is drafted.
    particles: rows that carry one output together; with more than one, verdicts carry weights and `gather` gives
        the rule by which these rows are resampled.
    """

    role = "verifier"

    exactness: Exactness = Exactness.EXACT_SAMPLING
    bias_note: str = ""
    judges: frozenset[Kind] = frozenset({Kind.POINT})
    branching: bool = False
    rejects: bool = True
    greedy: bool = True
    draws_by_position: bool = False
    particles: int = 1

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        """Judge all rows of a round, on the device. The default asks `judge` row by row."""
        verdicts = [
            self.judge(draft, _RowLaw(laws, index), rng.fold(row.copy, row.rounds))
            for index, (row, draft) in enumerate(zip(forest.rows, forest.drafts, strict=True))
        ]
        return Verdict.of_rows(verdicts, forest.device)

    def decided(self, forest: Forest, laws: Laws, rng: Rng) -> Tensor:
        """`[rows, width]` int64: what this verifier would emit if the text came to each node, for drafters that ask.

        By default the target's most probable token. A verifier whose draws are named by their position can say more.
        """
        return laws.likely

    def gather(self, rows: Sequence[Row], rng: Rng) -> Population:
        """What one generation's rows are to each other; by default each is an output of its own."""
        return Population()

    def judge(self, draft: Draft, law: _RowLaw, rng: Rng) -> RowVerdict:
        """Judge one row; `law(node)` is p `[vocab]` at a node (0 = anchor). Enough for most verifiers."""
        raise NotImplementedError(f"verifier '{self.name}' implements neither verify() nor judge()")


class _RowLaw:
    """The target's law at the nodes of one row."""

    def __init__(self, laws: Laws, index: int) -> None:
        self._laws, self._index = laws, index

    def __call__(self, node: int) -> Tensor:
        """p `[vocab]` float64 at `node` (0 = anchor, j + 1 = node j of the draft)."""
        forest = self._laws.forest
        nodes = torch.zeros(len(forest.rows), dtype=torch.int64, device=forest.device)
        nodes[self._index] = node
        active = torch.zeros(len(forest.rows), dtype=torch.bool, device=forest.device)
        active[self._index] = True
        return self._laws.p(nodes, forest.shapes[self._index].depths[node], active)[self._index]


class Scheduler(Part):
    """Owns effort: how much to draft, decided from the past only, so that it cannot bias the law.

    measures_time: budgets depend on measured time, so they differ from run to run.
    """

    role = "scheduler"

    measures_time: bool = False

    @abstractmethod
    def begin(self, context: Context, drafts: bool) -> ScheduleSession:
        """Start one generation; `drafts` is False where the drafter never guesses."""


class ScheduleSession(ABC):
    """One generation's budgets."""

    @abstractmethod
    def plan(self, rows: Sequence[Row]) -> Budget:
        """The budget of the next round, before the engine cuts it to each row's room."""

    def observe(self, event: Round) -> None:  # noqa: B027 - optional by design
        """Learn what the last round cost and what it emitted."""


class Target(Part):
    """Owns the model and its cache."""

    role = "target"

    caps: Caps
    vocab_size: int
    device: torch.device
    context_length: int | None = None  # positions for which the model was made, if that is known
    compiles: bool | str = False  # how its passes are run, and so should be those of models that drafters run

    @abstractmethod
    def begin(self, rows: Sequence[Row], needs: Needs) -> TargetSession:
        """Start one generation; nothing has run yet."""

    def features(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of `names` that this target can deliver."""
        return ()

    def shared(self, name: str) -> torch.nn.Module | None:
        """The module that drafters may share under `name`, or None."""
        return None


class TargetSession(ABC):
    """One generation's passes over the target."""

    widths: tuple[int, ...] = ()  # nodes of a row to which passes are padded, ascending; wider ones are not

    @abstractmethod
    def prefill(self) -> Scores:
        """The pass over the prompts; logits `[rows, 1, vocab]` of each row's last token, its first anchor."""

    @abstractmethod
    def score(self, forest: Forest) -> Scores:
        """ONE pass over anchors and drafts. Changes nothing that a caller can see."""

    @abstractmethod
    def commit(self, outcomes: Sequence[Outcome], live: Sequence[Row]) -> None:
        """Keep exactly the tokens of each row but the last; only `live` rows will be scored again."""

    def lend(self, layers: Sequence[int]) -> Any:
        """Passes of the target's `layers` alone, from embedding to LM head, over the target's own cache.

        For drafters that need the shared "layers". The object given has `length(row)`, `extend(rows, tokens, parents)`
        and `drop(rows)`, rows named by index; see `targets.layers.Lent`. What is run must be dropped again before the
        next `score`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not lend its layers")

    def follow(self, ancestors: Mapping[int, int], live: Sequence[Row]) -> None:
        """Rows, by index, have gone on from the text of other rows, as they were; only `live` rows are scored again.

        Called after `commit`, and only for targets with `caps.forks`. A row that had ended may live again.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot let a row go on from another row's text")
