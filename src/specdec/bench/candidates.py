"""What `specdec autotune` tries: what needs no checkpoint, what is given, and a few options of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.bench.strategies import Contender
from specdec.core.config import load_config
from specdec.core.errors import ConfigError, SpecdecError
from specdec.plugins.manager import discover

__all__ = ["candidates"]

_LOOKUP = {"type": "prompt-lookup"}
_FREE: dict[str, dict[str, Any]] = {
    "none": {"drafter": "none"},
    "prompt-lookup": {"drafter": _LOOKUP},
    "prompt-lookup, n-grams to 5": {"drafter": {**_LOOKUP, "max_ngram": 5, "min_ngram": 2}},
    "prompt-lookup, fixed 10": {"drafter": _LOOKUP, "scheduler": {"type": "fixed", "depth": 10}},
    "token-recycling": {"drafter": "token-recycling"},
    "token-recycling, 24 nodes": {"drafter": {"type": "token-recycling", "max_nodes": 24}},
    "lookahead": {"drafter": "lookahead"},
    "lookahead, simple": {"drafter": {"type": "lookahead", "form": "simple"}},
    "jacobi": {"drafter": "jacobi"},
    "self-skip": {"drafter": "self-skip"},
    "merge of lookup and recycling": {"drafter": {"type": "merge", "drafters": [_LOOKUP, {"type": "token-recycling"}]}},
}
# Options that are tried of a given drafter, where its config has them and does not set them.
_VARIANTS: tuple[dict[str, Any], ...] = ({"nodes": 24}, {"nodes": 24, "depth": 4}, {"depth": 4})


def candidates(
    drafters: Sequence[str] = (),
    *,
    exactness: str = "algorithmic",
    allow: str | None = None,
    compile: bool | str = False,
    free: bool = True,
) -> list[Contender]:
    """Decoders to choose from, all with this exactness and weakest law.

    drafters: as `specdec bench --strategy` takes them, but of specdec only. free: with those that need no checkpoint.
    Raises ConfigError for a drafter that cannot be read.
    """
    made: dict[str, Mapping[str, Any]] = dict(_FREE) if free else {"none": _FREE["none"]}
    for text in drafters:
        given = Contender.parse(text)
        if given.config is None:
            raise ConfigError(f"--drafter {text}: only strategies of specdec can be written to a config")
        whole = given.config.model_dump(exclude_none=True, exclude={"target"})
        made[given.name] = whole
        drafter = whole["drafter"]
        fields = discover().registry.get("drafter", drafter["type"]).load_config().model_fields
        for options in _VARIANTS:
            # One that a variant's key is missing from would be another variant once more.
            if set(options) == {"nodes", "depth"} & set(fields) or (len(options) == 1 and set(options) <= set(fields)):
                label = ", ".join(f"{key} {value}" for key, value in options.items())
                made[f"{given.name}, {label}"] = {**whole, "drafter": {**drafter, **options}}
        if "drafters" not in fields and drafter["type"] not in ("prompt-lookup", "none"):
            both = {"type": "merge", "drafters": [_LOOKUP, drafter]}
            made[f"merge of lookup and {given.name}"] = {**whole, "drafter": both}
    law = {"exactness": exactness, "compile": compile, **({"allow": allow} if allow else {})}
    try:
        return [Contender(name, "decoder", config=load_config({**config, **law})) for name, config in made.items()]
    except SpecdecError as error:
        raise ConfigError(f"the candidates cannot be composed: {error}") from error
