"""Every exception and warning that specdec raises by name.

Each error also derives from the built-in type that callers of `generate` already catch, so code written
against transformers keeps working. Messages say what was found, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "CheckpointWarning",
    "ConfigError",
    "DataError",
    "IncompatibleError",
    "InvalidDraftError",
    "InvalidLogitsError",
    "InvalidPromptError",
    "ModelNotFoundError",
    "PluginError",
    "PluginLoadWarning",
    "SpecdecError",
    "TokenizerMismatchError",
    "UnknownStrategyError",
    "UnsupportedModelError",
    "UnsupportedOptionError",
    "WindowNarrowedWarning",
]


class SpecdecError(Exception):
    """Base of every error that specdec raises on purpose."""


class ConfigError(SpecdecError, ValueError):
    """A config cannot be read, or an option in it is wrong; the message names the option's path."""


class UnknownStrategyError(ConfigError):
    """No strategy of that role has the name asked for."""


class PluginError(SpecdecError):
    """A plugin broke one of the rules for plugins, or could not be loaded."""


class PluginLoadWarning(UserWarning):
    """A plugin was left out, or one of its round observers was switched off."""


class WindowNarrowedWarning(UserWarning):
    """A look-ahead window would have passed the end of the model's context and was made narrower; said once."""


class IncompatibleError(SpecdecError, ValueError):
    """The parts of a decoder do not fit together; `problems` lists every reason, not only the first."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type[IncompatibleError], tuple[tuple[str, ...]]]:
        # Exception would rebuild itself from the joined message and lose the list.
        return (type(self), (self.problems,))

    def _text(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        head = f"{len(self.problems)} problems keep these parts from working together:"
        return "\n".join([head, *(f"  - {problem}" for problem in self.problems)])


class TokenizerMismatchError(IncompatibleError):
    """Target and draft model do not share one tokenizer, so token ids mean different things to them."""


class InvalidDraftError(SpecdecError, ValueError):
    """A drafter returned a draft that breaks the draft contract."""


class InvalidPromptError(SpecdecError, ValueError):
    """The prompt is empty, has ids outside the vocabulary, or has a shape that cannot be decoded."""


class UnsupportedModelError(SpecdecError, ValueError):
    """The model cannot be a target or a draft model; the message names the cause."""


class UnsupportedOptionError(SpecdecError, ValueError):
    """An option of `generate` that would be silently wrong under speculative decoding was passed."""


class ModelNotFoundError(SpecdecError, ValueError):
    """No model was found under the id, folder, file or alias given; the message says how to get it."""


class CheckpointError(SpecdecError, ValueError):
    """The files of a head are missing, damaged or of another kind, or could not be written; the message names them."""


class CheckpointWarning(UserWarning):
    """A published head is unusual in a way that may cost acceptance; said once, when it is read."""


class DataError(SpecdecError, ValueError):
    """Data on disk is missing, broken, of another tokenizer, or cannot be written; the message names the file."""


class InvalidLogitsError(SpecdecError, ValueError):
    """The target's logits allow no token: they hold NaN, or nothing but -inf."""
