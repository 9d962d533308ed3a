"""A decode written down round by round, as plain data for a page: what was drafted, kept, thrown away and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specdec.analysis import path_values
from specdec.analysis.calibration import judged_nodes
from specdec.core import host
from specdec.core.draft import Draft
from specdec.core.errors import InvalidPromptError
from specdec.core.population import Population
from specdec.core.state import Outcome, Round
from specdec.trace.spelling import Spelling

if TYPE_CHECKING:
    from specdec.decoder import Decoder
    from specdec.result import Stream

__all__ = ["record"]

_POOL = 40  # entries of a pool that are shown


def record(decoder: Decoder, tokenizer: Any, inputs: Mapping[str, Any], **call: Any) -> dict[str, Any]:
    """Decode one prompt and return what happened, ready for JSON; text is made `visible`.

    inputs: what the tokenizer gave for one prompt; it is held against the drafter's. call: options of `Decoder.stream`.
    Raises InvalidPromptError for several prompts: a page shows one.
    """
    if len(inputs["input_ids"]) != 1:
        raise InvalidPromptError(f"a trace shows one prompt, found {len(inputs['input_ids'])}")
    stream = decoder.stream(**inputs, **{"tokenizer": tokenizer, **call, "return_dict_in_generate": True})
    moves = _watch(stream.generation.population)
    writer, rounds = _Writer(stream, tokenizer), []
    for event in stream:
        rounds.append(writer.round(event, dict(moves)))
        moves.clear()
    stats, rows = stream.stats, stream.generation.rows
    particles = stream.generation.population.ensembles(rows)
    prompt = inputs["input_ids"][0].tolist()
    return {
        "prompt": prompt,
        "pieces": writer.spelling.added(prompt, len(prompt)),
        "rows": len(rows),
        "rounds": rounds,
        "chosen": particles[0].chosen if particles else 0,
        "log_z": round(particles[0].log_z, 4) if particles else None,
        "survivors": particles[0].survivors if particles else None,
        "resampled": list(particles[0].resampled) if particles else None,
        "threshold": getattr(getattr(stream.generation.parts.verifier, "config", None), "threshold", None),
        "facts": {
            "drafter": decoder.drafter.name,
            "verifier": stream.generation.parts.verifier.name,
            "scheduler": stream.generation.parts.scheduler.name,
            "guarantee": str(stream.guarantee),
            **({"particles": len(rows)} if particles else {}),
            "new tokens": stats.emitted,
            "target passes": stats.target_passes,
            "tokens per pass": round(stats.tokens_per_pass, 3),
            "acceptance rate": round(stats.acceptance_rate, 3),
        },
        "text": writer.text(prompt),
    }


def _watch(population: Population) -> dict[int, int]:
    """A dict in which the moves of the next resampling will stand: row index to the row that it goes on from."""
    moves: dict[int, int] = {}
    asked = population.ancestors

    def noted(live: Any) -> Mapping[int, int]:
        found = asked(live)
        moves.update(found)
        return found

    population.ancestors = noted  # type: ignore[method-assign]
    return moves


class _Writer:
    """Turns events into data, and remembers which ids have to be explained."""

    def __init__(self, stream: Stream, tokenizer: Any) -> None:
        self._stream, self.spelling = stream, Spelling(tokenizer)
        self._seen: set[int] = set()
        self._anchors = {row.index: row.tokens[-1] for row in stream.generation.rows}

    def text(self, prompt: Sequence[int]) -> dict[str, str]:
        """What every id that occurs looks like."""
        return {str(token): self.spelling.alone(token) for token in sorted({*prompt, *self._seen})}

    def round(self, event: Round, moves: dict[int, int]) -> dict[str, Any]:
        """One event; `moves` happened before it."""
        generation, times = self._stream.generation, event.times
        for row, source in moves.items():
            self._anchors[row] = self._anchors[source]
        found: dict[str, Any] = {
            "number": event.number,
            "width": event.width,
            "ms": [round(1000 * part, 2) for part in (times.draft, times.target, times.verify, times.total)],
            "moves": sorted(moves.items()),
            "rows": [self._row(outcome) for outcome in event.rows],
        }
        if (ensembles := generation.population.ensembles(generation.rows)) is not None:
            found["weights"] = [round(weight, 5) for weight in ensembles[0].weights]
            found["ess"] = round(ensembles[0].ess[-1], 3)
        return found

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        row, draft, session = outcome.row, outcome.draft, self._stream.generation.drafting
        anchor = self._anchors[row.index]
        if outcome.tokens:
            self._anchors[row.index] = outcome.tokens[-1]
        shown = dict(session.shown(row)) if session is not None and len(draft) else {}
        pool = [[key, list(entry)] for key, entry in shown.get("pool", ())]
        pool.sort(key=lambda pair: pair[0] != anchor)  # those that this draft may have used come first
        found: dict[str, Any] = {
            "row": row.index,
            "anchor": anchor,
            "tokens": list(outcome.tokens),
            "pieces": self.spelling.added(row.tokens, len(outcome.tokens)),
            "kept": outcome.accepted,
            "nodes": self._nodes(outcome),
            "by": [list(pair) for pair in shown.get("drafters", ())],
            "end": row.finish_reason if row.done else None,
        }
        if "window" in shown:
            found["window"] = [list(line) for line in shown["window"]]
        if "pool" in shown:
            found["pool"], found["pooled"] = pool[:_POOL], len(pool)
        self._seen.update((anchor, *outcome.tokens, *outcome.drafted))
        self._seen.update(token for line in found.get("window", ()) for token in line)
        self._seen.update(token for key, entry in found.get("pool", ()) for token in (key, *entry))
        return found

    def _nodes(self, outcome: Outcome) -> list[dict[str, Any]]:
        """Every node of the draft: token, parent, fate, and what it was worth to target and drafter."""
        draft = outcome.draft
        if not len(draft):
            return []
        logits = outcome.scores.logits[outcome.index].double()  # [width, vocab]
        parents = host.send([parent + 1 for parent in draft.parents], logits.device)
        tokens = host.send(list(outcome.drafted), logits.device)
        chances = logits.softmax(-1)[parents, tokens].nan_to_num(0.0).clamp(0.0, 1.0)  # [nodes]
        drawn = self._drawn(draft, parents, tokens)
        chance, value, proposed = host.read(chances, path_values(chances, draft.parents), drawn)
        fates = judged_nodes(draft.parents, outcome.path)
        said = self._confidences(outcome)
        return [
            {
                "t": token,
                "p": parent,
                "d": fate.depth,
                "f": _fate(node in draft.scratch, fate.accepted, fate.open),
                "k": kind.value,
                "c": round(chance[node], 4),
                "v": round(value[node], 4),
                **({"s": round(said[node], 4)} if said else {}),
                **({"q": round(proposed[node], 4)} if kind.sampled else {}),
            }
            for node, (token, parent, kind, fate) in enumerate(
                zip(outcome.drafted, draft.parents, draft.kinds, fates, strict=True)
            )
        ]

    def _drawn(self, draft: Draft, parents: Tensor, tokens: Tensor) -> Tensor:
        """`[nodes]`: the chance with which the drafter's law gave each token; zero where there is no law."""
        if draft.q is None:
            return torch.zeros(len(draft), device=tokens.device)
        law = draft.q.to(tokens.device).double()
        known = parents < len(law)
        chances = law[parents.clamp(max=len(law) - 1), tokens]  # a law stands on the parent
        return torch.where(known, chances, 0.0).nan_to_num(0.0).clamp(0.0, 1.0)

    def _confidences(self, outcome: Outcome) -> list[float]:
        session = self._stream.generation.drafting
        said = session.confidences(outcome.row) if session is not None else None
        if said is None or said.numel() != len(outcome.draft):
            return []
        (values,) = host.read(said.double().flatten())
        return [float(value) for value in values]


def _fate(scratch: bool, accepted: bool, open_: bool) -> str:
    if scratch:
        return "scratch"
    if accepted:
        return "accepted"
    return "rejected" if open_ else "pruned"
