"""What `Decoder.generate` returns: transformers' own output with statistics and a guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

from specdec.core.engine import Generation
from specdec.core.guarantee import Guarantee
from specdec.core.population import Ensemble
from specdec.core.state import Round, Row
from specdec.core.stats import Stats
from specdec.plugins.manager import discover
from specdec.targets.hf import HFSession
from specdec.targets.options import refuse
from specdec.targets.request import Request


@dataclass
class DecoderOutput(GenerateDecoderOnlyOutput):
    """`GenerateDecoderOnlyOutput` plus `stats` and `guarantee`. Attentions and hidden states are never given.

    In a batch, entries of `scores` and `logits` of a row that has ended are zero. A cache is returned for one row
    only: it holds all tokens but the last, so plain `generate` continues from it.
    particles: where a verifier weighs particles, those of each output: all texts, their weights, and how they fared.
        `stats` counts the tokens and passes of all of them.
    """

    stats: Stats | None = None
    guarantee: Guarantee | None = None
    particles: tuple[Ensemble, ...] | None = None


class Stream:
    """Iterates over the rounds of a generation; can be closed early. After the last round `result()` is complete."""

    def __init__(self, request: Request, generation: Generation, guarantee: Guarantee) -> None:
        self._request, self._generation, self.guarantee = request, generation, guarantee
        self._rounds = generation.rounds()
        self._plugins = discover()
        outputs = {row.output for row in generation.rows}
        self._waits = len(outputs) < len(generation.rows)  # which particle is the text is known at the end

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        event = next(self._rounds)
        if self._plugins.observes_rounds:
            self._plugins.observe_round(event)
        return event

    def put_prompt(self, streamer: Any) -> None:
        """Give a streamer the prompt, as `generate` does before the first token; one row only."""
        if len(self._request.rows) > 1:
            refuse([f"streamer with {len(self._request.rows)} rows: a streamer can show one row"])
        streamer.put(self._request.input_ids.cpu())

    def put_tokens(self, streamer: Any, event: Round | None) -> None:
        """Give a streamer the tokens of a round, one by one; of particles, all tokens after the last round (None)."""
        if event is None:
            tokens: Sequence[int] = self._rows[0].new_tokens if self._waits else ()
        else:
            tokens = () if self._waits else event.rows[0].tokens
        for token in tokens:
            streamer.put(torch.tensor([token]))

    def close(self) -> None:
        """Stop here; what was emitted stays available."""
        self._rounds.close()  # type: ignore[attr-defined]

    @property
    def generation(self) -> Generation:
        """The engine's own record of this generation, for whoever shows what happens in it."""
        return self._generation

    @property
    def _rows(self) -> Sequence[Row]:
        """The row of each output; of particles, the one that is drawn to be the text."""
        return self._generation.population.outputs(self._generation.rows)

    @property
    def stats(self) -> Stats:
        """Statistics of the rounds so far."""
        return self._generation.recorder.stats

    @property
    def sequences(self) -> Tensor:
        """`[rows, length]`: prompts as they were given, then what has been emitted, padded on the right."""
        rows = self._rows
        longest = max(len(row.new_tokens) for row in rows)
        new = [row.new_tokens + [self._request.pad] * (longest - len(row.new_tokens)) for row in rows]
        ids = self._request.input_ids
        return torch.cat([ids, torch.tensor(new, dtype=ids.dtype, device=ids.device)], dim=1)

    def result(self) -> DecoderOutput | Tensor:
        """What `generate` returns: ids alone, or everything asked for with `return_dict_in_generate=True`."""
        if not self._request.returns_dict:
            return self.sequences
        recorder, session = self._generation.recorder, self._generation.session
        out = DecoderOutput(
            sequences=self.sequences,  # type: ignore[arg-type]
            scores=self._steps(recorder.scores) if self._request.wants_scores else None,
            logits=self._steps(recorder.logits) if self._request.wants_logits else None,
            stats=self.stats,
            guarantee=self.guarantee,
            particles=self._generation.population.ensembles(self._generation.rows),
        )
        if len(self._generation.rows) == 1 and isinstance(session, HFSession):
            out[_CACHE_FIELD] = session.lm.export(0, len(self._rows[0].padding))
        return out

    def _steps(self, kept: dict[int, list[Tensor]]) -> tuple[Tensor, ...]:
        rows: Sequence[list[Tensor]] = [kept.get(row.index, []) for row in self._rows]
        steps = max(map(len, rows))
        if steps == 0:  # closed before the first round
            return ()
        blank = torch.zeros_like(next(tensor for row in rows for tensor in row))
        return tuple(torch.cat([row[step] if step < len(row) else blank for row in rows]) for step in range(steps))


_CACHE_FIELD = "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"
