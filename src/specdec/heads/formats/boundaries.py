"""Which states of the target an EAGLE-3 head fuses: the two conventions for layer ids, and which one is meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec.core.errors import CheckpointError
from specdec.heads.formats.conventions import Conventions

__all__ = ["boundaries", "taps_of"]

_SEMANTICS = {"vllm": "boundary", "sglang": "output"}


def boundaries(
    config: Mapping[str, Any], speculators: bool, conventions: Conventions, where: str
) -> tuple[tuple[int, ...] | None, list[str]]:
    """The states as boundaries (k: what enters layer k, 0: the embeddings), in the checkpoint's order, and remarks.

    None where the checkpoint says none. Read as boundaries or as outputs (k: what layer k puts out) by what says so
    the most plainly: `conventions`, `eagle_aux_layer_semantics`, the trainer that wrote the key, and last the ids: a
    first id of 1 means outputs, since nobody fuses the output of the embedding; else boundaries.
    """
    ids, key = _ids(config, where)
    remarks: list[str] = []
    if conventions.layer_ids is not None:
        ids, key = conventions.layer_ids, "layer_ids"
    if ids is None:
        return None, [*remarks, "it names no layers of the target: what enters layers 2, n/2 and n-3 is taken"]
    meaning = conventions.layers if conventions.layers != "auto" else _SEMANTICS.get(
        str(config.get("eagle_aux_layer_semantics"))
    )  # fmt: skip
    if meaning is None:
        if speculators:
            meaning = "boundary"
        elif key in ("target_layer_ids", "aux_hidden_states_layer_ids"):
            meaning = "output"
        else:
            meaning = "output" if ids and ids[0] == 1 else "boundary"
            if meaning == "boundary" and key.startswith("eagle_config."):
                remarks.append(
                    f"its layer ids {list(ids)} may count inputs or outputs of layers; they are taken for inputs. "
                    "`specdec doctor` measures which"
                )
    found = ids if meaning == "boundary" else tuple(each + 1 for each in ids)
    if len(set(found)) < len(found) or min(found, default=0) < 0:
        raise CheckpointError(f"{where}: {key} is {list(ids)}, expected different ids of layers from 0")
    return found, remarks


def _ids(config: Mapping[str, Any], where: str) -> tuple[tuple[int, ...] | None, str]:
    more = config.get("eagle_config")
    nested = more if isinstance(more, Mapping) else {}
    for key, value in (
        ("eagle_aux_hidden_state_layer_ids", config.get("eagle_aux_hidden_state_layer_ids")),
        ("eagle_config.eagle_aux_hidden_state_layer_ids", nested.get("eagle_aux_hidden_state_layer_ids")),
        ("eagle_config.layer_ids", nested.get("layer_ids")),
        ("aux_hidden_states_layer_ids", config.get("aux_hidden_states_layer_ids")),
        ("target_layer_ids", config.get("target_layer_ids")),
    ):
        if value:
            if not isinstance(value, list) or not all(type(each) is int for each in value):
                raise CheckpointError(f"{where}: {key} is {value!r}, expected a list of layer numbers")
            return tuple(value), key
    return None, ""


def taps_of(found: tuple[int, ...]) -> tuple[str, ...]:
    """Boundaries as names of features: what enters layer k is what layer k - 1 puts out, before any final norm."""
    return tuple("embed" if each == 0 else f"layer:{each - 1}" for each in found)
