"""The file of results: it grows by whole lines, and whatever ends a run, they can be read."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.bench.record import Record, Results, read_results, repeated
from specdec.core.errors import ConfigError, DataError

ONE = Record("plain", "a", 0, tokens=10, seconds=2.0, passes=10, judged_by_depth=(3, 2), accepted_by_depth=(1, 0))


def test_records_come_back_as_they_were(tmp_path):
    path = tmp_path / "r.jsonl"
    results = Results(path)
    results.head({"model": "m"})
    results.add(ONE)
    assert len(path.read_text().splitlines()) == 2, "a line is on disk as soon as it is added"
    results.add(Record("x", "a", 0, error="RuntimeError: no"))
    results.close()
    records, heads, left = read_results([path])
    assert records == [replace(ONE, run=1), Record("x", "a", 0, error="RuntimeError: no", run=1)]
    assert heads == [{"model": "m"}] and left == []
    assert (ONE.speed, ONE.tokens_per_pass, ONE.measured, records[1].measured) == (5.0, 1.0, True, False)


def test_results_are_not_overwritten_but_added_to(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"kind": "run"}) + "\n" + '{"kind": "result", "str')  # cut off within a line
    with pytest.raises(ConfigError, match="holds results; give another, or --append"):
        Results(path)
    results = Results(path, append=True)
    results.add(ONE)
    results.close()
    records, _, left = read_results([path])
    assert records == [replace(ONE, run=1)]
    assert len(left) == 1 and "line 2: not a record" in left[0]


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "r.jsonl"
    results = Results(path)
    results.add(ONE)
    results.add(ONE)
    results.close()
    path.write_bytes(path.read_bytes()[:-20])
    records, _, left = read_results([path])
    assert records == [ONE] and left == [f"{path}, line 2: cut off"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"kind": "result", "strategy": "x", "task": "a", "prompt": 0, "seconds": "long"}', "seconds: .*number"),
        ('{"kind": "result", "task": "a", "prompt": 0}', "strategy"),
        (
            '{"kind": "result", "strategy": "x", "task": "a", "prompt": 0, "judged_by_depth": 3}',
            "judged_by_depth: .*tuple",
        ),
        ('{"kind": "other"}', "run or result"),
        ("[" * 100_000, "not a record"),
        ("\x00\x01", "not a record"),
    ],
    ids=["type", "missing", "depths", "kind", "deep", "binary"],
)
def test_a_line_of_something_else_is_left_out_with_the_reason(tmp_path, line, why):
    path = tmp_path / "r.jsonl"
    results = Results(path)
    results.add(ONE)
    results.close()
    with open(path, "a") as file:
        file.write(line + "\n")
    records, _, left = read_results([path])
    assert records == [ONE] and len(left) == 1
    assert re.search(rf"line 2: not a record: .*{why}|line 2: {why}", left[0])


def test_records_know_their_run(tmp_path):
    path = tmp_path / "r.jsonl"
    for _ in range(2):
        results = Results(path, append=True, model="m")
        results.head({"model": "m"})
        results.add(ONE)
        results.close()
    assert [record.run for record in read_results([path, path])[0]] == [1, 2, 3, 4]


def test_another_model_is_not_added_to_a_file(tmp_path):
    path = tmp_path / "r.jsonl"
    results = Results(path)
    results.head({"model": "m"})
    results.add(ONE)
    results.close()
    with pytest.raises(ConfigError, match="has results of m, not of n"):
        Results(path, append=True, model="n")


def test_a_run_that_measured_nothing_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "r.jsonl"
    for before in ("", '{"kind": "result", "strategy": "x", "task": "a", "prompt": 0}\n'):
        path.write_text(before)
        results = Results(path, append=True)
        results.head({"model": "m"})
        results.close()
        assert path.read_text() == before


def test_half_a_surrogate_pair_in_a_message(tmp_path):
    path = tmp_path / "r.jsonl"
    results = Results(path)
    results.add(Record("x", "a", 0, error="OSError: \udcff"))
    results.close()
    assert read_results([path])[0][0].error == "OSError: \udcff"


@pytest.mark.parametrize("text", ["", "\n", "[]\n", '{"kind": "result"}\n', "no\n", '{"kind": "run"}\n'])
def test_a_file_without_records_is_refused(tmp_path, text):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="holds no record of `specdec bench`"):
        read_results([path])


def test_a_file_of_something_else_is_not_spelt_out_to_its_end(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("no\n" * 1000)
    with pytest.raises(DataError, match=r"line 5: not a record: .*\n  and 995 more lines$"):
        read_results([path])


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_results([tmp_path / "none.jsonl"])
    with pytest.raises(DataError, match="cannot be written: No such file"):
        Results(tmp_path / "none" / "r.jsonl")
    with pytest.raises(DataError, match="cannot be written: Is a directory"):
        Results(tmp_path)


def test_a_full_disk_is_named_and_what_was_written_stays(tmp_path):
    path = tmp_path / "r.jsonl"
    results = Results(path)
    results.add(ONE)
    file = results._file

    class Full:
        def write(self, data: bytes) -> None:
            file.write(data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        close = file.close

    results._file = Full()
    with pytest.raises(DataError, match=r"r\.jsonl: .*No space left on device; the 1 records before it are kept"):
        results.add(ONE)
    assert read_results([path])[0] == [ONE]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_is_full_from_the_start():
    with pytest.raises(DataError, match="No space left on device; the 0 records"):
        Results(Path("/dev/full"), append=True).head({})


def test_repeated_grams():
    assert repeated([1, 2, 3, 4], n=2) == 0.0
    assert repeated([1, 2, 1, 2, 1], n=2) == 0.5  # 12 21 12 21
    assert repeated(list(range(8))) is None
    assert repeated([7] * 20) == 1 - 1 / 13
