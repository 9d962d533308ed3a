"""How each kind of strategy decodes a batch: with transformers, with a decoder of specdec, or with a given function."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.bench.setting import Setting
from specdec.bench.strategies import Contender
from specdec.core.errors import ConfigError
from specdec.core.stats import Stats
from specdec.decoder import Decoder
from specdec.targets.hf import HFTarget

__all__ = ["Answer", "Call", "Runner", "Skipped", "build"]


class Skipped(Exception):
    """A strategy cannot take part under a setting, for the reason given."""


@dataclass(frozen=True)
class Call:
    """How long and with which law is decoded. pad: what fills rows that have ended."""

    max_new_tokens: int
    temperature: float
    seed: int
    pad: int

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `generate`; no truncation of the law, whatever the model's own config says."""
        common: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "pad_token_id": self.pad}
        if self.temperature == 0:
            return {**common, "do_sample": False}
        return {**common, "do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}


@dataclass(frozen=True)
class Answer:
    """sequences: `[rows, length]`, the prompts included. passes: calls of the target's forward, where counted."""

    sequences: Tensor
    passes: int | None = None
    stats: Stats | None = None
    guarantee: str | None = None


Runner = Callable[[Tensor, Tensor, Call], Answer]


def build(contender: Contender, target: HFTarget, tokenizer: Any, setting: Setting) -> Runner:
    """A function of ids `[rows, length]`, mask and `Call`. Raises Skipped where the strategy cannot take part."""
    model = target.model
    if contender.kind == "plain":
        return _generate(model, counted=False)
    if contender.kind in ("lookup", "assisted"):
        if setting.batch > 1:
            raise Skipped("assisted generation of transformers takes one row at a time")
        if contender.kind == "lookup":
            return _generate(model, prompt_lookup_num_tokens=int(contender.argument))
        return _generate(model, assistant_model=_assistant(contender.argument, model))
    if contender.kind == "call":
        return _given(contender.argument, model, tokenizer)
    try:
        return _decoder(Decoder.from_config(contender.with_setting(setting.exactness, setting.compile), target))  # type: ignore[arg-type]
    except Exception as error:  # the others go on, whatever is wrong with this one
        raise Skipped(str(error) or type(error).__name__) from error


def _generate(model: Any, counted: bool = True, **options: Any) -> Runner:
    def run(ids: Tensor, mask: Tensor, call: Call) -> Answer:
        torch.manual_seed(call.seed)
        with _Passes(model if counted else None) as passes:
            text = model.generate(input_ids=ids, attention_mask=mask, **options, **call.options)
        return Answer(text, passes.count)

    return run


def _decoder(decoder: Decoder) -> Runner:
    def run(ids: Tensor, mask: Tensor, call: Call) -> Answer:
        seed = None if call.temperature == 0 else call.seed
        # Asking for a dict makes the engine note margins; taking the stream spares the copy of the cache.
        stream = decoder.stream(
            input_ids=ids, attention_mask=mask, seed=seed, return_dict_in_generate=True, **call.options
        )
        for _ in stream:
            pass
        return Answer(stream.sequences, None, stream.stats, str(stream.guarantee))

    return run


def _given(place: str, model: Any, tokenizer: Any) -> Runner:
    """FILE:FUNCTION, where FUNCTION(model, tokenizer) gives a function of ids, mask and options that returns ids."""
    file, _, name = place.rpartition(":")
    path = Path(file)
    spec = importlib.util.spec_from_file_location(f"specdec_bench_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"call:{place}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the module look it up
    try:
        spec.loader.exec_module(module)
        make = getattr(module, name, None)
        if make is None:
            raise ConfigError(f"call:{place}: the file has no {name!r}")
        decode = make(model, tokenizer)
    except ConfigError:
        raise
    except ImportError as error:
        raise Skipped(f"not installed: {error}") from error
    except Exception as error:
        raise Skipped(str(error) or type(error).__name__) from error

    def run(ids: Tensor, mask: Tensor, call: Call) -> Answer:
        torch.manual_seed(call.seed)
        with _Passes(model) as passes:
            text = decode(ids, mask, **call.options)
        return Answer(text, (passes.count or 0) * len(ids) or None)

    return run


def _assistant(name: str, model: Any) -> Any:
    from specdec.targets.load import load_model

    return load_model(name, dtype=model.dtype, device=model.device)[0]


class _Passes:
    """Counts calls of a model's forward by a hook, which is taken off again."""

    def __init__(self, model: Any) -> None:
        self.count: int | None = None if model is None else 0
        self._model, self._hook = model, None

    def __enter__(self) -> _Passes:
        if self._model is not None:
            self._hook = self._model.register_forward_pre_hook(self._note)
        return self

    def _note(self, module: Any, arguments: Any) -> None:
        self.count = (self.count or 0) + 1

    def __exit__(self, *error: object) -> None:
        if self._hook is not None:
            self._hook.remove()
