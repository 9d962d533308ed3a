"""Strategies compared on one's own model: prompts, one interleaved run, records; and the search for the best one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specdec._lazy import lazy_exports

if TYPE_CHECKING:
    from specdec.bench.prompts import Prompt, built_in, read_prompts
    from specdec.bench.record import Record
    from specdec.bench.run import Bench
    from specdec.bench.setting import Setting
    from specdec.bench.strategies import Contender

__all__ = ["Bench", "Contender", "Prompt", "Record", "Setting", "built_in", "read_prompts"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Bench": "specdec.bench.run",
        "Contender": "specdec.bench.strategies",
        "Prompt": "specdec.bench.prompts",
        "Record": "specdec.bench.record",
        "Setting": "specdec.bench.setting",
        "built_in": "specdec.bench.prompts",
        "read_prompts": "specdec.bench.prompts",
    },
)
