"""A target's own dialogues as training data: many at a time, each slot refilled as soon as its dialogue ends."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specdec.core import host
from specdec.core.errors import ConfigError
from specdec.core.rng import TorchRng
from specdec.heads.chat import ChatFormat
from specdec.heads.choose import draw, first_best
from specdec.heads.dialogue import Dialogue
from specdec.heads.loops import REPEATED, period
from specdec.heads.packed import Chunk
from specdec.heads.prompts import Passage, Recipe, Request
from specdec.heads.rows import Rows, fastest_rows
from specdec.heads.shards import ShardReader, ShardWriter

__all__ = ["Distiller", "Progress"]

USER_TOKENS = 100  # a longer user's turn by the target itself is thrown away
PREFILL = 512  # tokens of new prompts that one pass takes up at most
FRESH = 24  # tokens that an answer must have besides a repetition at its end


@dataclass(slots=True)
class _Row:
    """A dialogue under way. run: ids that the model has seen. begun: where the turn under way starts."""

    request: Request
    ids: list[int]
    writing: bool  # the target writes the user's turn
    begun: int
    run: int = 0
    turn: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    base: int = -1
    shared: int = 0


@dataclass(slots=True)
class Progress:
    """Counts of this call. sources: answer tokens by task."""

    answer_tokens: int = 0
    dialogues: int = 0
    passes: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)


class Distiller:
    """Makes the dialogues of a recipe with one model and writes them to shards.

    rows: how the target is run; it must not be used elsewhere meanwhile. stops: ids that end an answer. temperature: of
    answers that are not greedy; the noise is keyed by dialogue and position, so a dialogue does not depend on its
    neighbours. longest: tokens that a dialogue may have. shard_tokens: answer tokens of a shard.

    An answer that goes round in circles ends there. A dialogue is dropped where its first answer is little else, where
    its prompt is too long, or where the user's turn that the target wrote is empty, too long or no text.
    """

    def __init__(
        self,
        rows: Rows,
        tokenizer: Any,
        recipe: Recipe,
        writer: ShardWriter,
        *,
        stops: frozenset[int],
        temperature: float = 0.7,
        seed: int = 0,
        longest: int = 640,
        shard_tokens: int = 50_000,
    ) -> None:
        self._tokenizer, self._recipe, self._writer = tokenizer, recipe, writer
        self._passes, self._chat = rows, ChatFormat(tokenizer, stops)
        self._temperature, self._rng = temperature, TorchRng(seed)
        self._longest, self._shard_tokens = longest, shard_tokens
        self._rows: dict[int, _Row] = {}  # slot to dialogue
        self._by_number: dict[int, int] = {}
        self._waiting: deque[_Row] = deque()
        self._passages: dict[int, Passage] = {}
        self._done: set[int] = set()
        self._next, self._ready = 0, 0
        self._finished: list[Dialogue] = []
        self._lost: dict[int, str] = {}
        self._sizes: deque[int] = deque(maxlen=256)
        self.progress = Progress()

    @classmethod
    def of(
        cls, model: Any, tokenizer: Any, recipe: Recipe, writer: ShardWriter, *, slots: int, **options: Any
    ) -> Distiller:
        """For a model of its own, whose attention may be replaced; `slots` dialogues at a time."""
        config = getattr(model, "generation_config", None)
        ends = [getattr(config, "eos_token_id", None), tokenizer.eos_token_id]
        stops = frozenset(i for end in ends if end is not None for i in (end if isinstance(end, list) else [end]))
        return cls(fastest_rows(model, slots), tokenizer, recipe, writer, stops=stops, **options)

    @torch.inference_mode()
    def run(
        self,
        *,
        tokens: int | None = None,
        dialogues: int | None = None,
        report: Callable[[Progress], None] | None = None,
    ) -> Progress:
        """Make dialogues until the folder holds `tokens` answer tokens, or the first `dialogues` of the recipe.

        What is there already is not made again. Whatever ends the call, the dialogues that were finished are written.
        """
        held = self._resume()
        begun = time.perf_counter()
        try:
            while True:
                if tokens is None or held + self.progress.answer_tokens < tokens:
                    self._admit(min(n for n in (dialogues, self._recipe.count, 1 << 62) if n is not None))
                if not self._rows:
                    break
                self._step()
                self.progress.seconds = time.perf_counter() - begun
                if report is not None:
                    report(self.progress)
        finally:
            if self._finished or self._lost:
                self._flush()
        return self.progress

    def _resume(self) -> int:
        if not self._writer.index["shards"]:
            return 0
        reader = ShardReader(self._writer.folder)
        self._done = reader.numbers()
        for dialogue in reader:
            self._keep_passage(dialogue)
        return reader.answer_tokens

    def _admit(self, count: int) -> None:
        """Give free slots to the next dialogues of the recipe, as many prompt tokens as a pass should take."""
        free = [slot for slot in range(self._passes.rows) if slot not in self._rows]
        room, later = PREFILL, deque[_Row]()
        fresh: list[_Row] = []
        while free and room > 0:
            row = self._waiting.popleft() if self._waiting else self._new_row(count)
            if row is None:
                break
            row.base, row.shared = self._base(row)
            partner = next((other for other in fresh if other.request.number == row.request.number ^ 1), None)
            if partner is not None and _common(row.ids, partner.ids) > row.shared + 32:
                later.append(row)  # its neighbour's keys will be there after this pass
                continue
            slot = self._place(free, row)
            free.remove(slot)
            row.run = row.shared
            room -= len(row.ids) - row.run
            self.progress.prompt_tokens += len(row.ids) - row.run
            self._rows[slot] = row
            self._by_number[row.request.number] = slot
            fresh.append(row)
        later.extend(self._waiting)
        self._waiting = later

    def _new_row(self, count: int) -> _Row | None:
        while self._next < count:
            number = self._next
            if number in self._done:
                self._next += 1
                continue
            if not self._has_passages(self._recipe.needs(number)):
                return None
            self._next += 1
            request = self._recipe.request(number, self._passages)
            text = request.turns[0].text
            if text is None and not self._chat.has_turns:
                raise ConfigError("the tokenizer has no chat template, so the target cannot write the user's turns")
            ids = list(self._chat.head) if text is None else self._chat.first(text)
            if len(ids) + 32 > self._longest:
                self._drop(number, "too long")
                continue
            return _Row(request, ids, text is None, len(ids))
        return None

    def _has_passages(self, needed: int) -> bool:
        while self._ready < needed and (self._ready in self._done or self._recipe.writes(self._ready) is None):
            self._ready += 1
        return self._ready >= needed

    def _base(self, row: _Row) -> tuple[int, int]:
        """A slot whose first tokens are the row's too, and how many."""
        partner = self._by_number.get(row.request.number ^ 1)
        slots = ([] if partner is None else [partner]) + list(self._rows)[:1]
        best = (-1, 0)
        for slot in slots:
            other = self._rows[slot]
            shared = min(_common(row.ids, other.ids), other.run, len(row.ids) - 1)
            if shared > best[1]:
                best = (slot, shared)
        return best

    def _place(self, free: Sequence[int], row: _Row) -> int:
        """A free slot among rows of like length: short dialogues at one end, long ones at the other."""
        size = len(row.ids) + sum(turn.limit for turn in row.request.turns)
        self._sizes.append(size)
        rank = sum(other < size for other in self._sizes) / len(self._sizes)
        return min(free, key=lambda slot: abs(slot - rank * self._passes.rows))

    def _step(self) -> None:
        slots = list(self._rows)
        chunks = []
        for slot in slots:
            row = self._rows[slot]
            chunks.append(Chunk(slot, row.ids[row.run :], row.run, row.base, row.shared))
            row.run, row.base, row.shared = len(row.ids), -1, 0
        logits = self._passes.run(chunks)
        (tokens,) = host.read(self._chosen(logits, [self._rows[slot] for slot in slots]))
        self.progress.passes += 1
        for slot, token in zip(slots, tokens, strict=True):
            if self._take(self._rows[slot], int(token)):
                row = self._rows.pop(slot)
                del self._by_number[row.request.number]
                self._passes.release(slot)

    def _chosen(self, logits: Tensor, rows: Sequence[_Row]) -> Tensor:
        """`[rows]`: the best token of greedy answers, a drawn one of others."""
        chosen = first_best(logits)
        drawn = [i for i, row in enumerate(rows) if row.writing or not row.request.greedy]
        if drawn:
            heat = [1.0 if rows[i].writing else self._temperature for i in drawn]
            keys = [(rows[i].request.number, len(rows[i].ids)) for i in drawn]
            where = host.send(drawn, logits.device)
            warm = logits[where].float() / host.send(heat, logits.device, torch.float32)[:, None]
            chosen[where] = draw(warm.softmax(-1), self._rng, keys)
        return chosen

    def _take(self, row: _Row, token: int) -> bool:
        """Append a token; True where the dialogue is over."""
        if row.writing:
            return self._take_user(row, token)
        row.ids.append(token)
        length, turn = len(row.ids) - row.begun, row.request.turns[row.turn]
        end = ""
        if token in self._chat.stops:
            end = "eos"
        elif length >= turn.limit or len(row.ids) >= self._longest:
            end = "limit"
        elif length % 8 == 0 and (again := period(row.ids, row.begun)):
            end = "loop"
            if length - max(3 * again, REPEATED) < FRESH and not row.spans:
                self._drop(row.request.number, "loop")
                return True
        if not end:
            return False
        row.spans.append((row.begun, len(row.ids)))
        row.turn += 1
        if row.turn < len(row.request.turns) and end != "loop" and self._chat.has_turns:
            text = row.request.turns[row.turn].text
            more = self._chat.next(text, token)
            if len(row.ids) + len(more) + 32 <= self._longest:
                row.ids.extend(more)
                row.writing, row.begun = text is None, len(row.ids)
                return False
        self._finish(row, end)
        return True

    def _take_user(self, row: _Row, token: int) -> bool:
        if token in self._chat.stops and len(row.ids) > row.begun:
            row.ids.extend(self._chat.to_answer)
            row.writing, row.begun = False, len(row.ids)
            return False
        long = len(row.ids) - row.begun >= USER_TOKENS or len(row.ids) + 64 > self._longest
        if token in self._chat.special or token in self._chat.stops or long:
            if row.spans:
                self._finish(row, "limit")
            else:
                self._drop(row.request.number, "user turn")
            return True
        row.ids.append(token)
        return False

    def _finish(self, row: _Row, end: str) -> None:
        request = row.request
        ids = tuple(row.ids[: row.spans[-1][1]])
        dialogue = Dialogue(request.number, request.source, ids, tuple(row.spans), request.greedy, end)
        self._finished.append(dialogue)
        self._keep_passage(dialogue)
        self._done.add(request.number)
        self.progress.dialogues += 1
        self.progress.answer_tokens += dialogue.answer_tokens
        self.progress.ends[end] += 1
        self.progress.sources[request.source.split("/")[0]] += dialogue.answer_tokens
        if sum(d.answer_tokens for d in self._finished) >= self._shard_tokens:
            self._flush()

    def _drop(self, number: int, why: str) -> None:
        self._lost[number] = why
        self._done.add(number)
        self.progress.dropped[why] += 1

    def _keep_passage(self, dialogue: Dialogue) -> None:
        topic = self._recipe.writes(dialogue.number)
        if topic is None or (dialogue.end == "loop" and len(dialogue.spans) == 1):
            return
        start, end = dialogue.spans[0]
        text = self._tokenizer.decode(dialogue.ids[start:end], skip_special_tokens=True)
        if (passage := Passage.of(topic, text)) is not None:
            self._passages[dialogue.number] = passage

    def _flush(self) -> None:
        written = len(self._writer.index["shards"])
        try:
            self._writer.write(self._finished, self._lost)
        finally:  # not only after it: Ctrl-C may come when the shard is there, which must not be written twice
            if len(self._writer.index["shards"]) > written:
                self._finished, self._lost = [], {}


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of equal tokens at the front."""
    count = 0
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            break
        count += 1
    return count
