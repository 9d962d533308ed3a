"""How far typical acceptance is from the target's law: every random branch counted, on small random models.

A model is a table: 5 contexts, 3 tokens, Gaussian logits of standard deviation 1.5. Compared is the joint law of the
first 4 tokens, by total variation: the pass over the prompt gives the first, a chain or tree of depth 2 is drafted
then, and again until there are 4.

    python benchmarks/typical_law.py [--models 12] [--out results.json]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from specdec.core.sampling import Sampling
from specdec.schedulers.fixed import Fixed
from specdec.targets.warpers import warpers
from specdec.testing.enumeration import enumerate_law, total_variation
from specdec.testing.harness import finish, generation_of, step_of
from specdec.testing.honest import TableDrafter
from specdec.testing.laws import HashTable
from specdec.testing.tabular import TabularTarget, sequence_law
from specdec.verifiers.typical import Typical

VOCAB, PROMPT, LENGTH = 3, (1, 0), 4
TEMPERATURES = (0.5, 1.0, 1.5)
RULES: tuple[tuple[float, float, str], ...] = (
    (0.05, 0.2, "draw"),
    (0.09, 0.3, "draw"),
    (0.2, 0.45, "draw"),
    (0.4, 0.65, "draw"),
    (0.6, 0.8, "draw"),
    (0.9, 0.95, "draw"),
    (0.09, 0.3, "argmax"),
)
DRAFTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "likely": ("point", (1, 1)),
    "tree": ("point", (2, 2)),
    "drawn": ("iid", (1, 1)),
    "other": ("point", (1, 1)),
}
"""Name to style and children by depth: the target's own most likely chain, its two likeliest tokens at each depth, a
chain drawn from the target's law, and the most likely chain of an unrelated model."""


def model(seed: int) -> HashTable:
    """A random table."""
    chance = random.Random(seed)
    return HashTable(
        tuple(
            tuple(round(1e6 * 2.0 ** (1.5 * chance.gauss(0, 1) / 0.6931)) + 1 for _ in range(VOCAB)) for _ in range(5)
        )
    )


def distance(seed: int, rule: tuple[float, float, str], temperature: float, draft: str) -> float:
    """Total variation between the law of the first tokens under `rule` and the target's own."""
    epsilon, delta, bonus = rule
    table = model(seed)
    target = TabularTarget(table, VOCAB)
    sampling = Sampling(warpers(temperature=temperature) or (), greedy=False)
    style, fanouts = DRAFTS[draft]
    guesses = model(seed + 1000) if draft == "other" else table
    drafter = TableDrafter(guesses, style, fanouts)  # type: ignore[arg-type]

    def run(rng: Any) -> Hashable:
        verifier = Typical(epsilon=epsilon, delta=delta, bonus=bonus)  # type: ignore[arg-type]
        return finish(generation_of(target, drafter, verifier, Fixed(2, 8), [PROMPT], LENGTH, rng, sampling=sampling))[
            0
        ]

    return total_variation(enumerate_law(run), sequence_law(step_of(target, sampling), PROMPT, LENGTH))


def rows(models: int) -> Iterator[dict[str, Any]]:
    """One row a rule and temperature: mean distance over the models for each way of drafting."""
    for rule in RULES:
        for temperature in TEMPERATURES:
            found = {
                draft: sum(distance(seed, rule, temperature, draft) for seed in range(models)) / models
                for draft in DRAFTS
            }
            yield {"epsilon": rule[0], "delta": rule[1], "bonus": rule[2], "temperature": temperature, **found}


def line(row: dict[str, Any]) -> str:
    """A row of the table in docs/approximate.md."""
    head = [f"{row['epsilon']:g}", f"{row['delta']:g}", row["bonus"], f"{row['temperature']:g}"]
    return f"| {' | '.join([*head, *(f'{row[draft]:.3f}' for draft in DRAFTS)])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = []
    for row in rows(args.models):
        found.append(row)
        print(line(row), flush=True)
    if args.out:
        args.out.write_text(json.dumps({"models": args.models, "rows": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
