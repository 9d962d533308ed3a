"""What every drafter must keep: its declarations, its budget, its rows to themselves, and the target's law."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from specdec.core.draft import ANCHOR, Draft, Kind
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget
from specdec.testing.harness import BUDGETS, FULL, RULES, Call, Cycle, Spy, finish, generation_of, rules_for, target_for
from specdec.testing.laws import HashTable
from specdec.testing.subject import Subject
from specdec.testing.trial import Failure, NotApplicable, Trial, reason_of

__all__ = ["CONTRACT"]

PROMPTS = ((0, 1, 2, 0, 1), (1, 0), (2, 1, 2))
WIDE = HashTable(tuple((3, 1, 2, 4, 1)[at:] + (3, 1, 2, 4, 1)[:at] for at in range(5)))


def scenarios(subject: Subject) -> Iterator[tuple[HashTable, Sequence[Sequence[int]], Sampling, int, int]]:
    """Tables, prompts, sampling, start of the budgets and seed of the runs in which drafts are looked at."""
    sampled, greedy = Sampling(greedy=False), Sampling(greedy=True)
    yield FULL, PROMPTS, sampled, 0, 0
    yield FULL, PROMPTS[:1], greedy, 3, 1
    if not subject.heavy:
        for start in range(0, len(BUDGETS), 2):
            yield WIDE, PROMPTS, sampled, start, start
            yield FULL, PROMPTS[1:], sampled, start, start + 1


def observed(subject: Subject) -> list[Spy]:
    """The spies of all scenarios; invalid drafts are kept by them and not handed to the engine."""
    spies = []
    for table, prompts, sampling, start, seed in scenarios(subject):
        spy = Spy(subject.make(table.vocab_size))
        spies.append(spy)
        verifier = RULES[rules_for(spy)[0]]()
        target = target_for(subject, table)
        generation = generation_of(
            target, spy, verifier, Cycle(start=start), prompts, 20, TorchRng(seed), sampling=sampling
        )
        try:
            finish(generation)
        except Failure:
            raise
        except Exception as error:
            if not spy.calls or spy.calls[-1].error is None:
                raise Failure(reason_of(error)) from error
    return spies


def drafts_of(subject: Subject) -> Iterator[tuple[Call, Budget, Draft, int, bool]]:
    """Every draft that was returned, with its call, budget, the vocabulary, and whether its row was greedy."""
    some, error = False, None
    for spy, (table, _, sampling, _, _) in zip(observed(subject), scenarios(subject), strict=True):
        for call in spy.calls:
            error = error or call.error
            for _, budget, draft in call.drafts():
                if isinstance(draft, Draft):
                    some = True
                    yield call, budget, draft, table.vocab_size, sampling.greedy
    if not some:
        raise Failure(f"propose() returned no Draft to look at{': ' + reason_of(error) if error else ''}")


def _shown(call: Call, budget: Budget, draft: Draft) -> str:
    tokens = draft.tokens.tolist() if isinstance(draft.tokens, Tensor) else draft.tokens
    lines = [f"rows={call.prefixes}", f"budget=depth {budget.depth}, nodes {budget.nodes}"]
    lines += [f"draft: tokens={tokens}", f"parents={draft.parents}", f"kinds={[kind.name for kind in draft.kinds]}"]
    if draft.scratch:
        lines.append(f"scratch={sorted(draft.scratch)}")
    return "\n".join(lines)


def first_fault(subject: Subject, fault: Callable[[Budget, Draft, int], str]) -> str:
    """Fail with the smallest draft in which `fault` finds something; else say how many were looked at."""
    worst: tuple[int, str, str] | None = None
    count = nodes = 0
    for call, budget, draft, vocab, _ in drafts_of(subject):
        count, nodes = count + 1, nodes + len(draft)
        if found := fault(budget, draft, vocab):
            text = _shown(call, budget, draft)
            if worst is None or len(text) < worst[0]:
                worst = (len(text), found, text)
    if worst is not None:
        raise Failure(worst[1], worst[2])
    return f"{count} drafts with {nodes} nodes"


def interface(subject: Subject, trial: Trial) -> str:
    """begin() gives a session; propose() gives one Draft a row, and raises nothing."""
    drafter = subject.sample
    emits = drafter.emits
    if not isinstance(emits, (frozenset, set)) or not emits or not all(isinstance(kind, Kind) for kind in emits):
        raise Failure(f"emits is {emits!r}; expected a frozenset of Kind")
    count = 0
    for spy in observed(subject):
        for call in spy.calls:
            count += 1
            if call.error is not None:
                raise Failure(f"propose() raised {reason_of(call.error)}", f"rows={call.prefixes}\n{call.budgets}")
            returned = call.returned
            if not isinstance(returned, (list, tuple)):
                raise Failure(f"propose() returned {type(returned).__name__}; expected a list of Draft, one a row")
            if len(returned) != len(call.rows):
                raise Failure(f"propose() returned {len(returned)} drafts; expected {len(call.rows)}, one a row")
            if wrong := [draft for draft in returned if not isinstance(draft, Draft)]:
                raise Failure(f"propose() returned {type(wrong[0]).__name__} for a row; expected a Draft")
    return f"{count} calls of propose()"


def kinds(subject: Subject, trial: Trial) -> str:
    """Every candidate is of a declared kind, and a law q stands where candidates were drawn, and only there."""
    drafter = subject.sample

    def fault(budget: Budget, draft: Draft, vocab: int) -> str:
        held = {*draft.kinds, *(extra.kind for extra in draft.repeats)}
        if undeclared := sorted(kind.name for kind in held - drafter.emits):
            declared = ", ".join(sorted(kind.name for kind in drafter.emits))
            return f"propose() returned {', '.join(undeclared)} candidates; the drafter declares emits {declared}"
        if len(draft) and not drafter.drafts:
            return "propose() returned a guess; the drafter declares drafts=False"
        sampled = any(kind.sampled for kind in held)
        if sampled != (draft.q is not None):
            return "candidates that were drawn need their law q" if sampled else "q without drawn candidates"
        return _fault_of_q(draft, vocab) if draft.q is not None else ""

    return first_fault(subject, fault)


def _fault_of_q(draft: Draft, vocab: int) -> str:
    q = draft.q
    assert q is not None
    if q.ndim != 2 or q.shape[1] != vocab:
        return f"q has shape {list(q.shape)}; expected [up to nodes + 1, {vocab}]"
    for node, kind in enumerate(draft.kinds):
        if not kind.sampled:
            continue
        at = draft.parents[node] + 1
        if not 0 <= at < len(q):
            return f"q has {len(q)} rows; node {node} was drawn from row {at}"
        law = q[at].double()
        if float(law.min()) < 0 or not abs(float(law.sum()) - 1.0) < 1e-4:
            return f"row {at} of q is no law: it sums to {float(law.sum()):.6g}, its least entry is {float(law.min())}"
        token = int(draft.tokens[node])
        if 0 <= token < vocab and float(law[token]) <= 0.0:
            return f"node {node} holds token {token}, which its law q cannot give"
    return ""


def budget(subject: Subject, trial: Trial) -> str:
    """No draft is deeper or larger than its budget; an empty budget gives an empty draft."""

    def fault(budget: Budget, draft: Draft, vocab: int) -> str:
        count = len(draft.tokens)
        if count and (budget.depth == 0 or budget.nodes == 0):
            return f"propose() returned {count} nodes; the budget is empty, so an empty draft was due"
        if count > budget.nodes:
            return f"propose() returned {count} nodes; the budget allows {budget.nodes}"
        depths: list[int] = []
        for node, parent in enumerate(draft.parents):
            depths.append(1 if not 0 <= parent < node else depths[parent] + 1)
        judged = [depth for node, depth in enumerate(depths) if node not in draft.scratch]
        if judged and max(judged) > budget.depth:
            return f"propose() returned a draft {max(judged)} deep; the budget allows {budget.depth}"
        if depths and max(depths) > (most := max(budget.depth, budget.reach)):
            return f"propose() returned scratch nodes {max(depths)} deep; the budget allows {most}"
        return ""

    return first_fault(subject, fault)


def ids(subject: Subject, trial: Trial) -> str:
    """Every token is an id of the target's vocabulary."""

    def fault(budget: Budget, draft: Draft, vocab: int) -> str:
        tokens = draft.tokens
        if isinstance(tokens, Tensor) and (tokens.ndim != 1 or tokens.is_floating_point()):
            return f"tokens are a tensor {list(tokens.shape)} of {tokens.dtype}; expected [nodes] int64"
        for token in tokens.tolist() if isinstance(tokens, Tensor) else tokens:
            if not isinstance(token, Integral):
                return f"token {token!r} is a {type(token).__name__}; expected an id"
            if not 0 <= int(token) < vocab:
                return f"token id {token} is outside the vocabulary of {vocab}"
        return ""

    return first_fault(subject, fault)


def parents(subject: Subject, trial: Trial) -> str:
    """Parents come before their children, one a node; a drafter that declares chains drafts chains."""
    branching = subject.sample.branching

    def fault(budget: Budget, draft: Draft, vocab: int) -> str:
        if not len(draft.tokens) == len(draft.parents) == len(draft.kinds):
            return (
                f"{len(draft.tokens)} tokens, {len(draft.parents)} parents, {len(draft.kinds)} kinds: one each a node"
            )
        for node, parent in enumerate(draft.parents):
            if not ANCHOR <= parent < node:
                return f"node {node} has parent {parent}; expected {ANCHOR} (the anchor) or an earlier node"
        try:
            shape = draft.topology
        except ValueError as error:
            return str(error)
        if not shape.is_chain and not branching:
            return "propose() returned a tree; the drafter declares branching=False"
        return ""

    return first_fault(subject, fault)


def rows_untouched(subject: Subject, trial: Trial) -> str:
    """Neither begin() nor propose() writes to a row."""
    count = 0
    for spy in observed(subject):
        changed = list(spy.changed)
        for call in spy.calls:
            count += 1
            changed += call.changed
            if isinstance(call.error, TypeError) and "row's tokens cannot be changed" in str(call.error):
                changed.append(f"propose() tried to write to the tokens of a row: {call.error}")
        if changed:
            raise Failure(changed[0])
    return f"{count} calls of propose()"


def scratch_never_accepted(subject: Subject, trial: Trial) -> str:
    """No verifier that can judge these drafts keeps a node that is scratch."""
    count = 0
    for table, prompts, sampling, start, seed in scenarios(subject):
        for rule in rules_for(subject.sample):
            spy = Spy(subject.make(table.vocab_size))
            generation = generation_of(
                target_for(subject, table), spy, RULES[rule](), Cycle(start=start), prompts, 16, TorchRng(seed),
                sampling=sampling,
            )  # fmt: skip
            for event in generation.rounds():
                for outcome in event.rows:
                    count += len(outcome.draft.scratch)
                    if kept := {node - 1 for node in outcome.path} & outcome.draft.scratch:
                        raise Failure(f"verifier '{rule}' kept scratch nodes {sorted(kept)}", str(outcome.draft))
    if not count:
        raise NotApplicable("it drafts no scratch nodes")
    return f"{count} scratch nodes"


def random_state() -> tuple[Any, ...]:
    """State of the global generators of Python and torch."""
    import random

    return random.getstate(), torch.random.get_rng_state().tolist()


CONTRACT: dict[str, Callable[[Subject, Trial], str]] = {
    "interface": interface,
    "kinds": kinds,
    "budget": budget,
    "ids": ids,
    "parents": parents,
    "rows-untouched": rows_untouched,
    "scratch-never-accepted": scratch_never_accepted,
}
