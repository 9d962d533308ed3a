"""Examples for law checks: tables over tiny vocabularies, made by Hypothesis, and sampling transforms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specdec.core.sampling import Sampling
from specdec.testing.trial import hypothesis

__all__ = ["HashTable", "LawCase", "drafter_cases", "sampling_for", "tables"]


@dataclass(frozen=True)
class HashTable:
    """A law for every prefix: the entry that a fixed hash of the prefix picks.

    certain: prefixes after which one token is certain, to spare branches: pairs of prefix and token.
    """

    entries: tuple[tuple[int, ...], ...]
    certain: tuple[tuple[tuple[int, ...], int], ...] = ()

    @property
    def vocab_size(self) -> int:
        return len(self.entries[0])

    def __call__(self, prefix: tuple[int, ...]) -> tuple[int, ...]:
        for known, token in self.certain:
            if prefix == known:
                return tuple(int(other == token) for other in range(self.vocab_size))
        mixed = 17
        for token in prefix:
            mixed = (mixed * 31 + token + 1) % 10007
        return self.entries[mixed % len(self.entries)]

    def opening(self, prompt: tuple[int, ...], token: int) -> HashTable:
        """The same table with `token` certain after `prompt`."""
        return HashTable(self.entries, (*self.certain, (prompt, token)))


def tables(vocab: int, size: int = 4) -> Any:
    """Hypothesis strategy of tables: laws of full support, near-degenerate and one-hot ones, and zeros."""
    st = hypothesis().strategies

    full = st.tuples(*[st.integers(1, 7)] * vocab)
    spread = st.tuples(*[st.integers(0, 7)] * vocab).filter(any)
    one_hot = st.integers(0, vocab - 1).map(lambda hot: tuple(int(i == hot) for i in range(vocab)))
    lopsided = st.integers(0, vocab - 1).map(lambda big: tuple(10**6 if i == big else 1 for i in range(vocab)))
    return st.tuples(*[st.one_of(full, full, full, spread, lopsided, one_hot)] * size).map(HashTable)


@dataclass(frozen=True)
class LawCase:
    """One example of a law check; its text is the counterexample that reports show.

    rounds: rounds that are enumerated after the prompt's; later tokens follow the target's law by themselves.
    """

    p: HashTable
    q: HashTable | None = None
    prompt: tuple[int, ...] = (1, 0)
    shape: tuple[int, ...] = ()
    depth: int = 1
    nodes: int = 1
    rounds: int = 1
    temperature: float = 1.0
    penalty: bool = False
    eos: tuple[int, ...] = ()
    rule: str = field(default="", compare=False)

    @property
    def length(self) -> int:
        """Tokens whose joint law is compared: all that one full round can emit, and one more."""
        return 2 + self.depth + (self.rounds > 1)

    def __repr__(self) -> str:
        parts = [f"p={self.p.entries}", f"prompt={self.prompt}", f"first token={dict(self.p.certain)}"]
        if self.q is not None:
            parts.append(f"q={self.q.entries}")
        if self.shape:
            parts.append(f"children by depth={self.shape}")
        parts += [f"depth={self.depth}", f"nodes={self.nodes}", f"rounds={self.rounds}"]
        if self.temperature != 1.0:
            parts.append(f"temperature={self.temperature}")
        if self.penalty:
            parts.append("processor=penalty on the last two tokens")
        if self.eos:
            parts.append(f"eos={self.eos}")
        if self.rule:
            parts.append(f"verifier={self.rule}")
        return "\n".join(parts)


def sampling_for(case: LawCase) -> Sampling:
    """The sampling transform of a case."""
    processors: tuple[Any, ...] = (_penalty,) if case.penalty else ()
    if case.temperature != 1.0:
        processors = (*processors, lambda prefix, scores: scores / case.temperature)
    plain = not case.penalty
    return Sampling(processors, plain, greedy=False, mirrored=processors, mirrored_elementwise=plain)


def _penalty(prefix: Tensor, scores: Tensor) -> Tensor:
    """A processor that looks at the prefix: tokens seen in the last two places are less likely."""
    scores = scores.clone()
    for row in range(len(prefix)):
        for token in {int(at) for at in prefix[row, -2:]}:
            scores[row, token] -= 1.0
    return scores


# Vocabulary, depth, nodes and rounds of which every random branch can be run.
SIZES = ((3, 1, 1, 2), (3, 2, 2, 1), (2, 2, 2, 2), (3, 2, 3, 1), (2, 3, 3, 1), (3, 3, 3, 1), (2, 2, 4, 1))
PROMPTS = ((1, 0), (0, 1, 0), (0, 1, 1, 0, 1), (1,))


def drafter_cases(rules: tuple[str, ...], ends: bool) -> Any:
    """Hypothesis strategy of cases for drafters; with `ends`, one token ends the row."""
    st = hypothesis().strategies

    @st.composite
    def case(draw: Any) -> LawCase:
        vocab, depth, nodes, rounds = draw(st.sampled_from(SIZES))
        prompt = draw(st.sampled_from(PROMPTS))
        table = draw(tables(vocab)).opening(prompt, draw(st.integers(0, 1)))
        return LawCase(
            table,
            prompt=prompt,
            depth=depth,
            nodes=nodes,
            rounds=rounds,
            temperature=draw(st.sampled_from([1.0, 1.0, 0.5, 2.0])),
            penalty=draw(st.booleans()),
            eos=(vocab - 1,) if ends else (),
            rule=draw(st.sampled_from(rules)),
        )

    return case()
