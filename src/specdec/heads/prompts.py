"""What a target is asked: a recipe gives every dialogue by its number, so that any of them can be made again."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.core.errors import DataError
from specdec.heads import phrases
from specdec.heads.templates import FOLLOW_UPS, QUESTIONS, TASKS

__all__ = ["MIX", "FilePrompts", "Passage", "Recipe", "Request", "TemplatePrompts", "Turn", "passage_of"]

MIX: dict[str, float] = {
    "self": 0.25, "write": 0.09, "summary": 0.11, "translate": 0.11, "passage-qa": 0.12, "trivia": 0.04,
    "maths": 0.11, "general": 0.08, "extract": 0.03, "rewrite": 0.03, "code": 0.03,
}  # fmt: skip
"""Share of the dialogues by task; `self` means that the target writes the user's turns."""

WITH_PASSAGE = ("summary", "translate", "passage-qa", "extract", "rewrite")
FIRST, WAVE = 400, 2000  # dialogues of the first wave, which needs no passages, and of every later one
HELD_OUT = 0.12


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's turn, written by the target itself where `text` is None, and the most tokens of the answer."""

    text: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class Request:
    """One dialogue to be made. source names the template."""

    number: int
    source: str
    turns: tuple[Turn, ...]
    greedy: bool


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that templates ask about, and its topic in a few words."""

    topic: str
    text: str


class Recipe:
    """Dialogues by number. Subclasses say what is asked; which answers are greedy is alternated here."""

    count: int | None = None
    """Number of dialogues, None without end."""

    def __init__(self, seed: int, greedy_share: float, limits: Sequence[int]) -> None:
        self.seed, self.greedy_share, self.limits = seed, greedy_share, tuple(limits)

    def greedy(self, number: int) -> bool:
        """Whether the answers of a dialogue are greedy: evenly spread, so that neighbours differ at a half."""
        return int((number + 1) * self.greedy_share) > int(number * self.greedy_share)

    def needs(self, number: int) -> int:
        """All dialogues below this number that are passages must be done before `number` can be asked for."""
        return 0

    def writes(self, number: int) -> str | None:
        """The topic on which the dialogue's answer will be a passage for others; None where it will not."""
        return None

    def request(self, number: int, passages: Mapping[int, Passage]) -> Request:
        """Dialogue `number`. passages: those written by dialogues below `needs(number)`, by number."""
        raise NotImplementedError


class FilePrompts(Recipe):
    """Prompts of a file: `.jsonl` with `prompt`, `turns` or `messages` a line, else a text file, one prompt a line.

    Raises DataError, naming the line, where a prompt cannot be read.
    """

    def __init__(self, path: Path, seed: int, greedy_share: float, limits: Sequence[int]) -> None:
        super().__init__(seed, greedy_share, limits)
        self._name = path.stem
        self._dialogues = _read_prompts(path)
        self.count = len(self._dialogues)

    def request(self, number: int, passages: Mapping[int, Passage]) -> Request:
        limit = random.Random(f"{self.seed}-{number}").choice(self.limits)
        turns = tuple(Turn(text, limit) for text in self._dialogues[number])
        return Request(number, self._name, turns, self.greedy(number))


class TemplatePrompts(Recipe):
    """Prompts from this package's templates, over passages that the target writes in the same run, and its own turns.

    Passages are asked for in every wave and used from the next wave but one, those of the first from the second.
    held_out: only templates, topics and phrases that are kept from training data; False: none of them.
    given: further passages. mix: share by task.
    """

    def __init__(
        self,
        seed: int,
        greedy_share: float,
        limits: Sequence[int],
        *,
        mix: Mapping[str, float] = MIX,
        given: Sequence[Passage] = (),
        held_out: bool = False,
        first: int = FIRST,
        wave: int = WAVE,
    ) -> None:
        super().__init__(seed, greedy_share, limits)
        self._mix, self._first, self._wave, self._held_out = dict(mix), first, wave, held_out
        self._given = [passage for passage in given if _is_held_out(passage.text) == held_out]
        self._fill = {name: self._share(values) for name, values in _FILL.items()}
        self._templates = {
            task: [(place, text) for place, text in enumerate(texts) if text in self._share(texts)]
            for task, texts in TASKS.items()
        }

    def writes(self, number: int) -> str | None:
        if self._task(number) != "write":
            return None
        return random.Random(f"topic-{self.seed}-{number}").choice(self._fill["topic"])

    def needs(self, number: int) -> int:
        wave = self._wave_of(number)
        return 0 if wave == 0 else self._first + max(0, wave - 2) * self._wave

    def request(self, number: int, passages: Mapping[int, Passage]) -> Request:
        task = self._task(number)
        paired = task in WITH_PASSAGE
        # Neighbours with a passage are asked the same, one greedy and one sampled: its keys are computed once.
        rng = random.Random(f"{self.seed}-{number // 2 * 2 if paired else number}")
        limit = rng.choice(self.limits)
        if task == "self":
            turns = [Turn(None, limit)] * rng.choice((1, 1, 2))
            return Request(number, "self", tuple(turns), self.greedy(number))
        place, template = rng.choice(self._templates[task])
        needed = self.needs(number)
        pool = [*self._given, *(passages[i] for i in sorted(passages) if i < needed)]
        fill = self._filled(rng, pool, template)
        fill["topic"] = self.writes(number) or fill["topic"]
        texts = [template.format(**fill)]
        if rng.random() < 0.4:
            for wording in rng.sample(FOLLOW_UPS[task], rng.choice((1, 1, 2))):
                texts.append(wording.format(**fill))
        limits = [limit, *(min(limit, 128) for _ in texts[1:])]
        turns = [Turn(text, most) for text, most in zip(texts, limits, strict=True)]
        return Request(number, f"{task}/{place}", tuple(turns), self.greedy(number))

    def _wave_of(self, number: int) -> int:
        return 0 if number < self._first else 1 + (number - self._first) // self._wave

    def _task(self, number: int) -> str:
        if self._wave_of(number) == 0 and not self._given:
            if number < 0.4 * self._first:
                return "write"
            names = [name for name in self._mix if name not in WITH_PASSAGE]
        else:
            names = list(self._mix)
        rng = random.Random(f"task-{self.seed}-{number // 2}")
        return rng.choices(names, [self._mix[name] for name in names])[0]

    def _filled(self, rng: random.Random, pool: Sequence[Passage], template: str) -> dict[str, str]:
        pick = {name: rng.choice(values) for name, values in self._fill.items()}
        fill = {name: value for name, value in pick.items() if name != "sentence_de"}
        fill["concept2"], fill["thing2"] = rng.choice(self._fill["concept"]), rng.choice(self._fill["thing"])
        fill["german"], fill["german2"] = self._german(rng), self._german(rng)
        language, foreign = pick["sentence_other"].split("|")
        fill["language2"], fill["foreign"] = language, self._numbers(rng, foreign)
        fill["problem"] = self._problem(rng)
        # A target that wrote no passage is asked about sums.
        pool = pool or [Passage(fill["topic"], " ".join(self._problem(rng) for _ in range(3)))]
        passage, other = rng.choice(pool), rng.choice(pool)
        sentences = _sentences(passage.text)
        fill["passage"] = _cut(passage.text, rng.choice((400, 600, 900)) if "{other}" not in template else 450)
        fill["other"] = _cut(other.text, 350)
        fill["short"] = " ".join(sentences[: rng.choice((1, 2, 3))])
        fill["sentence"] = rng.choice(sentences)
        if "{passage}" in template or "{short}" in template:
            fill["topic"] = passage.topic or "this"
        fill["question"] = rng.choice(QUESTIONS).format(topic=fill["topic"])
        return fill

    def _german(self, rng: random.Random) -> str:
        noun = rng.choice(phrases.NOUNS_DE)
        text = rng.choice(self._fill["sentence_de"]).format(
            place=rng.choice(phrases.PLACES_DE),
            noun=noun,
            Noun=noun[0].upper() + noun[1:],
            object=rng.choice(phrases.OBJECTS_DE),
            number=rng.randrange(3, 90),
        )
        return text

    def _numbers(self, rng: random.Random, text: str) -> str:
        return text.format(number=rng.randrange(10, 90), small=rng.randrange(2, 10))

    def _problem(self, rng: random.Random) -> str:
        first, second = rng.sample(phrases.NAMES, 2)
        return rng.choice(self._fill["maths"]).format(
            a=first,
            b=second,
            item=rng.choice(phrases.ITEMS),
            x=rng.randrange(11, 60),
            y=rng.randrange(3, 40),
            small=rng.randrange(2, 9),
            small2=rng.randrange(2, 9),
            big=rng.randrange(80, 600, 5),
            p=rng.randrange(5, 60, 5),
        )

    def _share(self, values: Sequence[str]) -> tuple[str, ...]:
        """The values that belong to this side; both sides have at least one."""
        ranked = sorted(dict.fromkeys(values), key=_digest)
        count = max(1, round(HELD_OUT * len(ranked)))
        kept = set(ranked[:count] if self._held_out else ranked[count:] or ranked)
        return tuple(value for value in values if value in kept)


_FILL: dict[str, Sequence[str]] = {
    "topic": phrases.TOPICS,
    "thing": phrases.THINGS,
    "event": phrases.EVENTS,
    "country": phrases.COUNTRIES,
    "concept": phrases.CONCEPTS,
    "activity": phrases.ACTIVITIES,
    "role": phrases.ROLES,
    "language": phrases.LANGUAGES,
    "sentence_de": phrases.SENTENCES_DE,
    "sentence_other": phrases.SENTENCES_OTHER,
    "maths": phrases.MATHS,
    "code": phrases.CODE,
    "program": phrases.PROGRAMS,
    "coding": ("JavaScript", "C", "Java", "Python", "Go", "Rust"),
}


def passage_of(topic: str, text: str) -> Passage | None:
    """What a target wrote, as a passage: whole sentences, without marks of formatting; None where little is left."""
    text = re.sub(r"[*#_`]+", "", text)
    text = re.sub(r"\s*\n\s*", " ", text).strip()
    end = max(text.rfind(mark) for mark in (". ", "! ", "? ", ".", "!", "?"))
    text = text[: end + 1].strip()
    return Passage(topic, text) if len(text.split()) >= 40 else None


def _sentences(text: str) -> list[str]:
    found = [part.strip() for part in re.split(r"(?<=[.!?])\s+", text) if len(part.split()) >= 4]
    return found or [text]


def _cut(text: str, characters: int) -> str:
    """Whole sentences of `text`, about `characters` long."""
    kept, length = [], 0
    for sentence in _sentences(text):
        if kept and length + len(sentence) > characters:
            break
        kept.append(sentence)
        length += len(sentence) + 1
    return " ".join(kept)[: 2 * characters]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is_held_out(text: str) -> bool:
    return int(_digest(text)[:8], 16) < HELD_OUT * 2**32


def _read_prompts(path: Path) -> list[tuple[str, ...]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the prompts cannot be read: {error}") from error
    found: list[tuple[str, ...]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found.append((line.strip(),) if path.suffix != ".jsonl" else _turns(f"{path}, line {number}", line))
    if not found:
        raise DataError(f"{path}: no prompts: expected one a line")
    return found


def _turns(where: str, line: str) -> tuple[str, ...]:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from error
    entry = entry if isinstance(entry, dict) else {}
    turns: Any = None
    if "messages" in entry:
        messages = entry["messages"] if isinstance(entry["messages"], list) else []
        turns = [m.get("content") for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    elif "turns" in entry:
        turns = entry["turns"]
    elif "prompt" in entry:
        turns = [entry["prompt"]]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise DataError(
            f"{where}: no prompt: expected an object with 'prompt' (a text), 'turns' (texts) or 'messages' "
            f"(with role and content), found {line[:60]!r}"
        )
    return tuple(turns)
