"""The file of results: it grows by whole lines, and whatever ends a run, they can be read."""

from __future__ import annotations

import errno
import json
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
    assert records == [ONE, Record("x", "a", 0, error="RuntimeError: no")]
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
    assert records == [ONE]
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


@pytest.mark.parametrize("text", ["", "\n", "[]\n", '{"kind": "result"}\n', "no\n", '{"kind": "run"}\n'])
def test_a_file_without_records_is_refused(tmp_path, text):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match="holds no record of `specdec bench`"):
        read_results([path])


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_results([tmp_path / "none.jsonl"])
    with pytest.raises(DataError, match="cannot be written: No such file"):
        Results(tmp_path / "none" / "r.jsonl")


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
