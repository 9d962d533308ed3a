"""A drafter of one's own in one file: written, held to the conformance kit, named in a config, and used.

python examples/write_a_plugin.py [MODEL]

It remembers which token followed each pair of tokens and guesses that the same will follow again. Nothing here can make
the text wrong: what `Draft.point` holds is checked by the target, whatever it is.

To share it, make a distribution with an entry point of the group `specdec`, and give the hook and the config a module
of their own that imports no torch: docs/plugins.md shows how.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field

from specdec import Decoder, load_model
from specdec.core.draft import Draft
from specdec.core.interfaces import Drafter, DraftSession
from specdec.core.rng import Rng
from specdec.core.state import Budget, Context, Row
from specdec.plugins import Strategy, StrategyConfig, hookimpl
from specdec.plugins.manager import PluginManager, use
from specdec.testing import check

# --- the plugin


class PairsConfig(StrategyConfig):
    """How far a memory of pairs is followed."""

    type: Literal["pairs"] = Field(default="pairs", description="Name of the strategy.")
    max_tokens: int = Field(default=8, ge=1, description="Most tokens drafted in a round.")


@hookimpl
def specdec_strategies() -> list[Strategy]:
    """The drafter `pairs`."""
    here = __name__
    summary = "Follows what came after each pair of tokens last."
    return [
        Strategy(
            role="drafter",
            name="pairs",
            config=f"{here}:PairsConfig",
            build=f"{here}:Pairs.from_config",
            api=1,
            example=f"{here}:example",
            summary=summary,
        )
    ]


class Pairs(Drafter):
    """Guesses, token by token, what came after the last two tokens when they last stood together."""

    name = "pairs"

    def __init__(self, max_tokens: int = 8) -> None:
        self._config = PairsConfig(max_tokens=max_tokens)

    @property
    def config(self) -> PairsConfig:
        return self._config

    @classmethod
    def from_config(cls, config: PairsConfig) -> Pairs:
        return cls(config.max_tokens)

    def begin(self, context: Context) -> DraftSession:
        return Memory(context, self._config.max_tokens)


class Memory(DraftSession):
    """What one generation has seen, row by row. Two calls of one decoder never share it."""

    def __init__(self, context: Context, longest: int) -> None:
        self._longest = longest
        self._after: dict[int, dict[tuple[int, int], int]] = {row.index: {} for row in context.rows}
        self._read = {row.index: 2 for row in context.rows}

    def propose(self, rows: Sequence[Row], budgets: Sequence[Budget], rng: Rng) -> Sequence[Draft]:
        return [self._draft(row, budget) for row, budget in zip(rows, budgets, strict=True)]

    def _draft(self, row: Row, budget: Budget) -> Draft:
        after, tokens = self._after[row.index], row.tokens
        for place in range(self._read[row.index], len(tokens)):
            after[tokens[place - 2], tokens[place - 1]] = tokens[place]
        self._read[row.index] = max(2, len(tokens))
        guess: list[int] = []
        pair = tuple(tokens[-2:])
        while len(guess) < min(budget.depth, budget.nodes, self._longest) and pair in after:
            guess.append(after[pair])
            pair = (pair[1], guess[-1])
        return Draft.point(guess)

    def follow(self, ancestors: Mapping[int, int]) -> None:
        """Particles were resampled: each row goes on from another's text, so from its memory too."""
        before = {index: (dict(self._after[index]), self._read[index]) for index in set(ancestors.values())}
        for index, ancestor in ancestors.items():
            memory, self._read[index] = before[ancestor]
            self._after[index] = dict(memory)


def example(vocab_size: int) -> Pairs:
    """A drafter for checks."""
    return Pairs()


# --- checked, then used


def main(name: str = "smollm2-135m", tokens: int = 48, examples: int = 25) -> None:
    report = check(example, max_examples=examples)
    for result in report.results:
        print(f"{result.status:15} {result.name}")
    if not report.ok:
        print(report)
        raise SystemExit(1)

    # An installed plugin is found by itself; this one is handed over, until the block ends.
    with use(PluginManager.from_modules([sys.modules[__name__]], strict=True)):
        model, tokenizer = load_model(name, dtype="float32")
        decoder = Decoder.from_config({"drafter": {"type": "pairs", "max_tokens": 6}}, target=model)
        encoded = tokenizer("the sea and the sky and the sea and the sky and the", return_tensors="pt")
        inputs = {key: encoded[key] for key in ("input_ids", "attention_mask")}
        options = {"max_new_tokens": tokens, "do_sample": False}
        out = decoder.generate(**inputs, **options, return_dict_in_generate=True)
    same = torch.equal(out.sequences, model.generate(**inputs, **options))
    print(tokenizer.decode(out.sequences[0]))
    print(f"{out.stats.tokens_per_pass:.2f} tokens a pass; the text of plain generate: {same}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
