"""JSON schemas of configs, with the strategies that are installed at the moment of asking."""

from __future__ import annotations

import warnings
from typing import Any

from specdec.core.config import ROLE_KEY, DecoderConfig, Role
from specdec.core.errors import PluginError, PluginLoadWarning
from specdec.plugins.registry import Registry
from specdec.plugins.strategy import ROLES, Strategy

__all__ = ["decoder_schema", "strategy_schema"]


def decoder_schema(registry: Registry) -> dict[str, Any]:
    """Schema of `DecoderConfig`: each role is the tagged union of its known strategies, or one's name."""
    return _complete(DecoderConfig.model_json_schema(), registry)


def strategy_schema(strategy: Strategy, registry: Registry) -> dict[str, Any]:
    """Schema of one strategy's config, with the unions of the roles that it composes itself."""
    return _complete(strategy.load_config().model_json_schema(), registry)


def _complete(schema: dict[str, Any], registry: Registry) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    waiting = _lift(schema, definitions)
    while waiting:
        role = waiting.pop()
        if role in definitions:
            continue
        union, parts = _union(role, registry)
        definitions[role] = union
        for key, part in parts.items():
            waiting |= _lift(part, definitions)
            definitions[key] = part
    if definitions:
        schema["$defs"] = dict(sorted(definitions.items()))
    return schema


def _union(role: Role, registry: Registry) -> tuple[dict[str, Any], dict[str, Any]]:
    parts: dict[str, Any] = {}
    mapping: dict[str, str] = {}
    bare: list[str] = []
    for name in registry.names(role):
        try:
            config = registry.get(role, name).load_config()
        except PluginError as error:
            # One strategy that cannot be loaded does not keep the others out of the schema.
            warnings.warn(f"left out of the schema: {error}", PluginLoadWarning, stacklevel=2)
            continue
        key = f"{role}.{name}"
        parts[key] = _required_type(config.model_json_schema(), optional=role == "target")
        mapping[name] = f"#/$defs/{key}"
        if not any(field.is_required() for field in config.model_fields.values()):
            bare.append(name)
    tagged: dict[str, Any] = {
        "oneOf": [{"$ref": reference} for reference in mapping.values()],
        "discriminator": {"propertyName": "type", "mapping": mapping},
    }
    if role == "target":
        text: dict[str, Any] = {
            "type": "string",
            "description": "Id, folder, .gguf file or alias of a model.",
        }
    else:
        text = {"type": "string", "enum": bare}
    return {"description": f"A {role}.", "anyOf": [tagged, text]}, parts


def _required_type(schema: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    # In Python the type is known from the class; in a file it is what tells the strategies apart.
    if not optional:
        schema["required"] = sorted({"type", *schema.get("required", ())})
    return schema


def _lift(schema: dict[str, Any], definitions: dict[str, Any]) -> set[Role]:
    """Move the schema's own definitions up, point its role fields at the unions, and say which it has."""
    roles: set[Role] = set()
    inner: dict[str, Any] = schema.pop("$defs", {})
    for name, definition in inner.items():
        roles |= _point(definition)
        definitions[name] = definition
    return roles | _point(schema)


def _point(node: Any) -> set[Role]:
    roles: set[Role] = set()
    if isinstance(node, dict):
        role = node.pop(ROLE_KEY, None)
        if role in ROLES:
            node["$ref"] = f"#/$defs/{role}"
            roles.add(role)
        for value in node.values():
            roles |= _point(value)
    elif isinstance(node, list):
        for value in node:
            roles |= _point(value)
    return roles
