"""What all strategies of one comparison share: the axes of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specdec.core.config import load_config
from specdec.core.errors import ConfigError

__all__ = ["COMPILE", "Setting", "settings"]

COMPILE: dict[str, bool | str] = {"no": False, "yes": True, "weights": "weights"}
"""What `--compile` may say, and what a decoder's `compile` is then."""

_COMPILED = {True: "compiled", "weights": "packed weights"}


@dataclass(frozen=True)
class Setting:
    """One point of the axes. dtype: of the target's weights, None as stored. temperature: 0 is greedy.

    compile, exactness: of specdec's decoders; plain `generate` and other libraries know neither.
    """

    batch: int = 1
    temperature: float = 0.0
    dtype: str | None = None
    compile: bool | str = False
    exactness: str = "algorithmic"

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def as_fields(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        parts = [self.dtype or "dtype as stored", f"batch {self.batch}", f"temperature {self.temperature:g}"]
        parts += [_COMPILED[self.compile]] if self.compile else []
        parts += [self.exactness] if self.exactness != "algorithmic" else []
        return ", ".join(parts)


def settings(
    batches: Sequence[int] = (1,),
    temperatures: Sequence[float] = (0.0,),
    dtypes: Sequence[str | None] = (None,),
    compiles: Sequence[bool | str] = (False,),
    exactness: Sequence[str] = ("algorithmic",),
) -> list[Setting]:
    """All points of the axes, dtype outermost, so that a model is loaded once a dtype."""
    if wrong := [batch for batch in batches if batch < 1]:
        raise ConfigError(f"batch size {wrong[0]}: expected at least 1")
    if below := [temperature for temperature in temperatures if not temperature >= 0]:
        raise ConfigError(f"temperature {below[0]}: expected 0 for greedy decoding, or more")
    for mode in exactness:
        try:
            load_config({"drafter": "none", "exactness": mode})
        except ConfigError as error:
            raise ConfigError(f"exactness {mode!r}: {error}") from error
    return [
        Setting(batch=batch, temperature=temperature, dtype=dtype, compile=compiled, exactness=mode)
        for dtype in dict.fromkeys(dtypes)
        for mode in dict.fromkeys(exactness)
        for compiled in dict.fromkeys(compiles)
        for temperature in dict.fromkeys(temperatures)
        for batch in dict.fromkeys(batches)
    ]
