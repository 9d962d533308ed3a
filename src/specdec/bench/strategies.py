"""What is compared: a name, and what it stands for. Read and checked here, without torch; run in `runners.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from specdec.core.config import DecoderConfig, load_config
from specdec.core.errors import ConfigError, SpecdecError

__all__ = ["DEFAULT", "PLAIN", "Contender", "contenders"]

PLAIN = "plain"
DEFAULT = (
    PLAIN,
    "hf-prompt-lookup:10",
    "prompt-lookup",
    "token-recycling",
    "lookahead",
    "jacobi",
    "self-skip",
    "merge:prompt-lookup,token-recycling",
)
_LOOKUP, _ASSISTED, _CALL = "hf-prompt-lookup", "hf-assisted", "call"
_NAME = re.compile(r"[\w][\w .+@/-]*")


@dataclass(frozen=True)
class Contender:
    """One strategy of a comparison.

    kind: "plain" is transformers' `generate`; "lookup" and "assisted" its own speculation, with `argument` the number
    of tokens or the assistant; "call" a function of a Python file, `argument` being FILE:FUNCTION; "decoder" a decoder
    of specdec, from `config`.
    """

    name: str
    kind: Literal["plain", "lookup", "assisted", "call", "decoder"]
    argument: str = ""
    config: DecoderConfig | None = None

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read `[NAME=]SPEC`.

        SPEC is `plain`, `hf-prompt-lookup[:TOKENS]`, `hf-assisted:MODEL`, `call:FILE:FUNCTION`, a decoder config file
        (.yaml, .yml, .json), a decoder or drafter config in braces, or a drafter as `specdec generate --drafter` takes
        it. Raises ConfigError, which names the strategy.
        """
        name, sign, spec = text.partition("=")
        if not sign or not _NAME.fullmatch(name):
            name = spec = text
        name, spec = " ".join(name.split()), spec.strip()  # a name fits on a line
        head, _, argument = spec.partition(":")
        if spec == PLAIN:
            if name != PLAIN:
                raise ConfigError(f"--strategy {text}: plain `generate` keeps its name; write {PLAIN}")
            return cls(name, "plain")
        if head == _LOOKUP:
            if not (argument or "10").isdecimal() or argument == "0":
                raise ConfigError(f"--strategy {text}: expected {_LOOKUP}:TOKENS, a number above 0")
            return cls(name, "lookup", argument or "10")
        if head in (_ASSISTED, _CALL):
            if not argument or (head == _CALL and ":" not in argument):
                shape = f"{_ASSISTED}:MODEL" if head == _ASSISTED else f"{_CALL}:FILE:FUNCTION"
                raise ConfigError(f"--strategy {text}: expected {shape}")
            return cls(name, "assisted" if head == _ASSISTED else "call", argument)
        try:
            return cls(name, "decoder", config=_decoder(spec))
        except (SpecdecError, yaml.YAMLError) as error:
            raise ConfigError(f"--strategy {text}: {error}") from error

    def with_setting(self, exactness: str, compile: bool | str) -> DecoderConfig:
        """Its config under these axes; what a config says itself stays where an axis has its default."""
        assert self.config is not None
        return self.config.model_copy(
            update={
                "exactness": self.config.exactness if exactness == "algorithmic" else exactness,
                "compile": self.config.compile or compile,
            }
        )


def contenders(texts: Sequence[str] = (), *, baseline: bool = True) -> list[Contender]:
    """The strategies of these texts, `DEFAULT` for none; plain `generate` goes first unless it is among them.

    Raises ConfigError with all that is wrong, and where two have one name.
    """
    found: list[Contender] = []
    wrong: list[str] = []
    for text in texts or DEFAULT:
        try:
            found.append(Contender.parse(text))
        except ConfigError as error:
            wrong.append(str(error))
    if baseline and not any(one.kind == "plain" for one in found):
        found.insert(0, Contender(PLAIN, "plain"))
    names = [one.name for one in found]
    wrong += [f"two strategies are named {name!r}; write NAME=SPEC" for name in sorted(_twice(names))]
    if wrong:
        raise ConfigError("\n".join(wrong))
    return found


def _decoder(spec: str) -> DecoderConfig:
    if spec.startswith("{"):
        read = yaml.safe_load(spec)
        return load_config(read if "drafter" in read else {"drafter": read})
    if Path(spec).suffix in (".yaml", ".yml", ".json"):
        return load_config(spec)
    from specdec.cli.decoding import parse_drafter  # the one reader of the short form

    parsed: dict[str, Any] = parse_drafter(spec)
    return load_config({"drafter": parsed})


def _twice(names: Sequence[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}
