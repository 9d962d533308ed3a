"""Prompts from templates, over passages that the target writes itself, and dialogues whose questions it writes too."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence

from specdec.heads import phrases
from specdec.heads.prompts import Passage, Recipe, Request, Turn
from specdec.heads.templates import FOLLOW_UPS, QUESTIONS, TASKS

__all__ = ["MIX", "TemplatePrompts"]

MIX: dict[str, float] = {
    "self": 0.25, "write": 0.09, "summary": 0.11, "translate": 0.11, "passage-qa": 0.12, "trivia": 0.04,
    "maths": 0.11, "general": 0.08, "extract": 0.03, "rewrite": 0.03, "code": 0.03,
}  # fmt: skip
"""Share of the dialogues by task; `self` means that the target writes the user's turns."""

WITH_PASSAGE = ("summary", "translate", "passage-qa", "extract", "rewrite")
FIRST, WAVE = 400, 2000  # dialogues of the first wave, which needs no passages, and of every later one
HELD_OUT = 0.12


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
            # No further passages: the second wave waits for all of them.
            names = [name for name in self._mix if name not in (*WITH_PASSAGE, "write")]
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


def _sentences(text: str) -> list[str]:
    found = [part.strip() for part in re.split(r"(?<=[.!?])\s+", text) if len(part.split()) >= 4]
    return found or [text]


def _cut(text: str, characters: int) -> str:
    """Whole sentences of `text`, about `characters` long."""
    kept: list[str] = []
    length = 0
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
