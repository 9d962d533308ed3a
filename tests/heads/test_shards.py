"""Shards: what was finished can be read, and what is wrong is named."""

from __future__ import annotations

import errno
import json
import os
import re

import pytest
import torch

from specdec.core.errors import DataError
from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.overlap import without_overlap
from specdec.heads.shards import Dialogue, ShardReader, ShardWriter

ABOUT = {"model": "m", "tokenizer": "t" * 32, "vocab_size": 50, "settings": {"seed": 1}}


def dialogue(number, prompt=(1, 2, 3), answer=(4, 5), more=()):
    """One dialogue; `more` is a second question and its answer."""
    ids, spans = [*prompt, *answer], [(len(prompt), len(prompt) + len(answer))]
    if more:
        question, reply = more
        spans.append((len(ids) + len(question), len(ids) + len(question) + len(reply)))
        ids += [*question, *reply]
    return Dialogue(number, f"task/{number % 3}", tuple(ids), tuple(spans), number % 2 == 0, "eos")


@pytest.fixture
def folder(tmp_path):
    """Two shards."""
    writer = ShardWriter(tmp_path / "data", ABOUT)
    writer.write([dialogue(i) for i in range(4)], {9: "loop"})
    writer.write([dialogue(7, more=((6, 7), (8, 8, 8)))], {})
    return tmp_path / "data"


def test_what_is_written_is_read(folder):
    reader = ShardReader(folder, tokenizer=ABOUT["tokenizer"], vocab_size=50)
    read = list(reader)
    assert read == [*(dialogue(i) for i in range(4)), dialogue(7, more=((6, 7), (8, 8, 8)))]
    assert len(reader) == 5 and reader.answer_tokens == 4 * 2 + 5 == sum(d.answer_tokens for d in read)
    assert reader.numbers() == {0, 1, 2, 3, 7, 9}
    assert read[4].prompt_length == 3 and read[4].spans == ((3, 5), (7, 10)) and read[4].end == "eos"
    assert (reader.model, reader.vocab_size) == ("m", 50)


def test_the_ids_need_no_specdec(folder):
    """The format is plain safetensors: another program can read it."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "shard-00000.safetensors")
    assert tensors["ids"].dtype == torch.int32 and tensors["offsets"].tolist() == [0, 5, 10, 15, 20]
    assert tensors["spans"].tolist() == [[3, 5]] * 4


def test_reading_goes_on_while_there_is_more_to_come(folder):
    reader, writer = ShardReader(folder), ShardWriter(folder, ABOUT)
    begun = iter(reader)
    assert next(begun).number == 0
    writer.write([dialogue(20)], {})
    (folder / "shard-00003.making").write_bytes(b"half of a shard")
    assert [d.number for d in begun] == [1, 2, 3, 7]
    reader.refresh()
    assert [d.number for d in reader] == [0, 1, 2, 3, 7, 20]


def test_several_folders_are_read_in_turns(folder):
    other = ShardWriter(folder.parent / "more", ABOUT)
    for number in (100, 101, 102):
        other.write([dialogue(number)], {})
    expected = [0, 1, 2, 3, 100, 7, 101, 102]
    assert [d.number for d in ShardReader(folder.parent)] == expected
    assert [d.number for d in ShardReader(folder, folder.parent / "more")] == expected


@pytest.mark.parametrize("harm", ["cut short", "overwritten", "deleted"])
def test_a_broken_shard_is_named(folder, harm):
    path = folder / "shard-00000.safetensors"
    whole = path.read_bytes()
    if harm == "deleted":
        path.unlink()
    else:
        path.write_bytes(whole[:-40] if harm == "cut short" else b"\xff" * len(whole))
    reader = ShardReader(folder)
    fault = "missing" if harm == "deleted" else "broken"
    with pytest.raises(DataError, match=rf"shard-00000\.safetensors.*{fault}.*--resume"):
        list(reader)
    with pytest.raises(DataError, match=r"shard-00000"):
        reader.numbers()
    last = reader.shards[1]
    assert [d.number for d in reader.read(*last)] == [7]  # the others can be read still


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("ids", torch.tensor([70] * 20, dtype=torch.int32), "has the id 70, expected 0 to 49"),
        ("offsets", torch.tensor([0, 5, 10, 15, 19]), "do not fit together"),
        ("offsets", torch.tensor([0, 10, 5, 15, 20]), "do not fit together"),
        ("offsets", torch.zeros(0, dtype=torch.int64), "do not fit together"),
        ("ends", torch.zeros(3, dtype=torch.int8), "do not fit together"),
        ("ends", torch.full((4,), 3, dtype=torch.int8), "its ends hold 3, expected 0 to 2"),
        ("ends", torch.full((4,), -1, dtype=torch.int8), "its ends hold -1, expected 0 to 2"),
        ("sources", torch.full((4,), 7, dtype=torch.int32), "its sources hold 7, expected 0 to 2"),
        ("ids", torch.zeros(20), r"its ids are torch.float32 of shape \[20\], which is no list of them"),
        ("spans", torch.zeros(8, dtype=torch.int32), r"its spans are torch.int32 of shape \[8\]"),
        (
            "spans",
            torch.tensor([[3, 5], [3, 6], [3, 5], [3, 5]]),
            r"dialogue 1 do not lie in .*\[3, 6\]",
        ),
        (
            "spans",
            torch.tensor([[3, 5], [3, 5], [5, 3], [3, 5]]),
            r"dialogue 2 do not lie in .*\[5, 3\]",
        ),
        (
            "spans",
            torch.tensor([[-2, 5], [3, 5], [3, 5], [3, 5]]),
            r"dialogue 0 do not lie in .*\[-2, 5\]",
        ),
        ("span_offsets", torch.tensor([0, 0, 2, 3, 4]), r"answers of its dialogue 0 do not lie in the dialogue: \[\]"),
        ("spans", None, "lacks spans"),
        ("dropped", None, "lacks dropped"),
    ],
)
def test_tensors_that_are_amiss_are_named(folder, name, value, fault):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = folder / "shard-00000.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    tensors.pop(name)
    save_file({**tensors, **({} if value is None else {name: value})}, path, metadata=about)
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["bytes"] = path.stat().st_size
    (folder / "index.json").write_text(json.dumps(index))
    reader = ShardReader(folder)
    with pytest.raises(DataError, match=f"shard-00000.*{fault}"):
        reader.numbers() if name == "dropped" else list(reader)


def test_a_deleted_shard_is_made_again_and_overwrites_none(folder):
    (folder / "shard-00000.safetensors").unlink()
    assert ShardReader(folder).shards[0][1]["dialogues"] == 4  # reading alone changes nothing
    writer = ShardWriter(folder, ABOUT)
    writer.write([dialogue(0)], {})
    reader = ShardReader(folder)
    assert [path.name for path, _ in reader.shards] == ["shard-00001.safetensors", "shard-00002.safetensors"]
    assert [d.number for d in reader] == [7, 0]


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_full_disk_leaves_what_was_there(folder, monkeypatch, fails_at):
    """Full while the shard is written, and while the index is."""
    calls, synced = [], os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        synced(handle)

    writer = ShardWriter(folder, ABOUT)
    before = list(ShardReader(folder))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"shard-00002.*No space left on device.*2 shards before it are whole.*room"):
        writer.write([dialogue(30)], {})
    assert list(ShardReader(folder)) == before and not list(folder.glob("*.making"))
    writer.write([dialogue(30)], {})
    assert [d.number for d in ShardReader(folder)] == [0, 1, 2, 3, 7, 30]


def test_another_tokenizer_is_named(folder):
    with pytest.raises(DataError, match=r"data has tokenizer 't{32}', expected 'u{32}' \(made by m\)"):
        ShardReader(folder, tokenizer="u" * 32)
    with pytest.raises(DataError, match="vocab size 50, expected 60"):
        ShardReader(folder, vocab_size=60)
    with pytest.raises(DataError, match=r"holds data with tokenizer .*, expected 'u"):
        ShardWriter(folder, {**ABOUT, "tokenizer": "u" * 32})
    with pytest.raises(DataError, match=r"settings \{'seed': 1\}, expected \{'seed': 2\}"):
        ShardWriter(folder, {**ABOUT, "settings": {"seed": 2}})
    ShardWriter(folder.parent / "other", {**ABOUT, "tokenizer": "u" * 32}).write([dialogue(0)], {})
    with pytest.raises(DataError, match=r"other: .*|data: .*"):
        ShardReader(folder.parent)


def test_a_shard_from_elsewhere_is_named(folder):
    other = ShardWriter(folder.parent / "other", {**ABOUT, "tokenizer": "u" * 32})
    path = other.write([dialogue(i) for i in range(4)], {9: "loop"})
    os.replace(path, folder / "shard-00000.safetensors")
    with pytest.raises(DataError, match=r"shard-00000.*tokenizer 'u{32}', expected 't{32}'"):
        list(ShardReader(folder))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_a_broken_index_is_named(folder, text):
    (folder / "index.json").write_text(text)
    with pytest.raises(DataError, match=r"index\.json: the index is broken"):
        ShardReader(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": None}, "model is None, expected a text"),
        ({"vocab_size": "50"}, "vocab_size is '50', expected a number"),
        ({"shards": [3]}, "file of shard 0 is 3, expected a text"),
        ({"bytes": None}, "bytes of shard 0 is None, expected a number"),
        ({"file": "../elsewhere/shard-00000.safetensors"}, "expected a file of its folder such as"),
        ({"file": "/elsewhere/shard-00000.safetensors"}, "expected a file of its folder such as"),
        ({"file": "notes.safetensors"}, "expected a file of its folder such as"),
    ],
)
def test_an_index_that_cannot_be_right_is_named_to_reader_and_writer(folder, change, said):
    index = json.loads((folder / "index.json").read_text())
    if set(change) <= set(index):
        index |= change
    else:
        index["shards"][0] |= change
    (folder / "index.json").write_text(json.dumps(index))
    for opened in (ShardReader, lambda place: ShardWriter(place, ABOUT)):
        with pytest.raises(DataError, match=rf"index\.json: the index is broken: .*{re.escape(said)}.*Restore"):
            opened(folder)


def test_no_data_and_another_format_are_named(folder):
    with pytest.raises(DataError, match=r"no data.*specdec distill"):
        ShardReader(folder.parent / "nothing")
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "format": 2}))
    with pytest.raises(DataError, match="its format is 2, expected 1"):
        ShardReader(folder)


def test_the_split_is_disjoint_and_keeps_answers_to_one_prompt_together(tmp_path):
    writer = ShardWriter(tmp_path, ABOUT)
    writer.write([dialogue(i, prompt=(1, i // 2 % 50, i // 100), answer=(i % 50,)) for i in range(400)], {})
    training, held_out = ShardReader(tmp_path).split(0.2)
    assert len(training) + len(held_out) == 400 and 40 < len(held_out) < 120
    prompts = [{d.ids[:3] for d in part} for part in (training, held_out)]
    assert not prompts[0] & prompts[1]
    writer.write([dialogue(500)], {})
    assert set(held_out) <= set(ShardReader(tmp_path).split(0.2)[1])  # it does not depend on what else there is


def test_fingerprint_follows_the_vocabulary():
    class Words:
        def __init__(self, *words):
            self.words = words

        def get_vocab(self):
            return dict(zip(self.words, range(len(self.words)), strict=True))

    assert (
        tokenizer_fingerprint(Words("a", "b"))
        == tokenizer_fingerprint(Words("a", "b"))
        != tokenizer_fingerprint(Words("b", "a"))
    )
    assert len({tokenizer_fingerprint(Words(*words)) for words in (("a",), ("a", "b"), ("a", "b", "c"))}) == 3


SYSTEM = (0, *range(30, 48), 1)  # a system prompt of 18 tokens between special ones


def said(*tokens, answer=(2, 3)):
    return dialogue(0, prompt=(*SYSTEM, *tokens, 1), answer=answer)


def test_overlap():
    run = tuple(range(10, 24))  # 14 tokens
    held_out = [said(*run), said(*run[:12], 5, 5), said(5, 6, 7), said(*range(24, 30), *run[:7])]

    def kept(*training):
        return [held_out.index(d) for d in without_overlap(held_out, training, special={0, 1})]

    assert kept() == [0, 1, 2, 3]
    assert kept(said(4, 4, 4)) == [0, 1, 2, 3]  # the system prompt, which all have, does not count
    assert kept(said(9, *run[1:])) == [1, 2, 3]  # 13 tokens
    assert kept(said(9, *run[2:])) == [0, 1, 2, 3]  # 12
    assert kept(said(4, answer=(4, *run, 5))) == [1, 2, 3]  # an answer of the training data counts
    assert kept(said(*run[:12], 5, 5), said(*range(24, 30), *run[:7])) == [0, 2]
    # A second question counts, and what stands in an answer of the held-out data does not.
    later = dialogue(1, prompt=(*SYSTEM, 3, 1), answer=(4, *run), more=((0, *run, 1), (5,)))
    only = dialogue(1, prompt=(*SYSTEM, 3, 1), answer=(4, *run))
    assert without_overlap([later, said(3)], [said(*run)], {0, 1}) == [said(3)]
    assert without_overlap([only, said(3)], [said(*run)], {0, 1}) == [only, said(3)]
