"""Counting passes of a drafter over a rule that says what follows a text."""

from __future__ import annotations

from specdec.core.sampling import Sampling
from specdec.schedulers import Fixed
from specdec.testing.harness import finish, generation_of
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Greedy

VOCAB = 10


def passes(say, prompt, new, drafter, vocab=VOCAB):
    """Passes until `new` tokens are there, the prompt's included; fails where the text is not what `say` says."""

    def table(prefix):
        law = [0.0] * vocab
        law[say(list(prefix))] = 1.0
        return law

    generation = generation_of(
        TabularTarget(table, vocab), drafter, Greedy(), Fixed(64, 4096), [tuple(prompt)], new,
        sampling=Sampling(greedy=True),
    )  # fmt: skip
    (got,) = finish(generation)
    text = list(prompt)
    for token in got:
        assert token == say(text)
        text.append(token)
    assert len(got) == new
    return generation.recorder.stats.target_passes
