"""Prompts from files: what is read, and what is said of lines that cannot be read."""

from __future__ import annotations

import pytest

from specdec.bench.prompts import Prompt, built_in, first_of_each, read_prompts
from specdec.core.errors import InvalidPromptError

GOOD = '{"prompt": "first", "task": "a"}'


def written(tmp_path, text: str | bytes, name: str = "prompts.jsonl"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_built_in_prompts_are_three_of_each_task():
    counts: dict[str, int] = {}
    for prompt in built_in():
        counts[prompt.task] = counts.get(prompt.task, 0) + 1
    assert counts == dict.fromkeys(("chat", "code edit", "extraction", "summary", "reasoning", "translation"), 3)
    assert len({prompt.text for prompt in built_in()}) == 18


def test_the_forms_of_a_line(tmp_path):
    lines = [
        GOOD,
        "",
        '{"turns": ["second", "more"], "task": "b"}',
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "third"}]}',
    ]
    found = read_prompts(written(tmp_path, "\n".join(lines)))
    assert found == [Prompt("a", "first"), Prompt("b", "second"), Prompt("prompts", "third")]


def test_a_file_may_begin_with_the_mark_that_some_editors_write(tmp_path):
    assert read_prompts(written(tmp_path, "\ufeff" + GOOD)) == [Prompt("a", "first")]


def test_a_text_file_has_a_prompt_a_line(tmp_path):
    found = read_prompts(written(tmp_path, 'one\n\n{"not": "json here"}\r\n', "p.txt"))
    assert found == [Prompt("prompts", "one"), Prompt("prompts", '{"not": "json here"}')]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('{"prompt": "x"', "not valid JSON"),
        ("[1]", "found a list"),
        ('{"text": "x"}', "found 'text'"),
        ("{}", "found nothing"),
        ('{"prompt": "  "}', "not empty; found '  '"),
        ('{"prompt": 3}', "found 3"),
        ('{"turns": []}', r"found \[\]"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "expected a prompt that is a text"),
        ('{"prompt": "x", "task": 4}', "expected `task` to be a name; found 4"),
        (b'{"prompt": "\xff"}', "not UTF-8: .* at byte 12"),
    ],
)
def test_a_broken_line_is_named_and_the_rest_runs_on_request(tmp_path, line, cause):
    raw = line if isinstance(line, bytes) else line.encode()
    path = written(tmp_path, GOOD.encode() + b"\n\n" + raw + b"\n" + GOOD.encode() + b"\n")
    with pytest.raises(InvalidPromptError, match=rf"prompts\.jsonl, line 3: .*{cause}") as caught:
        read_prompts(path)
    assert "--skip-broken to run the other 2 prompts" in str(caught.value)
    said: list[str] = []
    assert read_prompts(path, skip_broken=True, say=said.append) == [Prompt("a", "first")] * 2
    assert len(said) == 1 and "line 3" in said[0]


def test_many_broken_lines_are_counted(tmp_path):
    with pytest.raises(InvalidPromptError, match="and 4 more lines"):
        read_prompts(written(tmp_path, "\n".join(["{"] * 9)))


def test_files_without_prompts(tmp_path):
    with pytest.raises(InvalidPromptError, match="holds no prompt"):
        read_prompts(written(tmp_path, "\n\n"))
    with pytest.raises(InvalidPromptError, match="holds no prompt"):
        read_prompts(written(tmp_path, "{"), skip_broken=True)
    with pytest.raises(InvalidPromptError, match="cannot be read: No such file"):
        read_prompts(tmp_path / "none.jsonl")


def test_first_of_each_task():
    prompts = [Prompt("a", "1"), Prompt("b", "2"), Prompt("a", "3"), Prompt("a", "4")]
    assert [prompt.text for prompt in first_of_each(prompts, 2)] == ["1", "2", "3"]
    assert first_of_each(prompts, None) == prompts
