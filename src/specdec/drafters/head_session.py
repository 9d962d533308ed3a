"""One generation's drafting with an EAGLE head, whose cache holds the text with the target's true states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.draft import Draft, Kind
from specdec.core.interfaces import DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Outcome, Row
from specdec.drafters.growth import Children, Frontier, grow, likeliest, widths
from specdec.drafters.proposal import laws, mirrored
from specdec.drafters.sampled_tree import Step
from specdec.drafters.sampled_tree import grow as grow_sampled
from specdec.drafters.shares import Shares
from specdec.drafters.tree_shape import TreeShape, best_shape, tree_shape
from specdec.heads.cached import CachedHead
from specdec.heads.decoder import DecoderHead
from specdec.targets.branches import Branches
from specdec.targets.cached_lm import CachedLM
from specdec.targets.cached_session import CachedSession

_DRAW = 7


class HeadSession(DraftSession):
    """Entry t of a row's cache is the pair (token t + 1, the target's state t), so it holds all tokens but one.

    States come with each outcome and wait until the row is drafted for; then they enter the cache in one pass of the
    head, which is also the first step of the draft. What is run beyond that is dropped after the draft.

    Where the states of the first tokens are not there, because an earlier turn's cache is continued, the head begins
    after them. A row whose states and tokens do not match, which no engine of ours makes, is decoded plainly.
    """

    def __init__(self, head: DecoderHead, context: Context, depth: int, nodes: int, top_k: int, sampled: bool) -> None:
        prompts = [context.prefill.features[name] for name in head.features]  # a feature, a row: [tokens, size]
        states = [torch.cat(parts, -1) for parts in zip(*prompts, strict=True)]
        self._head: DecoderHead = head.serving(context.shared, states[0].device, states[0].dtype)  # type: ignore[assignment]
        self._context, self._depth, self._nodes, self._sampled = context, depth, nodes, sampled
        self._fan, self._tree = min(top_k, head.vocab_size), top_k > 1
        lm = CachedHead(self._head)
        self._lm = lm.compiled(context.compiles)
        self._session: CachedSession | None = None
        self._place = {row.index: place for place, row in enumerate(context.rows)}  # its number in the session
        self._live = set(self._place)
        # A row's first token whose state there is, and the states that are not in the cache yet, [tokens, size] each.
        self._first = {
            row.index: row.prompt_length - len(known) for row, known in zip(context.rows, states, strict=True)
        }
        self._given = {row.index: [known] for row, known in zip(context.rows, states, strict=True)}
        self._last: dict[int, Tensor] = {}  # the head's state behind the last entry, [width]
        self._values: dict[int, Sequence[float] | Tensor] = {}  # of the nodes of the last drafts, by row
        self._shares: dict[int, Shares] = {}  # of rows for which trees are drawn
        self._samplings = mirrored(context.rows)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.row.index in self._shares:
                self._shares[outcome.row.index].observe(outcome)
            if outcome.row.rounds <= 1 or not outcome.tokens:
                continue  # the pass over the prompts, which is known, or a row that stood still
            parts = [outcome.features(name) for name in self._head.features]
            # No view of a whole pass, which would live as long.
            self._given[outcome.row.index].append(parts[0].clone() if len(parts) == 1 else torch.cat(parts, -1))

    def follow(self, ancestors: Mapping[int, int]) -> None:
        given, last = dict(self._given), dict(self._last)
        for row, source in ancestors.items():
            self._shares.pop(row, None)
            self._given[row] = list(given[source])
            if source in last:
                self._last[row] = last[source]
        self._live |= set(ancestors)
        if self._session is not None:
            self._session.follow({self._place[row]: self._place[source] for row, source in ancestors.items()})

    def confidences(self, row: Row) -> Tensor | None:
        """Products along each path of the head's probabilities; of drafts that were drawn, nothing."""
        values = self._values.get(row.index)
        return None if values is None else torch.as_tensor(values).exp()

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        cut = [self._cut(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        active = [place for place, budget in enumerate(cut) if budget.depth]
        drafts = [Draft.empty()] * len(rows)
        self._values = {}
        if not active:
            return drafts
        drafting, limits = [rows[place] for place in active], [cut[place] for place in active]
        if self._session is None:
            self._open()
        self._retire(rows)
        states = self._catch_up(drafting)
        if not self._sampled or self._context.greedy:
            made = self._likeliest(drafting, limits, states)
        else:
            made = self._drawn(drafting, limits, states, rng.fold(_DRAW))
        for place, draft in zip(active, made, strict=True):
            drafts[place] = draft
        return drafts

    def _cut(self, row: Row, budget: Budget) -> Budget:
        """The row's budget within the drafter's own limits; nothing where its states do not fit its tokens."""
        depth, nodes = min(budget.depth, self._depth, budget.nodes), min(budget.nodes, self._nodes)
        given = sum(map(len, self._given[row.index]))
        held = 0 if self._session is None else self._session.length(self._place[row.index])
        if not given + held or len(row.tokens) - 1 - self._first[row.index] != given + held:
            depth = nodes = 0
        return replace(budget, depth=depth, nodes=nodes)

    # --- the cache

    def _open(self) -> None:
        """Start the head's cache; where there are several rows, with their prompts, which rows of a group share."""
        rows, prompts = self._context.rows, []
        for row in rows:
            start = self._first[row.index] + 1
            prompts.append(row.tokens[start : row.prompt_length] if len(rows) > 1 else [])
        self._session = self._lm.open(prompts, [row.group for row in rows], max(row.max_length for row in rows))
        if most := max(map(len, prompts)):
            known = [self._given[row.index].pop(0) for row in rows]
            states = _padded([states[: len(prompt)] for states, prompt in zip(known, prompts, strict=True)], most)
            self._session.prefill(inputs={"states": self._head.fuse(states)})
            for row, states, prompt in zip(rows, known, prompts, strict=True):
                self._given[row.index].insert(0, states[len(prompt) :])

    def _retire(self, rows: Sequence[Row]) -> None:
        live = {row.index for row in rows}
        if self._live - live and self._session is not None:
            self._session.retire([self._place[index] for index in live])
        self._live = live

    def _catch_up(self, rows: Sequence[Row]) -> Tensor:
        """Run and keep the pairs that have become text; the head's state behind the last one, `[rows, width]`."""
        assert self._session is not None
        places = [self._place[row.index] for row in rows]
        given = [self._given[row.index] for row in rows]
        counts = [sum(map(len, states)) for states in given]
        if most := max(counts):
            new = [row.tokens[len(row.tokens) - count :] for row, count in zip(rows, counts, strict=True)]
            device = self._lm.device
            tokens = host.send([ids + [0] * (most - len(ids)) for ids in new], device)
            states = _padded([torch.cat(some) if len(some) > 1 else some[0] for some in given if some], most)
            if len(states) < len(rows):
                filled = states.new_zeros(len(rows), *states.shape[1:])
                filled[host.send([at for at, some in enumerate(given) if some], device)] = states
                states = filled
            parents = [range(-1, count - 1) for count in counts]
            out, _ = self._session.extend(places, tokens, parents, inputs={"states": self._head.fuse(states)})
            for at, (row, count) in enumerate(zip(rows, counts, strict=True)):
                self._session.commit(places[at], range(count))
                if count:
                    self._last[row.index] = out[at, count - 1]
                    given[at].clear()
        return torch.stack([self._last[row.index] for row in rows])

    # --- drafting

    def _likeliest(self, rows: Sequence[Row], budgets: Sequence[Budget], states: Tensor) -> list[Draft]:
        """Trees, or chains where the fan-out is 1, of the head's likeliest tokens."""
        assert self._session is not None
        places = [self._place[row.index] for row in rows]
        levels = widths(budgets, self._fan, self._fan)
        branches = Branches(self._session, places, levels) if levels else None
        oracle = _HeadOracle(self._head, self._lm, branches, states, self._fan)
        grown = grow(oracle, budgets, self._fan)
        if branches is not None:
            self._drop(places)
        made = grown.drafts(budgets) if self._tree else grown.chains(budgets)
        self._values = {row.index: kept.values for row, kept in zip(rows, made, strict=True)}
        return [kept.draft for kept in made]

    def _drawn(self, rows: Sequence[Row], budgets: Sequence[Budget], states: Tensor, rng: Rng) -> list[Draft]:
        """Trees of draws without replacement, or chains, from the head's law, which mirrors the target's sampling."""
        assert self._session is not None
        places, samplings = [self._place[row.index] for row in rows], [self._samplings[row.index] for row in rows]
        shapes = [self._shape(row, budget) for row, budget in zip(rows, budgets, strict=True)]
        below = [
            max(len(shape.levels[depth].nodes) for shape in shapes if depth < shape.depth)
            for depth in range(1, max(shape.depth for shape in shapes))
        ]
        branches = Branches(self._session, places, below) if below else None
        asked = states[:, None]  # [rows, columns, width]: states of the nodes asked about, the anchor's first

        def oracle(step: Step) -> Tensor:
            nonlocal asked
            if branches is not None and step.depth:
                device = asked.device
                above = asked.gather(1, step.parents.to(device)[..., None].expand(-1, -1, asked.shape[-1]))
                out = branches.step(step.tokens.to(device), step.seen.to(device), {"states": above})
                asked = torch.cat([asked, out], 1)
            with self._lm.products():
                logits = self._head.logits(asked[:, -step.width :])
            ids = self._head.draft_ids
            return laws(rows, samplings, step, logits, ids, self._context.vocab_size, self._context.device)

        kind = Kind.NO_REPLACE if self._tree else Kind.IID
        drafts = grow_sampled(shapes, oracle, kind, rng, [(row.copy, row.rounds) for row in rows])
        if branches is not None:
            self._drop(places)
        return drafts

    def _shape(self, row: Row, budget: Budget) -> TreeShape:
        """Where draws will stand, decided before anything is drawn."""
        if not self._tree:
            return tree_shape(tuple(range(-1, budget.depth - 1)))
        if row.index not in self._shares:
            self._shares[row.index] = Shares(self._fan)
        return best_shape([self._fan] * budget.depth, self._shares[row.index].values(), budget)

    def _drop(self, places: Sequence[int]) -> None:
        assert self._session is not None
        for place in places:
            self._session.commit(place, ())


class _HeadOracle:
    """What a head says may follow."""

    def __init__(self, head: DecoderHead, lm: CachedLM, branches: Branches | None, states: Tensor, fan: int) -> None:
        self._head, self._lm, self._branches, self._fan = head, lm, branches, fan
        self._states = states[:, None]  # [rows, width of the last frontier, size]

    def root(self) -> Children:
        return self._children()

    def below(self, frontier: Frontier) -> Children:
        assert self._branches is not None
        parents = frontier.parents[..., None].expand(-1, -1, self._states.shape[-1])
        states = self._states.gather(1, parents)
        self._states = self._branches.step(frontier.tokens, frontier.seen, {"states": states})
        return self._children()

    def _children(self) -> Children:
        with self._lm.products():
            logits = self._head.logits(self._states)
        ids, confidences = likeliest(logits, self._fan)
        device = self._states.device  # an LM head may lie elsewhere
        return self._head.to_target(ids).to(device), confidences.to(device)


def _padded(states: Sequence[Tensor], most: int) -> Tensor:
    """`[rows, most, size]` from tensors `[up to most, size]`."""
    if all(len(some) == most for some in states):
        return torch.stack(list(states))
    out = states[0].new_zeros(len(states), most, states[0].shape[-1])
    for at, some in enumerate(states):
        out[at, : len(some)] = some
    return out
