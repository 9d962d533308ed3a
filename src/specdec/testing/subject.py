"""The part under check: how to make it, and what of it decides which checks apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from specdec.core.interfaces import Drafter, Part, Scheduler, Target, Verifier
from specdec.targets.cached_lm import CachedLM
from specdec.testing.trial import Failure

__all__ = ["ROLES", "Subject", "holds_model"]

ROLES: dict[str, type[Part]] = {"drafter": Drafter, "verifier": Verifier, "scheduler": Scheduler, "target": Target}


@dataclass(frozen=True)
class Subject:
    """A part given as an instance or as a factory `make(vocab_size)`.

    sample: the part at vocabulary 3, from which declarations are read. strategy: the registered strategy that it
    belongs to, or None.
    """

    make: Callable[[int], Any]
    sample: Any
    role: str
    strategy: Any = None

    @classmethod
    def of(cls, part: Any, strategy: Any = None) -> Subject:
        """Wrap a part or a factory; raises Failure, in words, where it cannot be built or plays no role."""
        factory = callable(part) and not isinstance(part, Part)
        make: Callable[[int], Any] = _checked(part) if factory else (lambda vocab_size: part)
        sample = make(3)
        for role, base in ROLES.items():
            if isinstance(sample, base):
                name = getattr(sample, "name", None)
                if not isinstance(name, str) or not name:
                    raise Failure(f"{type(sample).__name__}.name is {name!r}; expected a text, which messages use")
                return cls(make, sample, role, strategy or _registered(sample, role))
        source = "the factory returned" if factory else "found"
        raise Failure(f"{source} {type(sample).__name__}; expected a Drafter, Verifier, Scheduler or Target")

    @property
    def label(self) -> str:
        """Role and name of the part."""
        return f"{self.role} {getattr(self.sample, 'name', type(self.sample).__name__)!r}"

    @property
    def heavy(self) -> bool:
        """True for a part that runs a model, which is enumerated over few examples."""
        needs = getattr(self.sample, "needs", None)
        return bool(needs and (needs.features or needs.shared)) or holds_model(self.sample)


def holds_model(part: Any) -> bool:
    """Whether a part, or a part inside it, holds weights."""
    seen: set[int] = set()

    def search(value: Any, depth: int) -> bool:
        if isinstance(value, (nn.Module, CachedLM)):
            return True
        if depth == 0 or id(value) in seen:
            return False
        seen.add(id(value))
        if isinstance(value, Part):
            return any(search(inner, depth - 1) for inner in vars(value).values())
        if isinstance(value, (list, tuple)):
            return any(search(inner, depth - 1) for inner in value)
        return False

    return search(part, 4)


def _checked(factory: Callable[[int], Any]) -> Callable[[int], Any]:
    def make(vocab_size: int) -> Any:
        try:
            return factory(vocab_size)
        except Exception as error:
            raise Failure(
                f"cannot build the part for a vocabulary of {vocab_size}: {type(error).__name__}: {error}"
            ) from error

    return make


def _registered(part: Any, role: str) -> Any:
    """The strategy whose config class the part's config has, or None."""
    from specdec.core.errors import SpecdecError
    from specdec.plugins.manager import discover

    try:
        config = part.config
        strategy = discover().registry.get(role, config.type) if config is not None else None  # type: ignore[arg-type]
        # A class of its own may share a shipped config and is not that strategy for it.
        if strategy is None or strategy.build.partition(":")[0] != type(part).__module__:
            return None
        return strategy if strategy.load_config() is type(config) else None
    except (SpecdecError, AttributeError, TypeError):
        return None  # not registered, or a config that the checks of configs will complain about
