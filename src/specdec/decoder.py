"""The front door: parts are composed here, and used as `generate` is."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.config import DecoderConfig, StrategyConfig, TargetConfig, create, load_config
from specdec.core.contracts import Exactness, problems
from specdec.core.draft import Kind
from specdec.core.engine import Generation, Parts
from specdec.core.errors import IncompatibleError, UnsupportedOptionError
from specdec.core.guarantee import Guarantee
from specdec.core.interfaces import Drafter, Scheduler, Target, Verifier
from specdec.core.population import spread
from specdec.core.recorder import Recorder
from specdec.core.rng import TorchRng
from specdec.exactness import Mode
from specdec.plugins.manager import discover
from specdec.result import DecoderOutput, Stream
from specdec.schedulers.adaptive import Adaptive
from specdec.schedulers.fixed import Fixed
from specdec.targets import request as requests
from specdec.targets.hf import HFTarget
from specdec.targets.options import by_name, refuse_arguments, set_aside
from specdec.targets.request import Request
from specdec.verifiers.block import Block
from specdec.verifiers.greedy import Greedy
from specdec.verifiers.traversal import Traversal
from specdec.verifiers.walk import Walk

_DRAFT, _VERIFY = 1, 2


class Decoder:
    """Generates the text that `target` would, faster. Composed once, used from any thread.

    target: a causal LM of transformers. drafter: what guesses. verifier: what checks; by default the best exact
    rule for the drafter's candidates. scheduler: how much is drafted; by default `adaptive`, and `fixed` for
    sampled drafts with a seed, whose text measured time would otherwise decide.
    allow: weakest law that is accepted, such as "approximate"; by default only exact ones.
    compile: run passes at a closed set of widths (1, 16, 32, 64 nodes) over a few extents, each compiled when it is
        first met and reused by every later call; a pass of another shape runs as it is. On a CPU the model's weights
        are held once more, packed for its kernels; "weights" does that alone, and compiles nothing.
    exactness: "algorithmic" is exact for the logits of the verification passes; "fixed-width" says bit for bit what
        the same decoder says without drafts, in passes of 16 nodes ("fixed-width:8": of 8).

    Raises IncompatibleError, with all problems at once, where the parts do not fit together.
    """

    def __init__(
        self,
        target: nn.Module | Target,
        drafter: Drafter,
        verifier: Verifier | None = None,
        scheduler: Scheduler | None = None,
        exactness: str = "algorithmic",
        allow: str | None = None,
        compile: bool | str = False,
    ) -> None:
        for role, part, kind in (
            ("drafter", drafter, Drafter),
            ("verifier", verifier, Verifier),
            ("scheduler", scheduler, Scheduler),
        ):
            _refuse_other(role, part, kind)
        self.target = target if isinstance(target, Target) else HFTarget(target, compile=compile)
        drafter = drafter.for_target(self.target)
        self.drafter, self.verifier, self.scheduler = drafter, verifier, scheduler
        self.exactness, self.allow, self.compile = exactness, allow, compile
        self._usual = verifier if verifier is not None else _verifier_for(drafter)
        self._mode = Mode.parse(exactness)
        self._adaptive, self._fixed, self._greedy = Adaptive(), Fixed(), Greedy()
        self._tokenizer: Any = None
        self._named: StrategyConfig | None = None  # what a config called the target that it was loaded for
        self._agreed: Any = None  # the last tokenizer that was found to be the drafter's
        self._check(Exactness.parse(allow) if allow else Exactness.EXACT_GREEDY)
        if compile and compile != self.target.compiles:
            raise UnsupportedOptionError(
                f"compile={compile!r} with a {type(self.target).__name__} that has "
                f"compile={self.target.compiles!r}: only passes of a model are compiled. Give the model itself, a "
                f"target made with HFTarget(model, compile={compile!r}), or leave compile=False"
            )

    @classmethod
    def from_config(
        cls, config: str | PathLike[str] | Mapping[str, Any] | DecoderConfig, target: nn.Module | None = None
    ) -> Decoder:
        """Build a decoder from a YAML or JSON file, a dict or a config; `target` spares loading the model.

        Raises ConfigError, which names the path of each wrong option.
        """
        whole = load_config(config)
        manager, tokenizer, named = discover(), None, None
        if target is None:
            if whole.target is None:
                raise IncompatibleError(["the config names no target; add `target: {model: ...}` or pass target="])
            named = whole.target
            target, tokenizer = (
                _load_target(named) if isinstance(named, TargetConfig) else (create("target", named), None)
            )
        parts = {
            role: manager.create(role, part)  # type: ignore[arg-type]
            for role in ("drafter", "verifier", "scheduler")
            if (part := getattr(whole, role)) is not None
        }
        decoder = cls(target, **parts, exactness=whole.exactness, allow=whole.allow, compile=whole.compile)
        decoder._tokenizer, decoder._named = tokenizer, named
        if tokenizer is not None:
            decoder._check_tokenizer(tokenizer)
        return decoder

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that came with the target, where a config named it; None where a model was given."""
        return self._tokenizer

    @property
    def config(self) -> DecoderConfig:
        """The config that rebuilds this decoder; raises IncompatibleError where a part has none.

        A target that was loaded for a config is called what that config called it.
        """
        parts = [part for part in (self.drafter, self.verifier, self.scheduler) if part is not None]
        made = {part.role: part.config for part in parts}
        if missing := [part for part in parts if made[part.role] is None]:
            advice = "has no config; register it as a strategy to write it to a file"
            raise IncompatibleError([f"{part.role} '{part.name}' {advice}" for part in missing])
        model = getattr(self.target, "model", None)
        name = getattr(getattr(model, "config", None), "_name_or_path", None)
        return discover().stamp(
            DecoderConfig(
                target=self._named or (TargetConfig(model=name) if name else None),
                exactness=self._mode.label,
                allow=self.allow,  # type: ignore[arg-type]
                compile=self.compile,  # type: ignore[arg-type]
                **made,  # type: ignore[arg-type]
            )
        )

    def generate(
        self,
        *args: Any,
        seed: int | None = None,
        streamer: Any = None,
        tokenizer: Any = None,
        **kwargs: Any,
    ) -> DecoderOutput | Tensor:
        """Generate as `target.generate` would: same arguments, same return types.

        seed: of the sampling; None draws one from torch's global generator, so `torch.manual_seed` governs it.
        streamer: gets the prompt, then every token on its own, for one row; of particles, whose text is drawn after
            the last round, then. tokenizer: for `stop_strings`.

        Raises UnsupportedOptionError, before anything runs, for options that would be silently wrong; whatever a
        part raises keeps its type and names the part and the round. The decoder can be used again afterwards.
        """
        kwargs = by_name(args, kwargs)
        positional = kwargs.pop("streamer", None)
        stream = self.stream(seed=seed, tokenizer=tokenizer, **kwargs)
        return _drain(stream, positional if streamer is None else streamer)

    def stream(self, *args: Any, seed: int | None = None, tokenizer: Any = None, **kwargs: Any) -> Stream:
        """Like `generate`, one event a round: what each row drafted, kept and emitted. See `Stream`."""
        model, kwargs = self._model(), by_name(args, kwargs)
        refuse_arguments(model, kwargs)
        seed = _integer(seed)
        if tokenizer is not None:
            self._check_tokenizer(tokenizer)
        # For stop strings `generate` would look for the tokenizer, which it does not hand on to a decoding method;
        # for a static cache it would allocate one, which is not used, and note its size on the model.
        model, kwargs, taken = set_aside(model, kwargs, ("stop_strings", "cache_implementation"))
        extra = []
        if (stops := taken["stop_strings"]) is not None:
            tokenizer = self._tokenizer if tokenizer is None else tokenizer
            extra.append(requests.stop_string_criterion(tokenizer, stops))
        request = requests.build(requests.catch(model, kwargs), extra)
        return self._start(request, seed)

    def __call__(
        self,
        model: nn.Module,
        input_ids: Tensor,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        generation_config: Any = None,
        seed: int | None = None,
        **model_kwargs: Any,
    ) -> DecoderOutput | Tensor:
        """Decode for `target.generate(..., custom_generate=decoder)`.

        `generate` does not hand streamers, stop strings and assistants to a custom decoding method, so they
        cannot work from that side: call `decoder.generate` for them.
        """
        ours = self._model()
        if model is not ours and model is not getattr(ours, "base_model", None) and model is not _unwrapped(ours):
            raise IncompatibleError(
                [f"this decoder was composed for a {type(ours).__name__}, and generate was called on another model"]
            )
        caught = requests.Caught(
            model, input_ids, tuple(logits_processor), tuple(stopping_criteria), generation_config, model_kwargs
        )
        return _drain(self._start(requests.build(caught), _integer(seed)), None)

    def _start(self, request: Request, seed: int | None) -> Stream:
        required = Exactness.EXACT_GREEDY if request.greedy else Exactness.EXACT_SAMPLING
        allowed = min(required, Exactness.parse(self.allow)) if self.allow else required
        verifier = self._usual
        if request.greedy and verifier.exactness >= Exactness.EXACT_GREEDY:
            verifier = self._greedy  # proven equal to every exact rule at temperature 0, and cheaper
        self._check(allowed, verifier)
        if request.greedy and not verifier.greedy:
            raise IncompatibleError([
                f"verifier '{verifier.name}' weighs texts that are drawn; this call decodes greedily. Pass "
                "do_sample=True, or compose the decoder with another verifier"
            ])  # fmt: skip
        if wrong := self._mode.problems_of_call(request, self.drafter, verifier):
            raise IncompatibleError(wrong)
        scheduler = self._scheduler(request.greedy, seed, verifier)
        target, standing, drift = self.target, self._mode.standing(), None
        if isinstance(target, HFTarget):
            drift = target.known_drift
            target = target.for_call(request.past, request.prefill_chunk, self._mode.width)
        rng = TorchRng(_fresh_seed() if seed is None else seed)
        recorder = Recorder(
            scores=request.wants_scores,
            logits=request.wants_logits,
            margins=request.greedy and request.returns_dict,
            drift=drift.margin if drift and request.greedy else None,
        )
        parts = Parts(target, self.drafter, verifier, scheduler)
        streams = rng.fold(_DRAFT), rng.fold(_VERIFY)
        rows = spread(request.rows, verifier.particles)
        generation = Generation(parts, rows, *streams, recorder, standing=standing)
        return Stream(request, generation, self._guarantee(request, verifier, scheduler, seed))

    def _scheduler(self, greedy: bool, seed: int | None, verifier: Verifier) -> Scheduler:
        if self.scheduler is not None:
            return self.scheduler
        if verifier.exactness < Exactness.EXACT_GREEDY:
            return self._fixed  # how much is drafted moves the law of an inexact rule; measured time must not
        sampled = not greedy and self.drafter.emits != frozenset({Kind.POINT})
        return self._fixed if sampled and seed is not None else self._adaptive

    def _guarantee(self, request: Request, verifier: Verifier, scheduler: Scheduler, seed: int | None) -> Guarantee:
        notes = []
        if verifier.bias_note:
            notes.append(verifier.bias_note)
        if request.greedy:
            return Guarantee(min(verifier.exactness, Exactness.EXACT_GREEDY), self.exactness, tuple(notes))
        sampled = self.drafter.emits != frozenset({Kind.POINT})
        if seed is not None and sampled and scheduler.measures_time:
            notes.append("the text of a seed may vary: measured time decides how much is drafted")
        return Guarantee(verifier.exactness, self.exactness, tuple(notes))

    def _check(self, required: Exactness, verifier: Verifier | None = None) -> None:
        found = problems(self.target, self.drafter, verifier or self._usual, required)
        found += self._mode.problems(self.target, self.drafter)
        if found:
            raise IncompatibleError(found)

    def _check_tokenizer(self, tokenizer: Any) -> None:
        if tokenizer is self._agreed:
            return  # comparing two vocabularies takes longer than a round
        if found := self.drafter.problems(self.target, tokenizer):
            from specdec.core.errors import TokenizerMismatchError

            raise TokenizerMismatchError(found)
        self._agreed = tokenizer

    def _model(self) -> Any:
        model = getattr(self.target, "model", None)
        if model is None:
            raise UnsupportedOptionError(
                f"target '{self.target.name}' is no transformers model, so there is no `generate` to prepare a call"
            )
        return model


def _drain(stream: Stream, streamer: Any) -> DecoderOutput | Tensor:
    if streamer is not None:
        stream.put_prompt(streamer)
    for event in stream:
        if streamer is not None:
            stream.put_tokens(streamer, event)
    if streamer is not None:
        stream.put_tokens(streamer, None)
        streamer.end()
    return stream.result()


def _refuse_other(role: str, part: Any, kind: type) -> None:
    if isinstance(part, kind) or (part is None and role != "drafter"):
        return
    hint = "; wrap a model in DraftModel(...) of specdec.drafters" if isinstance(part, nn.Module) else ""
    found = f"the class {part.__name__}: call it" if isinstance(part, type) else f"{type(part).__name__}{hint}"
    raise IncompatibleError([f"{role}: expected a {kind.__name__} of specdec, found {found}"])


def _verifier_for(drafter: Drafter) -> Verifier:
    """The best exact rule for a drafter's candidates."""
    if drafter.emits <= {Kind.POINT}:
        return Walk()
    return Traversal() if drafter.branching else Block()


def _load_target(config: TargetConfig) -> tuple[nn.Module, Any]:
    from specdec.targets.load import load_model

    return load_model(
        config.model, dtype=config.dtype, revision=config.revision, trust_remote_code=config.trust_remote_code
    )


def _integer(seed: Any) -> int | None:
    try:
        return None if seed is None else operator.index(seed)
    except TypeError:
        found = f"{seed!r}, a {type(seed).__name__}"
        raise UnsupportedOptionError(f"seed: expected a whole number or None, found {found}") from None


def _fresh_seed() -> int:
    return int(torch.randint(0, 2**62, ()))


def _unwrapped(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else None
