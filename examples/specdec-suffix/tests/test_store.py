"""The store: round trip, limits, files that are damaged or cannot be written, many threads."""

from __future__ import annotations

import json
import threading
import warnings

import pytest

from specdec_suffix.store import StoreWarning, TextStore


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def found(store, tokens, most=4):
    reader = store.open()
    reader.read(tokens)
    return reader.follow(most, 0.0)


def test_round_trip(tmp_path):
    path = tmp_path / "store.jsonl"
    store = TextStore(path)
    store.add([1, 2, 3])
    store.add([])
    store.add((4, 5))
    assert lines(path) == [[1, 2, 3], [4, 5]]
    again = TextStore(path)
    assert again.texts() == store.texts() == ((1, 2, 3), (4, 5))
    assert found(again, [1]) == [2, 3]
    again.add([6])
    assert lines(path) == [[1, 2, 3], [4, 5], [6]]


def test_a_file_whose_last_line_has_no_end(tmp_path):
    path = tmp_path / "store.jsonl"
    path.write_text("[1, 2]\n[3]")
    TextStore(path).add([4])
    assert lines(path) == [[1, 2], [3], [4]]


@pytest.mark.parametrize(
    "content",
    [
        b"[1, 2]\n[3, 4",
        b"[1, 2]\n{}\n",
        b"[1, -2]\n",
        b"[1, true]\n",
        b"[1, 2.0]\n",
        b"[1]\n\n[2]\n",
        b"\x80\x04\x95",
        b"[" * 100_000,
    ],
    ids=["torn", "no array", "negative", "bool", "float", "empty line", "binary", "deep"],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "store.jsonl"
    path.write_bytes(content)
    store = TextStore(path, limit=4)
    with pytest.warns(StoreWarning, match=r"store\.jsonl cannot be used and is left as it is"):
        assert store.texts() == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        for text in ([1, 2, 3], [4, 5, 6], [7]):
            store.add(text)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]
    assert found(store, [4, 5]) == [6], "the store still works in memory"


def test_a_file_that_cannot_be_written(tmp_path):
    store = TextStore(tmp_path / "missing" / "store.jsonl")
    with pytest.warns(StoreWarning, match="cannot be written"):
        store.add([1, 2])
    store.add([3])
    assert store.texts() == ((1, 2), (3,))


def test_a_folder_in_place_of_the_file(tmp_path):
    with pytest.warns(StoreWarning, match="left as it is"):
        assert TextStore(tmp_path).texts() == ()


def test_the_oldest_texts_go_first(tmp_path):
    path = tmp_path / "store.jsonl"
    store = TextStore(path, limit=8)
    for number in range(4):
        store.add([10 * number, 10 * number + 1])
    assert len(store.texts()) == 4
    reader = store.open()
    reader.read([0])
    store.add([40, 41])
    assert store.texts() == ((30, 31), (40, 41)) and lines(path) == [[30, 31], [40, 41]]
    assert reader.follow(2, 0.0) == [1], "a reader keeps what it began with"
    assert found(store, [0]) == [] and found(store, [40]) == [41]
    assert TextStore(path, limit=3).texts() == ((40, 41),)
    store.add(range(100, 150))
    assert len(store.texts()) == 1, "the newest text is kept whatever its length"


def test_the_most_frequent_continuation_of_all_texts():
    store = TextStore()
    for text in ([1, 2, 3], [1, 2, 4], [1, 2, 4], [1, 2, 3], [1, 2, 4]):
        store.add(text)
    assert found(store, [1, 2]) == [4]


def test_many_threads_lose_nothing(tmp_path):
    path = tmp_path / "store.jsonl"
    store = TextStore(path)
    texts = {(worker, number, worker + number) for worker in range(4) for number in range(50)}

    def run(worker):
        reader = store.open()
        for text in sorted(texts):
            if text[0] == worker:
                store.add(text)
                reader.read(text)
                reader.follow(3, 0.0)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(store.texts()) == sorted(texts) == sorted(map(tuple, lines(path)))


def test_a_text_added_from_inside_the_store_waits_its_turn():
    """As from a finaliser that the garbage collector runs while this thread is in the store."""
    store = TextStore()
    with store._lock:
        store.add([1, 2])
    store.add([3])
    assert store.texts() == ((1, 2), (3,))
