"""Every exercise runs, and prints what it should."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXERCISES = Path(__file__).resolve().parents[2] / "examples" / "exercises"
TOKENS = (1.85, 2.57, 3.19, 3.71, 4.15, 4.53, 4.85, 5.12, 5.35, 5.55)
SPEED = (1.61, 1.98, 2.20, 2.32, 2.37, 2.38, 2.37, 2.33, 2.28, 2.22)

PRINTED = {
    "acceptance": [
        "close: alpha 0.950, 1 - TV 0.950",
        "  far: alpha 0.400, 1 - TV 0.400",
    ],
    "block_length": [
        *(
            f"gamma {gamma:2d}: {tokens:.2f} tokens a pass, {speed:.2f} times as fast"
            for gamma, (tokens, speed) in enumerate(zip(TOKENS, SPEED, strict=True), start=1)
        ),
        "cost 0.05: gamma 10 is best",
        "cost 0.15: gamma 6 is best",
        "cost 0.40: gamma 3 is best",
    ],
    "residual": [
        "kept      [0.2, 0.2, 0.2, 0.1]",
        "replaced  [0.3, 0.0, 0.0, 0.0]",
        "together  [0.5, 0.2, 0.2, 0.1]",
        "is p      True",
    ],
    "medusa_heads": [
        "decay 0.9: heads 0.90, 0.81, 0.73, 0.66, 0.59 give 3.72 tokens a pass",
        "decay 0.7: heads 0.70, 0.49, 0.34, 0.24, 0.17 give 2.19 tokens a pass",
        "decay 0.5: heads 0.50, 0.25, 0.12, 0.06, 0.03 give 1.64 tokens a pass",
        "at decay 0.7 head 5 adds 0.005 tokens",
    ],
    "lookahead_window": [
        f"block size {size}: Jacobi 30 passes, lookahead {passes} passes"
        for size, passes in enumerate((30, 17, 12, 10, 10), start=1)
    ],
    "wrong_draft": [
        "same text            : True",
        "tokens of each round : [1]",
        "guesses kept         : 0 of 34",
    ],
    "tree_values": [
        "nodes                               : 18",
        "no node is worth more than its parent: True",
        "the worthiest 1, 2, ... are a tree   : True",
    ],
    "resampling": [
        "drift 0.0: divergence 0.000, ESS  8.00, resampled False",
        "drift 0.2: divergence 0.045, ESS  7.38, resampled False",
        "drift 0.4: divergence 0.148, ESS  7.34, resampled False",
        "drift 0.6: divergence 0.311, ESS  4.08, resampled False",
        "drift 0.8: divergence 0.573, ESS  2.83, resampled True",
        "drift 1.0: divergence 1.045, ESS  2.57, resampled True",
    ],
}


@pytest.mark.parametrize("name", PRINTED)
def test_what_an_exercise_prints(name, capsys):
    runpy.run_path(str(EXERCISES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == PRINTED[name]


def test_every_exercise_is_here_and_listed():
    names = {path.stem for path in EXERCISES.glob("*.py")}
    listed = (EXERCISES / "README.md").read_text(encoding="utf-8")
    assert names == set(PRINTED) and all(f"`{name}.py`" in listed for name in names)
