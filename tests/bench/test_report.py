"""Figures put together, checked against sums done by hand; tables, Markdown and plots of them."""

from __future__ import annotations

import sys

import pytest

from specdec.bench.record import Record
from specdec.core.errors import DataError, SpecdecError
from specdec.report.document import markdown
from specdec.report.figures import plots
from specdec.report.summary import slower, summarise
from specdec.report.table import cells, heads, show


def record(strategy: str, task: str, prompt: int, tokens: int, seconds: float, **more) -> Record:
    return Record(strategy, task, prompt, tokens=tokens, seconds=seconds, dtype="float32", **more)


RECORDS = [
    record("fast", "a", 0, 100, 1.0, passes=40, judged_by_depth=(40, 20), accepted_by_depth=(30, 15),
           seconds_draft=0.1, seconds_target=0.6, seconds_verify=0.1, identical=True, near_ties=1, repeated=0.5,
           guarantee="exact-greedy (algorithmic)", peak_memory=2**21),
    record("fast", "a", 1, 50, 1.0, passes=50, judged_by_depth=(10,), accepted_by_depth=(0,),
           seconds_draft=0.3, seconds_target=0.5, seconds_verify=0.1, identical=False, difference_margin=0.25,
           near_ties=2, repeated=0.1),
    record("fast", "b", 2, 100, 4.0, passes=60),
    record("plain", "a", 0, 100, 2.0, passes=100, identical=True),
    record("plain", "a", 1, 100, 2.0, passes=100, identical=True),
    record("plain", "b", 2, 100, 2.0, passes=100, identical=True),
    record("slow", "a", 0, 100, 4.0, identical=False),
    Record("slow", "a", 1, dtype="float32", error="RuntimeError: no"),
    record("slow", "b", 2, 100, 4.0),
    Record("none", "", -1, dtype="float32", skipped="not installed"),
]  # fmt: skip


def lines():
    (summary,) = summarise(RECORDS)
    return summary, {line.strategy: line for line in summary.lines}


def test_ratios_are_of_sums_and_averaged_over_tasks():
    summary, found = lines()
    assert summary.tasks == ("a", "b") and summary.lines[0].strategy == "plain"
    fast = found["fast"]
    # a: 150 tokens in 2 s over 200 in 4 s; b: 25 a second over 50.
    assert fast.ratios == {"a": pytest.approx(75 / 50), "b": pytest.approx(0.5)}
    assert fast.ratio == pytest.approx(1.0) and fast.speed == pytest.approx(250 / 6)
    # prompt by prompt: 2, 1, 0.5
    assert (fast.median, fast.low, fast.high) == (1.0, 0.75, 1.5)
    assert found["plain"].ratio == 1.0 and found["plain"].tokens_per_pass == 1.0


def test_a_failed_prompt_leaves_the_others_paired():
    slow = lines()[1]["slow"]
    # Only prompt 0 of task a: 25 a second over 50.
    assert slow.ratios == {"a": 0.5, "b": 0.5} and (slow.prompts, slow.failed) == (2, 1)
    assert (slow.identical, slow.unexplained, slow.worst) == ((0, 1), 1, None)
    skipped = lines()[1]["none"]
    assert (skipped.prompts, skipped.skipped, skipped.ratio) == (0, "not installed", None)


def test_the_other_figures():
    fast = lines()[1]["fast"]
    assert fast.tokens_per_pass == pytest.approx((150 / 90 + 100 / 60) / 2), "of each task, then the mean"
    assert fast.acceptance == (30 / 50, 15 / 20) and fast.kept == (30 / 90, 15 / 90)
    assert fast.shares == pytest.approx((0.2, 0.55, 0.1, 0.15))
    assert (fast.identical, fast.worst, fast.near_ties, fast.memory) == ((1, 2), 0.25, (3, 150), 2**21)
    assert fast.repeated == pytest.approx(0.3)


def test_settings_are_kept_apart_and_repeated_runs_are_paired():
    twice = summarise([*RECORDS, *RECORDS])
    assert [line.prompts for line in twice[0].lines] == [6, 6, 4, 0]
    other = [Record("plain", "a", 0, tokens=1, seconds=1.0, batch=8)]
    assert [summary.setting.batch for summary in summarise([*RECORDS, *other])] == [1, 8]


def test_a_strategy_is_compared_to_the_baseline_of_its_own_run():
    runs = [
        record("plain", "a", 0, 100, 2.0, run=1), record("one", "a", 0, 100, 1.0, run=1),
        record("plain", "a", 0, 100, 8.0, run=2), record("two", "a", 0, 100, 2.0, run=2),
    ]  # fmt: skip
    (summary,) = summarise(runs)
    assert {line.strategy: line.ratio for line in summary.lines} == {"plain": 1.0, "one": 2.0, "two": 4.0}


def test_another_baseline_is_named():
    (summary,) = summarise(RECORDS, "fast")
    assert summary.lines[0].strategy == "fast"
    assert slower(summary) == [
        "plain is slower than fast on a 0.67x",
        "slow is slower than fast: 0.62x over all tasks",
    ]
    assert "Speed is against fast in the same run" in markdown(RECORDS, baseline="fast")


def test_names_are_shown_as_they_are(capsys):
    odd = "{type: merge, drafters: [prompt-lookup, token-recycling]}"
    show([record(odd, "[/red]", 0, 10, 1.0), record("plain", "[/red]", 0, 10, 1.0)], "[bold]m")
    shown = " ".join(capsys.readouterr().out.split())
    assert "[prompt-lookup, token-recycling]" in shown and "[/red]" in shown and "[bold]m" in shown


def test_what_is_slower_is_said():
    summary, _ = lines()
    assert slower(summary) == [
        "fast is slower than plain generate on b 0.50x",
        "slow is slower than plain generate: 0.50x over all tasks",
    ]


def test_markdown_is_a_table_a_setting():
    text = markdown(RECORDS, [{"model": "m", "torch": "2", "gpu": None}])
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 4 and len({line.count("|") for line in table}) == 1
    assert "model m, torch 2" in text and "## float32, batch 1, temperature 0" in text
    assert "1 of 2, margin up to 0.25" in text and "skipped: not installed" in text
    assert "- slow is slower than plain generate: 0.50x over all tasks" in text
    odd = Record("a|b", "t", 0, tokens=1, seconds=1.0)
    assert "a\\|b" in markdown([odd])


def test_a_row_has_an_entry_for_each_head():
    summary, found = lines()
    assert all(len(cells(line, summary.tasks)) == len(heads(summary)) for line in found.values())


def test_plots_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    written = plots(RECORDS, tmp_path / "plots")
    names = [path.name.removeprefix("float32_batch_1_temperature_0_") for path in written]
    assert names == ["speed.png", "tokens_per_pass.png", "times.png", "acceptance.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in written)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="could not be written"):
        plots(RECORDS, tmp_path / "file")


def test_plots_without_matplotlib_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SpecdecError, match=r"specdec-hf\[plots\]"):
        plots(RECORDS, tmp_path)
