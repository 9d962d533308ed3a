"""The target that people have: any causal LM of transformers, used through its public forward."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdec.core.contracts import Caps, Needs
from specdec.core.errors import UnsupportedModelError, UnsupportedOptionError
from specdec.core.forest import Forest
from specdec.core.interfaces import Target, TargetSession
from specdec.core.state import Outcome, Row, Scores
from specdec.targets import compat
from specdec.targets.cached_lm import CachedLM
from specdec.targets.cached_session import CachedSession
from specdec.targets.drift import Drift, measure
from specdec.targets.fixed import FixedSession
from specdec.targets.layers import Lent, layers_of, with_layers
from specdec.targets.probe import Probe, probe
from specdec.targets.spec import dtype_of
from specdec.targets.taps import Taps, available

Past = Sequence[tuple[Tensor, Tensor]]

# With the attention implementation that was measured: `model.set_attn_implementation` may change it.
_PROBES: weakref.WeakKeyDictionary[nn.Module, tuple[str, Probe]] = weakref.WeakKeyDictionary()
_DRIFTS: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[str, torch.dtype], Drift]] = weakref.WeakKeyDictionary()


class HFTarget(Target):
    """Any decoder-only LM of transformers. Nothing on the model or its configs is changed.

    What its attention can do is measured, once a model, by a few passes over tiny inputs; raises
    UnsupportedModelError, with the cause, where even a chain is not scored as plain decoding would.
    compile: run passes at a closed set of widths over a few extents, each compiled once (`targets/compiled.py`);
    "weights": as they are, over packed weights (`targets/prepacked.py`).
    """

    name = "hf"

    def __init__(self, model: nn.Module, compile: bool | str = False) -> None:
        self.model: Any = model
        self.compiles = compile if compile == "weights" else bool(compile)
        self._lm = CachedLM(model), self._computed_by
        if compile not in (False, True, "weights"):
            raise UnsupportedOptionError(f"compile={compile!r}: expected True, False or 'weights'")
        if self.compiles is True and not self.lm.spec.takes_mask:
            raise UnsupportedOptionError(
                f"compile=True: passes of a fixed width need a mask, which the attention implementation of "
                f"{self.lm.spec.name} does not take. Call model.set_attn_implementation('sdpa') first"
            )
        self.vocab_size = self.lm.spec.vocab_size
        self._past: Past | None = None
        self._prefill_chunk: int | None = None
        self._width: int | None = None

    @property
    def lm(self) -> CachedLM:
        """The model with what is known of it; known anew after another attention implementation or dtype was set."""
        if self._lm[1] != self._computed_by:
            self._lm = CachedLM(self.model), self._computed_by
        return self._lm[0]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.lm.device

    @property
    def context_length(self) -> int | None:  # type: ignore[override]
        found = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        return int(found) if found else None

    @property
    def probe(self) -> Probe:
        kernel = str(getattr(self.model.config, "_attn_implementation", ""))
        known = _PROBES.get(self.model)
        if known is None or known[0] != kernel:
            known = _PROBES[self.model] = (kernel, probe(self.lm))
        return known[1]

    @property
    def caps(self) -> Caps:  # type: ignore[override]
        return self.probe.caps

    @property
    def drift(self) -> Drift:
        """How far wide passes move what decides a token; measured by some dozens of passes, once a model."""
        known = self.known_drift
        if known is None:
            known = measure(self.lm)
            _DRIFTS[self.model] = (self._computed_by, known)
        return known

    @property
    def known_drift(self) -> Drift | None:
        """`drift` if it has been measured, else None: nothing is run."""
        by, known = _DRIFTS.get(self.model, (None, None))
        return known if by == self._computed_by else None

    @property
    def _computed_by(self) -> tuple[str, torch.dtype]:
        return str(getattr(self.model.config, "_attn_implementation", "")), dtype_of(self.model)

    def features(self, names: Sequence[str]) -> tuple[str, ...]:
        return available(self.model, tuple(names))

    def shared(self, name: str) -> nn.Module | None:
        if name == "lm_head":
            return self.model.get_output_embeddings()
        if name == "layers":
            return layers_of(self.model)
        return self.model.get_input_embeddings() if name == "embed_tokens" else None

    def for_call(self, past: Past | None, prefill_chunk: int | None, width: int | None = None) -> HFTarget:
        """This target for one call.

        past: an earlier turn's keys and values, one row's, a layer. width: nodes of every pass after the prompt's,
        which then all have one shape.
        """
        if past is None and prefill_chunk is None and width is None:
            return self
        own = copy.copy(self)
        own._past, own._prefill_chunk, own._width = past, prefill_chunk, width
        return own

    def begin(self, rows: Sequence[Row], needs: Needs) -> HFSession:
        if not self.caps.batches and len(rows) > 1:
            raise UnsupportedModelError(
                f"{self.lm.spec.name} cannot score several rows in one pass: {self.caps.why}. Decode one at a time"
            )
        expected = max(row.max_length for row in rows)
        prompts = [row.tokens for row in rows]
        self._check_edge([len(prompt) for prompt in prompts], expected)
        lm = self.lm.compiled(self.compiles)
        if self._width is not None:
            session: CachedSession = FixedSession(lm, prompts, expected, self._width)
        else:
            session = lm.open(prompts, [row.group for row in rows], expected)
        return HFSession(session, rows, Taps(needs.features), self._past, self._prefill_chunk)

    def _check_edge(self, lengths: Sequence[int], longest: int) -> None:
        """Refuse texts that cross the length at which a model changes its rotary frequencies or scales.

        They are chosen for a whole pass, so drafted tokens and other rows would move them.
        """
        kind, edge = compat.length_edge(self.model.config.get_text_config(decoder=True))
        if edge is None or longest <= edge or (kind == "longrope" and min(lengths) > edge):
            return
        raise UnsupportedModelError(
            f"{self.lm.spec.name} computes positions anew ({kind}) at {edge} tokens, for all tokens of a pass: a text "
            f"of up to {longest} crosses that. Keep max_length at {edge}"
            + (", or begin with prompts that are longer" if kind == "longrope" else "")
        )


class HFSession(TargetSession):
    """One generation: rows are scored together, each keeping as many nodes as its own verdict allows."""

    def __init__(
        self,
        lm: CachedSession,
        rows: Sequence[Row],
        taps: Taps,
        past: Past | None = None,
        chunk: int | None = None,
    ) -> None:
        self.lm, self._taps, self._chunk, self.widths = lm, taps, chunk, lm.widths
        self._row = {row.index: number for number, row in enumerate(rows)}
        self._only = len(rows) == 1
        if past is not None:
            self.lm.adopt(0, past, range(past[0][0].shape[2]))

    def prefill(self) -> Scores:
        logits, features = self.lm.prefill(self._taps, self._chunk)
        return Scores(logits[:, None], dict(features))

    def score(self, forest: Forest) -> Scores:
        rows = [self._row[row.index] for row in forest.rows]
        # The anchor is the first node of the pass, so the draft's nodes move up by one.
        parents = [(-1, *(parent + 1 for parent in shape.parents)) for shape in forest.shapes]
        logits, features = self.lm.extend(rows, forest.tokens, parents, self._taps)
        return Scores(logits, dict(features))

    def commit(self, outcomes: Sequence[Outcome], live: Sequence[Row]) -> None:
        for outcome in outcomes:
            number = self._row[outcome.row.index]
            if outcome.row.rounds > 1:  # round 0 was the prompt, which is committed already
                self.lm.commit(number, (0, *outcome.path)[: len(outcome.tokens)])
        if not self._only and any(outcome.done for outcome in outcomes):
            self.lm.retire([self._row[row.index] for row in live])

    def lend(self, layers: Sequence[int]) -> Lent:
        view = with_layers(self.lm.lm.model, layers)
        return Lent(self.lm, view.compiled(self.lm.lm.compiles), self._row)

    def follow(self, ancestors: Mapping[int, int], live: Sequence[Row]) -> None:
        alive = {row.index for row in live}
        self.lm.follow({self._row[row]: self._row[source] for row, source in ancestors.items() if row in alive})
        self.lm.retire([self._row[index] for index in alive])
