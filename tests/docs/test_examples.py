"""Examples that print something run, and print what they should."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_a_feature_alone_leaves_the_next_one_open(capsys):
    runpy.run_path(str(EXAMPLES / "feature_uncertainty.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "one feature, two tokens: next features lie 1.8948 apart",
        "without the token: off by 0.9474 on the worse branch",
        "with the token:    off by 0.0000",
        "200 features, without the token: 51.6% of the variance cannot be explained",
        "200 features, with the token: 0.0% of the variance cannot be explained",
    ]
