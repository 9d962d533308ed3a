"""Configs: one frozen pydantic model a strategy, and `DecoderConfig`, which composes them.

This module imports neither torch nor a sibling package, so a config can be read, checked and written on a
machine that could not run it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError

from specdec.core.errors import ConfigError, PluginError, UnknownStrategyError

if TYPE_CHECKING:
    from specdec.plugins.manager import PluginManager

__all__ = [
    "DecoderConfig",
    "DrafterField",
    "Dtype",
    "Role",
    "SchedulerField",
    "StrategyConfig",
    "TargetConfig",
    "TargetField",
    "VerifierField",
    "create",
    "load_config",
    "resolve",
]

Role = Literal["drafter", "verifier", "scheduler", "target"]

# The key under which a field's JSON schema says which role it takes; `specdec.plugins.schema` replaces it by
# the union of the strategies that are installed when the schema is asked for.
ROLE_KEY = "x-specdec-role"

_DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
_Self = TypeVar("_Self", bound="_FrozenConfig")


class _FrozenConfig(BaseModel):
    """Frozen, without unknown options; a misspelt option is answered with the nearest one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _name_nearest_option(cls: type[_Self], data: Any, handler: ModelWrapValidatorHandler[_Self]) -> _Self:
        try:
            return handler(data)
        except ValidationError as error:
            details = error.errors(include_url=False)
            if not any(item["type"] == "extra_forbidden" and len(item["loc"]) == 1 for item in details):
                raise
            # Rebuilt here because only here is it known which model, so which options, the key was meant for.
            lines = [
                InitErrorDetails(
                    type=_custom(item["type"], _hint(cls, item)),
                    loc=item["loc"],
                    input=item["input"],
                )
                for item in details
            ]
            raise ValidationError.from_exception_data(error.title, lines) from None


class StrategyConfig(_FrozenConfig):
    """Options of one strategy; a subclass narrows `type` to a `Literal`, its default the strategy's name."""

    type: str = Field(description="Name of the strategy.")


def _checked_dtype(value: str) -> str:
    name = value.removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"there is no dtype {value!r}; expected one of {', '.join(_DTYPES)}")
    return name


Dtype = Annotated[str, AfterValidator(_checked_dtype)]


class TargetConfig(StrategyConfig):
    """A Hugging Face causal LM, named by hub id, folder, `.gguf` file or alias."""

    type: Literal["hf"] = Field(default="hf", description="Name of the strategy.")
    model: str = Field(min_length=1, description="Hub id, folder, .gguf file or alias of the model.")
    dtype: Dtype | None = Field(default=None, description="Number type of the weights; null: as stored.")
    trust_remote_code: bool = Field(default=False, description="Run model code that comes with the weights.")
    revision: str | None = Field(default=None, description="Branch, tag or commit on the hub.")


def resolve(role: Role) -> BeforeValidator:
    """Validator that turns a name, a mapping with "type" or a config into a config registered for `role`.

    Strategies are looked up while validating and not when a class is built, so plugins that load later need
    no schema to be rebuilt. Problems inside the mapping keep their place: `drafter.max_ngram`.
    """

    def resolve_strategy(value: object) -> StrategyConfig:
        return _resolve(role, value)

    return BeforeValidator(resolve_strategy)


DrafterField = Annotated[SerializeAsAny[StrategyConfig], resolve("drafter"), WithJsonSchema({ROLE_KEY: "drafter"})]
VerifierField = Annotated[SerializeAsAny[StrategyConfig], resolve("verifier"), WithJsonSchema({ROLE_KEY: "verifier"})]
SchedulerField = Annotated[
    SerializeAsAny[StrategyConfig], resolve("scheduler"), WithJsonSchema({ROLE_KEY: "scheduler"})
]
TargetField = Annotated[SerializeAsAny[StrategyConfig], resolve("target"), WithJsonSchema({ROLE_KEY: "target"})]


def _check_exactness(text: str) -> str:
    if not re.fullmatch(r"algorithmic|fixed-width(:[1-9]\d*)?", text):
        raise ValueError("expected 'algorithmic', 'fixed-width' or a width such as 'fixed-width:8'")
    return text


def _check_requirement(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"not a requirement such as 'specdec-suffix>=0.2': {error}") from None
    problem = _manager().unmet(requirement)
    if problem is not None:
        raise ValueError(problem)
    return text


class DecoderConfig(_FrozenConfig):
    """A whole decoder as data: it can be built from this and written back to JSON or YAML unchanged.

    `load_config` reads one from a file or a dict and answers mistakes with `ConfigError`.
    """

    target: TargetField | None = Field(
        default=None, description="The model that owns the output law; a text is its id, folder or alias."
    )
    drafter: DrafterField = Field(description="What guesses the tokens; 'none' is plain decoding.")
    verifier: VerifierField | None = Field(
        default=None, description="The rule that keeps a prefix of the guesses; null: what suits the drafter."
    )
    scheduler: SchedulerField | None = Field(
        default=None, description="What decides how much is drafted each round; null: what suits the drafter."
    )
    exactness: Annotated[str, AfterValidator(_check_exactness)] = Field(
        default="algorithmic", description="How far identity with plain decoding goes in floating point."
    )
    allow: Literal["approximate", "consistent", "exact-greedy", "exact-sampling"] | None = Field(
        default=None, description="Weakest guarantee that is accepted; null: only exact ones."
    )
    compile: Literal[False, True, "weights"] = Field(
        default=False,
        description="Run passes at a closed set of widths, each compiled once; weights: only keep packed weights.",
    )
    required_plugins: tuple[Annotated[str, AfterValidator(_check_requirement)], ...] = Field(
        default=(), description="Plugins that must be loaded, as requirements such as 'specdec-suffix>=0.2'."
    )
    specdec_version: str | None = Field(default=None, description="Version of specdec that wrote this config.")
    plugin_versions: dict[str, str] = Field(
        default_factory=dict, description="Versions of the plugins whose strategies this config uses."
    )


def load_config(source: DecoderConfig | Mapping[str, Any] | str | os.PathLike[str]) -> DecoderConfig:
    """Read a `DecoderConfig` from a mapping or from a YAML or JSON file, or raise `ConfigError`.

    The error lists every problem at once, each with the file and the path of the option. It is an
    `UnknownStrategyError` where a strategy's name is among the problems.
    """
    if isinstance(source, DecoderConfig):
        return source
    if isinstance(source, Mapping):
        place, data = "", dict(source)
    else:
        path = Path(source)
        place, data = f"{path}: ", _read(path)
    try:
        return DecoderConfig.model_validate(data)
    except ValidationError as error:
        items = error.errors(include_url=False)
        unknown = any(item["type"] == "unknown_strategy" for item in items)
        lines = [f"{_option_path(item['loc'])}: {_message(item)}" for item in items]
        text = place + lines[0]
        if len(lines) > 1:
            text = "\n".join([f"{place}{len(lines)} problems", *(f"  {line}" for line in lines)])
        raise (UnknownStrategyError if unknown else ConfigError)(text) from None


def create(role: Role, config: StrategyConfig) -> Any:
    """The part that `config` stands for: how a part builds the parts that its own config names."""
    return _manager().create(role, config)


def _manager() -> PluginManager:
    # The one place where core reaches a sibling, and only when a config is validated or built. A look-up that
    # `plugins` installs here instead would leave names unknown to whoever imports only this module.
    from specdec.plugins.manager import discover

    return discover()


def _resolve(role: Role, value: object) -> StrategyConfig:
    if role == "target" and isinstance(value, str):
        # A target is named by its model: nobody wants to write the name of the way it is run.
        value = {"model": value}
    name: object = None
    options: dict[str, Any] | None = None
    if isinstance(value, StrategyConfig):
        name = value.type
    elif isinstance(value, str):
        name, options = value, {}
    elif isinstance(value, Mapping):
        options = dict(value)
        name = options.get("type", "hf" if role == "target" else None)
    registry = _manager().registry
    if not isinstance(name, str):
        found = "a mapping without 'type'" if isinstance(value, Mapping) else f"{value!r}"
        advice = " Write 'none' to decode without guesses." if role == "drafter" and value is None else ""
        raise ValueError(
            f"expected the name of a {role}, a mapping with 'type', or a config; found {found}. "
            f"Known {role}s: {', '.join(registry.names(role))}.{advice}"
        )
    try:
        strategy = registry.get(role, name)
        config_class = strategy.load_config()
    except UnknownStrategyError as error:
        raise _custom("unknown_strategy", str(error)) from error
    except PluginError as error:
        # Not a ValueError, so pydantic would let it pass and the option's path would be lost.
        raise ValueError(str(error)) from error
    if options is None:
        if not isinstance(value, config_class):
            raise ValueError(
                f"{type(value).__name__} says type {name!r}, but the {role} of that name takes {config_class.__name__}"
            )
        return value
    return config_class.model_validate({"type": name, **options})


def _custom(kind: str, text: str) -> PydanticCustomError:
    # The text goes in as a value: as a template, its braces would be read as fields.
    return PydanticCustomError(kind, "{text}", {"text": text})


def _hint(model: type[BaseModel], item: Any) -> str:
    if item["type"] != "extra_forbidden" or len(item["loc"]) != 1:
        return str(item["msg"])
    options = [name for name in model.model_fields if name != "type"]
    near = difflib.get_close_matches(str(item["loc"][0]), options, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    known = f"The options are: {', '.join(options)}." if options else "There are no options."
    return f"extra option.{meant} {known}"


def _option_path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".") or "config"


def _message(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing":
        return "this option is required and was not given"
    if item["type"] in ("value_error", "unknown_strategy", "extra_forbidden"):
        return message  # these are ours and say what was found
    return f"{message}; found {item['input']!r}"


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such config file; expected a YAML or JSON file with at least 'drafter'"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the config cannot be read: {error}") from error
    try:
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(data, dict):
        found = "an empty file" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{path}: expected a mapping with at least 'drafter'; found {found}")
    return data
