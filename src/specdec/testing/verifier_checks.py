"""What every verifier must keep besides its law: paths, scratch, end tokens, ties, and rows to themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.core.contracts import Exactness
from specdec.core.draft import Kind
from specdec.core.engine import Generation
from specdec.core.forest import Forest
from specdec.core.interfaces import Verifier
from specdec.core.rng import Rng, TorchRng
from specdec.core.sampling import Laws, Sampling
from specdec.core.verdict import Verdict
from specdec.schedulers.fixed import Fixed
from specdec.testing.harness import FULL, finish, generation_of
from specdec.testing.honest import TableDrafter
from specdec.testing.laws import HashTable
from specdec.testing.scripted import Forests, likely
from specdec.testing.subject import Subject
from specdec.testing.tabular import TabularTarget
from specdec.testing.trial import Failure, NotApplicable, Trial, applies, reason_of
from specdec.testing.verifier_laws import KINDS, TIES

__all__ = ["VERIFIER"]

PROMPTS = ((1, 0), (2,), (0, 2, 1), (2, 2))


class Observed(Verifier):
    """Hands every verdict of another verifier to a function before the engine sees it."""

    def __init__(self, inner: Any, look: Callable[[Forest, Laws, Any], None]) -> None:
        self.inner, self.look = inner, look
        self.name = inner.name  # type: ignore[misc]
        self.judges, self.branching, self.rejects = inner.judges, inner.branching, inner.rejects

    def verify(self, forest: Forest, laws: Laws, rng: Rng) -> Verdict:
        verdict = self.inner.verify(forest, laws, rng)
        self.look(forest, laws, verdict)
        return verdict  # type: ignore[no-any-return]


# Shapes of forests that are ragged when rows have different room, with nodes that may be scratch.
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((-1, 0, 1), ()),
    ((-1, 0, 1), (2,)),
    ((-1, 0, 1), (0, 1, 2)),
    ((-1, -1, 0, 0, 1), ()),
    ((-1, -1, 0, 0, 1), (0, 2, 3)),
    ((-1, -1, -1, 1, 3, 0), (0, 5)),
    ((-1, -1, -1, 2, 2, 4, 4), (1, 4, 5, 6)),
)


def look_at_verdicts(
    subject: Subject,
    look: Callable[[Forest, Laws, Any], None],
    seeds: int = 8,
    *,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    eos: Sequence[int] = (),
    processors: tuple[Any, ...] = (),
) -> int:
    """Run batches of ragged forests and show every verdict to `look`; returns how many forests were drafted."""
    count = 0
    for parents, scratch in SHAPES:
        drafter = Forests(FULL, parents, scratch)
        if drafter.branching and not subject.sample.branching:
            continue
        for seed in range(seeds):
            observed = Observed(subject.make(3), look)
            for greedy in (False, True):
                sampling = Sampling(processors, not processors, greedy, strict=bool(processors))
                generation = generation_of(
                    TabularTarget(FULL, 3), drafter, observed, Fixed(4, 64), prompts, (9, 4, 12, 6), TorchRng(seed),
                    sampling=sampling, eos=eos,
                )  # fmt: skip
                _finish_named(generation)
                count += 1
    return count


def _finish_named(generation: Generation) -> None:
    try:
        finish(generation)
    except Failure:
        raise
    except Exception as error:
        raise Failure(reason_of(error)) from error


def _points(subject: Subject) -> None:
    if Kind.POINT not in subject.sample.judges:
        raise NotApplicable("it judges no POINT candidates, of which the forests of this check are made")


def interface(subject: Subject, trial: Trial) -> str:
    """verify() gives a Verdict of int64 tensors, one leaf and one token a row, the token within the vocabulary."""
    verifier = subject.sample
    if not verifier.judges or not all(isinstance(kind, Kind) for kind in verifier.judges):
        raise Failure(f"judges is {verifier.judges!r}; expected a frozenset of Kind")
    if not isinstance(verifier.exactness, Exactness):
        raise Failure(f"exactness is {verifier.exactness!r}; expected an Exactness")

    def look(forest: Forest, laws: Laws, verdict: Any) -> None:
        if not isinstance(verdict, Verdict):
            raise Failure(f"verify() returned {type(verdict).__name__}; expected a Verdict")
        for name in ("leaf", "next_token"):
            value = getattr(verdict, name)
            if not isinstance(value, Tensor) or value.shape != (len(forest.rows),) or value.dtype != torch.int64:
                given = f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
                raise Failure(f"verify() returned {name} as {given}; expected int64 [{len(forest.rows)}], one a row")
        for row, token in enumerate(verdict.next_token.tolist()):
            if not 0 <= token < laws.vocab_size:
                raise Failure(
                    f"verify() returned next_token {token} in row {row}; the vocabulary has {laws.vocab_size}"
                )

    if Kind.POINT in verifier.judges:
        return f"{look_at_verdicts(subject, look, seeds=2)} generations"
    style = "iid" if Kind.IID in verifier.judges else "no-replace"
    for seed in range(4):
        drafter = TableDrafter(FULL, style, (1, 1, 1))  # type: ignore[arg-type]
        _finish_named(
            generation_of(
                TabularTarget(FULL, 3), drafter, Observed(subject.make(3), look), Fixed(3, 8), PROMPTS, 9,
                TorchRng(seed),
            )
        )  # fmt: skip
    return "4 generations"


@applies(_points)
def root_path(subject: Subject, trial: Trial) -> str:
    """The leaf is the anchor or a node of the row's own draft, never padding."""

    def look(forest: Forest, laws: Laws, verdict: Any) -> None:
        for row, leaf in enumerate(verdict.leaf.tolist()):
            if not 0 <= leaf <= len(forest.drafts[row]):
                raise Failure(
                    f"verify() returned leaf {leaf} in row {row}, whose draft has {len(forest.drafts[row])} nodes",
                    f"parents of the rows={[shape.parents for shape in forest.shapes]}",
                )

    return f"{look_at_verdicts(subject, look)} generations of ragged batches"


@applies(_points)
def scratch(subject: Subject, trial: Trial) -> str:
    """A scratch node is never kept."""

    def look(forest: Forest, laws: Laws, verdict: Any) -> None:
        for row, leaf in enumerate(verdict.leaf.tolist()):
            shape = forest.shapes[row]
            if 0 < leaf <= len(shape.parents) and leaf - 1 in shape.scratch:
                raise Failure(
                    f"verify() kept scratch node {leaf - 1} of row {row}",
                    f"parents={shape.parents}\nscratch={sorted(shape.scratch)}\ntokens={forest.tokens[row].tolist()}",
                )

    return f"{look_at_verdicts(subject, look)} generations"


@applies(_points)
def end_token(subject: Subject, trial: Trial) -> str:
    """No law is asked for below a token that ends its row: grammars would refuse such a prefix."""

    def processor(prefix: Tensor, scores: Tensor) -> Tensor:
        if bool((prefix == 0).any()):
            raise Failure(
                "verify() asked for the law after a prefix that an end token has ended",
                f"prefix={prefix[0].tolist()}\neos=0",
            )
        return scores

    def look(forest: Forest, laws: Laws, verdict: Any) -> None:
        return None

    prompts = ((1, 2), (2,), (1, 1, 2), (2, 2))
    count = look_at_verdicts(subject, look, prompts=prompts, eos=(0,), processors=(processor,))
    return f"{count} generations with a strict processor"


def _not_a_limit(subject: Subject) -> None:
    if subject.sample.exactness is Exactness.CONSISTENT:
        raise NotApplicable("it declares consistent: equal in a limit only")


@applies(_not_a_limit)
def greedy_limit(subject: Subject, trial: Trial) -> str:
    """At temperature 0 the text is argmax decoding's, the lowest id first among equal logits."""
    count = 0
    for p, q in ((FULL, TIES), (TIES, TIES), (TIES, FULL), (HashTable(((0, 1, 1), (5, 5, 0))), TIES)):
        for style, kinds in KINDS.items():
            if not kinds <= subject.sample.judges:
                continue
            for shape in ((1, 1), (2, 2), (3, 1)) if subject.sample.branching else ((1, 1), (1, 1, 1)):
                if style == "mixed" and max(shape) == 1:
                    continue
                drafter = TableDrafter(q, style, shape)  # type: ignore[arg-type]
                generation = generation_of(
                    TabularTarget(p, 3), drafter, subject.make(3), Fixed(3, 64), PROMPTS[:2], 8, TorchRng(count),
                    sampling=Sampling(greedy=True),
                )  # fmt: skip
                _finish_named(generation)
                for row in generation.rows:
                    text = list(PROMPTS[row.index])
                    while len(text) < row.max_length:
                        text.append(likely(p, tuple(text))[0])
                    if text != list(row.tokens):
                        raise Failure(
                            f"at temperature 0 the text after {PROMPTS[row.index]} is {row.new_tokens}; argmax "
                            f"decoding gives {text[row.prompt_length :]}",
                            f"p={p.entries}\nq={q.entries}\n{style} candidates, children by depth={shape}",
                        )
                count += 1
    return f"{count} drafts, ties among them"


def row_independence(subject: Subject, trial: Trial) -> str:
    """A row's text does not depend on the rows beside it."""
    styles = [style for style, kinds in KINDS.items() if style != "mixed" and kinds <= subject.sample.judges]
    for style in styles:
        for shape in ((1, 1, 1), (2, 2)) if subject.sample.branching else ((1, 1, 1),):
            for seed in range(6):
                drafter = TableDrafter(TIES, style, shape)  # type: ignore[arg-type]
                made = [subject.make(3) for _ in range(2)]

                def start(verifier: Any, prompts: Any, limits: Any, seed: int = seed, d: Any = drafter) -> Any:
                    generation = generation_of(
                        TabularTarget(FULL, 3), d, verifier, Fixed(3, 64), prompts, limits, TorchRng(seed), eos=()
                    )
                    _finish_named(generation)
                    return generation

                limits = (9, 3, 12, 6)
                together = start(made[0], PROMPTS, limits)
                for row, (prompt, limit) in enumerate(zip(PROMPTS, limits, strict=True)):
                    alone = start(made[1], [prompt], limit).rows[0].new_tokens
                    if alone != together.rows[row].new_tokens:
                        raise Failure(
                            f"row {row} gives {together.rows[row].new_tokens} in a batch of 4 and {alone} alone",
                            f"prompt={prompt}\nseed={seed}\n{style} candidates, children by depth={shape}",
                        )
    return f"batches of 4 rows, {', '.join(styles)} candidates"


class EdgeRng(TorchRng):
    """Uniforms at the edge of their range: all 0, or all just below 1."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def _uniform(self, key: Any) -> float:
        return self._value

    def fold(self, *key: int) -> EdgeRng:
        return EdgeRng(self._value)


def impossible_tokens(subject: Subject, trial: Trial) -> str:
    """A token that the target cannot say is never emitted, not even where a uniform is 0."""
    p = HashTable(((0, 1, 1), (0, 3, 1)))
    for value in (0.0, 1.0 - 2.0**-52):
        for style, kinds in KINDS.items():
            if not kinds <= subject.sample.judges or (style == "mixed" and not subject.sample.branching):
                continue
            for q in (HashTable(((1, 0, 0),)), HashTable(((5, 1, 1), (2, 1, 0)))):
                shape = (2, 1) if style == "mixed" else (1, 1)
                drafter = TableDrafter(q, style, shape)  # type: ignore[arg-type]
                rng = EdgeRng(value)
                generation = generation_of(
                    TabularTarget(p, 3), drafter, subject.make(3), Fixed(2, 64), [(1, 0)], 9, rng
                )
                _finish_named(generation)
                if 0 in generation.rows[0].new_tokens:
                    raise Failure(
                        f"token 0 was emitted, which has probability 0; all uniforms were {value}",
                        f"p={p.entries}\nq={q.entries}\n{style} candidates\ntext={generation.rows[0].new_tokens}",
                    )
    return "uniforms of 0 and of almost 1"


VERIFIER: dict[str, Callable[[Subject, Trial], str]] = {
    "interface": interface,
    "root-path": root_path,
    "scratch": scratch,
    "end-token": end_token,
    "greedy-limit": greedy_limit,
    "row-independence": row_independence,
    "impossible-tokens": impossible_tokens,
}
