"""Fresh heads of every kind with what they are trained by."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.errors import ConfigError, IncompatibleError, SpecdecError
from specdec.heads.base import count, embedded, facts_of
from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.draft_model import new_draft_model, save_draft_model
from specdec.heads.eagle3_config import default_taps
from specdec.heads.load import head_class, load_head
from specdec.heads.training.objectives import DraftModelObjective, DraftObjective, MedusaObjective, Objective
from specdec.heads.training.recipe import Recipe

__all__ = ["Trainee", "reads"]


class Trainee:
    """What is trained for one target, and how it is saved: a head, or for the kind `draft-model` a model.

    model, tokenizer: the target's. name: the target's in the saved config. options: fields of the head's config, or
    sizes of the draft model. start: folder or hub id of a trained head to begin with. scale: root mean square of the
    features. draft_ids: the draft vocabulary or None.

    Weights are trained in float32 and saved in bfloat16. Raises ConfigError for options that the kind does not have.
    """

    objective: Objective

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        recipe: Recipe,
        *,
        name: str,
        options: Mapping[str, Any],
        start: str | None = None,
        scale: float = 1.0,
        draft_ids: Tensor | None = None,
    ) -> None:
        self.recipe, self._tokenizer = recipe, tokenizer
        target: Any = model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            try:
                if recipe.kind == "draft-model":
                    if draft_ids is not None or start is not None:
                        raise ConfigError(
                            "a draft model has the target's whole vocabulary and is begun afresh: leave draft_vocab "
                            "and start out"
                        )
                    self._saved: Any = new_draft_model(target, seed=recipe.seed, **options)
                    lm_head = target.get_output_embeddings()
                    rows = (lm_head.weight.detach(), getattr(lm_head, "bias", None))
                    self.objective = DraftModelObjective(
                        self._saved.model, recipe, reads=(), teacher=rows, draft_ids=None
                    )
                    return
                given = dict(options)
                if recipe.kind == "eagle":
                    given.setdefault("embed_scale", float(f"{scale / _rms(target.get_input_embeddings()):.3g}"))
                make: Any = head_class(recipe.kind)
                mark = None if tokenizer is None else tokenizer_fingerprint(tokenizer)
                if start is not None and options:
                    raise ConfigError(
                        f"a head that is begun with keeps its config: leave {', '.join(sorted(options))} out with start"
                    )
                if start is None:
                    head = make.for_target(target, draft_ids=draft_ids, name=name, tokenizer=mark, **given)
                else:
                    head = _started(start, recipe.kind, target, tokenizer)
            except (TypeError, ValueError) as error:
                if isinstance(error, SpecdecError):
                    raise
                raise ConfigError(f"the {recipe.kind} head cannot be made: {error}") from error
        self._saved = head.float()
        of = MedusaObjective if recipe.kind == "medusa" else DraftObjective
        self.objective = of.of(self._saved, recipe, scale)

    @property
    def digest(self) -> str:
        """A mark of the config of what is trained."""
        config: Any = self._saved.config
        made = config.to_dict() if self.recipe.kind == "draft-model" else config.model_dump(mode="json")
        return hashlib.sha256(json.dumps(made, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def save(self, folder: str | os.PathLike[str], state: Mapping[str, Tensor]) -> None:
        """Write the head in bfloat16; an earlier save stays whole if writing fails (CheckpointError).

        state: the objective's, gathered from wherever its parts are; the head in training is left as it is.
        """
        weights = {name.removeprefix("head."): value.to("cpu") for name, value in state.items()}
        with torch.random.fork_rng(devices=[]):
            if self.recipe.kind == "draft-model":
                model = type(self._saved)(copy.deepcopy(self._saved.config))
                model.model.load_state_dict(weights)
                save_draft_model(model, folder, self._tokenizer)
                return
            head = type(self._saved)(self._saved.config, weights.get("draft_ids"))
        head.load_state_dict(weights)
        head.to(torch.bfloat16).save(folder)


def reads(kind: str, model: nn.Module, options: Mapping[str, Any], start: str | None = None) -> tuple[str, ...]:
    """Names of the target's states that training a head of that kind takes, `"final"` among them."""
    if start is not None:
        return (*dict.fromkeys([*load_head(start, kind=kind, target=facts_of(model)).features, "final"]),)
    if kind == "eagle3":
        try:
            return (*(options.get("taps") or default_taps(facts_of(model).layers)), "final")
        except ValueError as error:
            raise ConfigError(f"the eagle3 head cannot be made: {error}") from error
    return ("final",)


def _started(start: str, kind: str, target: Any, tokenizer: Any) -> Any:
    head = load_head(start, kind=kind, target=facts_of(target))
    if found := head.fit_problems(facts_of(target)) + head.config.tokenizer_problems(tokenizer):
        raise IncompatibleError(found)
    head.bind(target.get_input_embeddings(), target.get_output_embeddings())
    return head.train()


def _rms(embed_tokens: nn.Module) -> float:
    """Root mean square of what the module puts out, which some models scale."""
    return (
        float(sum(rows.float().pow(2).mean(-1).sum() for rows in embedded(embed_tokens)) / count(embed_tokens)) ** 0.5
    )
