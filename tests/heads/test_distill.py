"""Making data: what is written is what the target would have said, one dialogue at a time."""

from __future__ import annotations

import json

import pytest
import torch

from specdec.core.errors import DataError
from specdec.heads import prompts
from specdec.heads.choose import draw, first_best
from specdec.heads.loops import LONGEST, period
from specdec.heads.prompts import FilePrompts, Passage
from specdec.heads.template_prompts import TemplatePrompts
from specdec.testing.enumeration import Branches, EnumeratingRng
from tests.heads import chatty

WINDOW = {"sliding_window": 16}


@pytest.fixture
def prompt_file(tmp_path):
    """Neighbours ask the same, lengths differ, and a third of the dialogues have a second turn."""
    path = tmp_path / "asked.jsonl"
    lines = []
    for i in range(10):
        text = f"Question {i // 2}: " + "what " * (i // 2)
        lines.append({"turns": [text, "And then?"]} if i % 3 == 0 else {"prompt": text})
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def by_generate(model, dialogue, turn, limit):
    """What plain `generate` answers after everything before the answer of this turn."""
    start = dialogue.spans[turn][0]
    ids = torch.tensor([dialogue.ids[:start]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit)
    return out[0, start:].tolist()


@pytest.mark.parametrize("options", [{}, WINDOW], ids=["packed", "padded"])
def test_greedy_answers_are_those_of_generate(tmp_path, prompt_file, options):
    found = []
    for slots in (1, 4, 40):
        recipe = FilePrompts(prompt_file, 0, 1.0, (9, 14))
        maker = chatty.distiller(tmp_path / str(slots), recipe, slots, chatty.target(**options))
        maker.run()
        found.append(chatty.made(tmp_path / str(slots)))
        assert len(found[-1]) + maker.progress.dropped.total() == 10
    assert found[0] == found[1] == found[2]
    model = chatty.target(**options)
    answers = 0
    for dialogue in found[0].values():
        limit = recipe.request(dialogue.number, {}).turns[0].limit
        for turn, (start, end) in enumerate(dialogue.spans):
            plain = by_generate(model, dialogue, turn, limit)
            said = list(dialogue.ids[start:end])
            cut = turn == len(dialogue.spans) - 1 and dialogue.end == "loop"
            assert said == (plain[: len(said)] if cut else plain)
            answers += 1
    assert answers > 10 and any(len(d.spans) == 2 for d in found[0].values())
    assert len({d.prompt_length for d in found[0].values()}) > 4


def test_sampled_dialogues_do_not_depend_on_their_neighbours(tmp_path):
    """A target that knows next to nothing, so that a quarter of the user's turns it writes come to an end in time."""
    found = []
    vague = {"initializer_range": 0.02}
    for slots in (4, 24):
        recipe = TemplatePrompts(4, 0.0, (8, 12), mix={"self": 1.0}, first=0)
        maker = chatty.distiller(tmp_path / str(slots), recipe, slots, chatty.target(**vague), temperature=1.0, seed=5)
        maker.run(dialogues=24)
        found.append(chatty.made(tmp_path / str(slots)))
        dropped = maker.progress.dropped["user turn"]
        assert len(found[-1]) + dropped + maker.progress.dropped["loop"] == 24 and 0 < dropped < 24
    assert found[0] == found[1]
    other = chatty.distiller(tmp_path / "other", recipe, 24, chatty.target(**vague), temperature=1.0, seed=6)
    other.run(dialogues=24)
    assert chatty.made(tmp_path / "other") != found[0]
    # The user's turns are the target's own: text without special tokens, as long as was asked for.
    head = list(chatty.tokenizer()("<|s|>user\n", add_special_tokens=False).input_ids)
    for dialogue in found[0].values():
        assert list(dialogue.ids[: len(head)]) == head
        user = dialogue.ids[len(head) : dialogue.prompt_length]
        assert user.count(0) == 1 and user.index(0) >= 1 and user.count(1) == 1


class Stopped(BaseException):
    """What Ctrl-C is to the loop."""


@pytest.mark.parametrize("passes", [3, 40])
def test_a_run_that_was_stopped_goes_on_to_the_same_data(tmp_path, monkeypatch, passes):
    # A random target writes no sentences, so anything it writes counts as a passage.
    monkeypatch.setattr(Passage, "of", classmethod(lambda cls, topic, text: cls(topic, repr(text))))

    def maker(folder):
        recipe = TemplatePrompts(1, 0.5, (5, 8), first=8, wave=10)
        return chatty.distiller(folder, recipe, 6, longest=1000, shard_tokens=40)

    def stop(progress):
        if progress.passes == passes:
            raise Stopped

    maker(tmp_path / "whole").run(dialogues=28)
    with pytest.raises(Stopped):
        maker(tmp_path / "parts").run(dialogues=28, report=stop)
    begun = len(chatty.made(tmp_path / "parts")) if (tmp_path / "parts/index.json").exists() else 0
    maker(tmp_path / "parts").run(dialogues=28)
    whole = chatty.made(tmp_path / "whole")
    assert chatty.made(tmp_path / "parts") == whole
    assert begun < len(whole) and (begun > 0) == (passes > 3)
    assert {"write", "self"} < {d.source.split("/")[0] for d in whole.values()}
    assert any("translate" in d.source or "summary" in d.source for d in whole.values())


def test_a_number_of_tokens_is_for_the_folder(tmp_path, prompt_file):
    recipe = FilePrompts(prompt_file, 0, 1.0, (16,))
    chatty.distiller(tmp_path / "d", recipe, 2).run(tokens=60)
    first = sum(d.answer_tokens for d in chatty.made(tmp_path / "d").values())
    assert 60 <= first < 60 + 3 * 32
    assert chatty.distiller(tmp_path / "d", recipe, 2).run(tokens=60).passes == 0
    chatty.distiller(tmp_path / "d", recipe, 2).run(tokens=110)
    assert sum(d.answer_tokens for d in chatty.made(tmp_path / "d").values()) >= 110


def test_prompts_that_leave_no_room_are_dropped(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("x" * 500 + "\nshort\n")
    maker = chatty.distiller(tmp_path / "d", FilePrompts(path, 0, 1.0, (16,)), 2)
    maker.run()
    assert set(chatty.made(tmp_path / "d")) == {1} and maker.progress.dropped == {"too long": 1}
    assert chatty.distiller(tmp_path / "d", FilePrompts(path, 0, 1.0, (16,)), 2).run().passes == 0  # nor tried again


def test_an_answer_that_goes_round_in_circles_ends(tmp_path, prompt_file):
    """Embeddings and head of a target that says nothing but one token."""
    model = chatty.target()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        model.lm_head.weight[77] = 1.0
        model.model.embed_tokens.weight.abs_()
    maker = chatty.distiller(tmp_path / "d", FilePrompts(prompt_file, 0, 1.0, (200,)), 4, model)
    maker.run()
    assert maker.progress.dropped == {"loop": 10} and maker.progress.passes < 10 * 36 / 4


def test_period():
    fresh = list(range(100, 160))
    assert period(fresh, 0) == 0
    assert period(fresh + [5] * 23, 0) == 0 and period(fresh + [5] * 24, 0) == 1
    assert period([*fresh, *[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 3], 0) == 10
    assert period([*fresh, *[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 2], 0) == 0
    assert period(list(range(LONGEST)) * 3, 0) == LONGEST and period(list(range(LONGEST + 1)) * 4, 0) == 0
    assert period([5] * 40, 20) == 0  # only what was said since counts


@pytest.mark.parametrize("vocab", [1, 2, 5, 49, 64, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_first_best_is_the_first_of_the_best(vocab, dtype):
    chance = torch.Generator().manual_seed(vocab)
    logits = torch.randint(-4, 4, (50, vocab), generator=chance).to(dtype)  # full of ties
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert first_best(logits).tolist() == expected


@pytest.mark.parametrize("p", [[[0.5, 0.2, 0.3]], [[0.1, 0.0, 0.0, 0.3, 0.2, 0.0, 0.4]], [[0.0] * 10 + [1.0]]])
def test_a_draw_in_two_stages_has_the_law(p):
    branches, law = Branches(), [0.0] * len(p[0])
    while True:
        branches.start()
        token = int(draw(torch.tensor(p, dtype=torch.float64), EnumeratingRng(branches), [(3, 4)]))
        law[token] += branches.weight
        if not branches.advance():
            break
    assert law == pytest.approx(p[0], abs=1e-12)


def test_nothing_finished_is_lost_when_the_disk_is_full(tmp_path, prompt_file, monkeypatch):
    import errno
    import os

    recipe, synced = FilePrompts(prompt_file, 0, 1.0, (16,)), os.fsync
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) > 2:  # the first shard and its index
            raise OSError(errno.ENOSPC, "No space left on device")
        synced(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"shard-00001.*No space left on device.*The 1 shards before it are whole"):
        chatty.distiller(tmp_path / "d", recipe, 4, shard_tokens=100).run()
    monkeypatch.setattr(os, "fsync", synced)
    kept = chatty.made(tmp_path / "d")
    assert kept and {path.name for path in (tmp_path / "d").iterdir()} == {"index.json", "shard-00000.safetensors"}
    chatty.distiller(tmp_path / "d", recipe, 4, shard_tokens=100).run()
    chatty.distiller(tmp_path / "whole", recipe, 4).run()
    assert chatty.made(tmp_path / "d") == chatty.made(tmp_path / "whole")


def test_words_of_a_passage(monkeypatch):
    text = "**One** two three. Four five!\n\n# Six seven eight nine ten. And unfinished"
    assert Passage.of("numbers", text) is None
    monkeypatch.setattr(prompts, "WORDS", 10)
    assert Passage.of("numbers", text) == Passage("numbers", "One two three. Four five! Six seven eight nine ten.")
    assert Passage.of("numbers", "no sentence at all " * 20) is None


def test_a_shard_that_was_deleted_is_made_again(tmp_path, prompt_file):
    def run():
        chatty.distiller(tmp_path, FilePrompts(prompt_file, 0, 1.0, (9, 14)), 4, chatty.target()).run()
        return chatty.made(tmp_path)

    before = run()
    for shard in tmp_path.glob("shard-*"):
        shard.unlink()
    assert run() == before
