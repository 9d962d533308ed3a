"""What a target is asked: by number, the same each time, and never the same for training and held-out data."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from specdec.core.errors import DataError
from specdec.heads.prompts import FilePrompts, Passage
from specdec.heads.template_prompts import MIX, WITH_PASSAGE, TemplatePrompts
from specdec.heads.templates import FOLLOW_UPS, TASKS
from tests.heads import chatty

GIVEN = [
    Passage(f"place {i}", " ".join(f"Sentence {j} of text {i} tells of river{i} and hill{j * i}." for j in range(9)))
    for i in range(60)
]


def recipe(seed=0, **options):
    return TemplatePrompts(seed, 0.5, (100, 200), given=GIVEN, first=10, wave=100, **options)


def asked(which, count, **options):
    made = recipe(**options)
    return [made.request(number, {}) for number in range(count)]


def test_a_number_names_a_dialogue():
    there, back = asked(0, 100), [recipe().request(n, {}) for n in reversed(range(100))]
    assert there == back[::-1]
    assert there != asked(0, 300, seed=1)


def test_templates_of_every_task_are_asked():
    requests = asked(0, 2500)
    tasks = Counter(request.source.split("/")[0] for request in requests)
    assert set(tasks) == set(MIX)
    for task, share in MIX.items():
        assert tasks[task] / 2500 == pytest.approx(share, abs=0.03)
    used = {request.source for request in requests} - {"self"}
    assert len(used) >= 100 and sum(map(len, TASKS.values())) >= 120
    assert set(FOLLOW_UPS) == set(TASKS)
    texts = [turn.text for request in requests for turn in request.turns if turn.text is not None]
    assert not any(
        "{" in text.replace("{name}", "") and "}" in text for text in texts if "```" not in text and "\n  " not in text
    )
    assert {len(request.turns) for request in requests} == {1, 2, 3}
    # The instruction stands before the passage in some wordings and after it in others.
    first = {text.startswith("{passage}") for text in (*TASKS["summary"], *TASKS["passage-qa"])}
    assert first == {True, False}


def test_half_of_the_answers_are_greedy_and_neighbours_share_a_passage():
    requests = asked(0, 1000)
    assert sum(request.greedy for request in requests) == 500
    pairs = [
        (one, other) for one, other in zip(requests[::2], requests[1::2], strict=True)
        if one.source.split("/")[0] in WITH_PASSAGE and one.number >= 10
    ]  # fmt: skip
    assert len(pairs) > 150
    assert all(one.turns == other.turns and one.greedy != other.greedy for one, other in pairs)
    for share in (0.0, 0.3, 1.0):
        made = TemplatePrompts(0, share, (100,))
        assert sum(made.greedy(n) for n in range(1000)) == round(1000 * share)


def test_held_out_prompts_have_templates_topics_and_passages_of_their_own():
    training, held_out = asked(0, 1200), asked(0, 500, held_out=True, seed=5)
    sources = [{request.source for request in part} - {"self"} for part in (training, held_out)]
    assert not sources[0] & sources[1] and len(sources[1]) >= 10
    texts = [" ".join(t.text or "" for r in part for t in r.turns) for part in (training, held_out)]
    passages = [{i for i in range(60) if f"river{i} " in text} for text in texts]
    assert not passages[0] & passages[1] and all(passages) and len(passages[0]) > 40
    grams = []
    for part in (training, held_out):
        words = [(turn.text or "").split() for request in part for turn in request.turns]
        grams.append({tuple(text[i : i + 13]) for text in words for i in range(len(text) - 12)})
    assert not grams[0] & grams[1] and all(len(found) > 1000 for found in grams)


def test_passages_come_from_waves_that_are_done():
    made = TemplatePrompts(3, 0.5, (100,), first=20, wave=30)
    assert [made.needs(n) for n in (0, 19, 20, 49, 50, 79, 80, 110)] == [0, 0, 20, 20, 20, 20, 50, 80]
    written = {n: made.writes(n) for n in range(20) if made.writes(n)}
    assert set(written) == set(range(8))  # at the beginning, since the second wave waits for them
    wanted = [made.request(n, {}).source for n in range(20)]
    assert all(source.startswith("write/") for source in wanted[:8])
    assert not any(source.split("/")[0] in WITH_PASSAGE for source in wanted)
    for number, topic in written.items():
        assert topic in made.request(number, {}).turns[0].text
    early, late = Passage("bees", "Bees fly. " * 20), Passage("wasps", "Wasps fly too. " * 20)
    texts = [turn.text or "" for n in range(20, 80) for turn in made.request(n, {2: early, 25: late}).turns]
    assert any("Bees" in text for text in texts) and not any("Wasps" in text for text in texts)
    assert any("Wasps" in (t.text or "") for n in range(80, 140) for t in made.request(n, {2: early, 25: late}).turns)


def test_only_self():
    made = TemplatePrompts(0, 0.5, (100,), mix={"self": 1.0}, first=0)
    requests = [made.request(n, {}) for n in range(30)]
    assert {request.source for request in requests} == {"self"}
    assert all(turn.text is None for request in requests for turn in request.turns)


def test_prompts_of_a_file(tmp_path):
    path = tmp_path / "p.jsonl"
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
    ]
    lines = [
        {"prompt": "one"},
        {"turns": ["two", "three"]},
        {"messages": [*messages, {"role": "user", "content": "v"}]},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    made = FilePrompts(path, 0, 0.5, (7,))
    assert made.count == 3
    turns = [[turn.text for turn in made.request(n, {}).turns] for n in range(3)]
    assert turns == [["one"], ["two", "three"], ["u", "v"]]
    assert made.request(1, {}).source == "p" and made.request(1, {}).turns[0].limit == 7
    text = tmp_path / "p.txt"
    text.write_text("first\n\n  second  \n")
    assert [FilePrompts(text, 0, 0.5, (7,)).request(n, {}).turns[0].text for n in range(2)] == ["first", "second"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: no prompt"),
        ('{"prompt": 3}', "line 2: no prompt.*expected an object with 'prompt'"),
        ('{"prompt": " "}', "line 2: no prompt"),
        ('{"turns": []}', "line 2: no prompt"),
        ('{"turns": ["a", 2]}', "line 2: no prompt"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 2: no prompt"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_named(tmp_path, line, fault):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=fault):
        FilePrompts(path, 0, 0.5, (7,))


def test_a_file_without_prompts_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: the prompts cannot be read"):
        FilePrompts(tmp_path / "none.txt", 0, 0.5, (7,))
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"empty\.txt: no prompts"):
        FilePrompts(tmp_path / "empty.txt", 0, 0.5, (7,))


def test_the_chat_template_is_cut_into_pieces():
    from specdec.heads.chat import ChatFormat

    tokenizer = chatty.tokenizer()
    chat = ChatFormat(tokenizer, frozenset({0}))

    def ids(*turns, ask=True):
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
        return tokenizer(text, add_special_tokens=False).input_ids

    assert chat.first("hello") == ids("hello")
    assert [*chat.head, *tokenizer("hello").input_ids, *chat.to_answer] == ids("hello")
    answer = tokenizer("fine").input_ids
    asked = [*ids("hello"), *answer]
    # Cut at its limit, the answer gets the end of turn that it lacks; one that it has is not repeated.
    assert [*asked, *chat.next("why", answer[-1])] == ids("hello", "fine", "why")
    assert [*asked, 0, *chat.next("why", 0)] == ids("hello", "fine", "why")
    assert [*asked, 0, *chat.next(None, 0), *tokenizer("why").input_ids, *chat.to_answer] == ids("hello", "fine", "why")


def test_without_a_chat_template_prompts_stand_alone():
    import copy

    from specdec.heads.chat import ChatFormat

    plain = copy.deepcopy(chatty.tokenizer())
    plain.chat_template = None
    chat = ChatFormat(plain, frozenset({0}))
    assert not chat.has_turns and chat.first("hello") == plain("hello").input_ids and chat.to_answer == ()
