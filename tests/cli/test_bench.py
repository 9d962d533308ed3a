"""`specdec bench`, `report` and `autotune` from the command line, on a tiny model."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from specdec import Decoder
from specdec.bench import run as module
from specdec.bench.record import read_results
from specdec.core.config import load_config
from specdec.core.errors import ModelNotFoundError
from tests.bench.tiny import load, model

LINES = [
    '{"task": "copy", "prompt": "abc abc abc"}',
    '{"task": "prose", "prompt": "the sea"}',
    '{"task": "prose", "prompt": "the sky"}',
]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    # The default of `load` was bound when the class was made.
    monkeypatch.setitem(module.Bench.__init__.__kwdefaults__, "load", load)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(LINES))
    return path


def test_bench_then_report(specdec, prompts, tmp_path):
    out = tmp_path / "results.jsonl"
    common = ("bench", "tiny", "--prompts", prompts, "--per-task", 1, "--tokens", 8, "--out", out)
    done = specdec(*common, "-s", "lookup=prompt-lookup", "-s", "hf-prompt-lookup:3")
    assert done.exit_code == 0, done.output
    assert "lookup" in done.stdout and "tokens a pass" in done.stdout
    records, heads, left = read_results([out])
    first, second = ["plain", "lookup", "hf-prompt-lookup:3"], ["lookup", "hf-prompt-lookup:3", "plain"]
    assert [r.strategy for r in records] == first + second and not left
    assert heads[0]["model"] == "tiny" and heads[0]["prompts"] == 2

    refused = specdec(*common)
    assert refused.exit_code == 1 and "--append" in refused.stderr

    with open(out, "a") as file:
        file.write('{"kind": "result", "strat')  # a run that was killed
    text = tmp_path / "report.md"
    shown = specdec("report", out, "--markdown", text)
    assert shown.exit_code == 0, shown.output
    assert "line 8: cut off" in shown.stderr and "lookup" in shown.stdout
    assert "| plain |" in text.read_text()
    assert "measured were plain, lookup" in specdec("report", out, "--baseline", "x").stderr


def test_a_failing_strategy_is_told_by_the_exit_code(specdec, prompts, tmp_path):
    file = tmp_path / "peer.py"
    file.write_text(
        "def make(model, tokenizer):\n"
        "    def run(ids, mask, **options):\n"
        "        raise RuntimeError('no luck')\n"
        "    return run\n"
    )
    out = tmp_path / "results.jsonl"
    done = specdec("bench", "tiny", "--prompts", prompts, "--tokens", 4, "--out", out, "-s", f"bad=call:{file}:make")
    assert done.exit_code == 1 and "3 of 6 decodings failed" in done.stderr
    assert sum(r.measured for r in read_results([out])[0]) == 3


def interrupt(monkeypatch, at):
    """Ctrl-C comes in the decoding of that number, counted from 1."""
    measure, calls = module.Bench.measure, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(module.Bench, "measure", interrupted)


def test_an_interrupted_run_keeps_readable_lines(specdec, prompts, tmp_path, monkeypatch):
    interrupt(monkeypatch, 4)
    out = tmp_path / "results.jsonl"
    done = specdec("bench", "tiny", "--prompts", prompts, "--tokens", 4, "--out", out, "-s", "jacobi")
    assert done.exit_code == 130
    assert "stopped after 3 of 6 decodings" in done.stderr and str(out) in done.stderr
    assert [r.prompt for r in read_results([out])[0]] == [0, 0, 1]
    assert all(json.loads(line) for line in out.read_text().splitlines())
    assert specdec("report", out).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("-s", "nonesuch"), "nonesuch"),
        (("--compile", "maybe"), "expected one of no, yes, weights, both"),
        (("--batch", "0"), "batch size 0"),
        (("--temperature", "-1"), "temperature -1"),
        (("--dtype", "float9"), "float9"),
        (("--exactness", "nearly"), "nearly"),
    ],
)
def test_wrong_options_end_before_a_model_is_loaded(specdec, arguments, cause, monkeypatch):
    monkeypatch.setitem(module.Bench.__init__.__kwdefaults__, "load", None)
    done = specdec("bench", "tiny", *arguments)
    assert done.exit_code == 1 and cause in done.stderr + str(done.exception)


def test_broken_lines(specdec, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join([LINES[0], "{no", LINES[1]]))
    assert "line 2" in specdec("bench", "tiny", "--prompts", path).stderr
    done = specdec("bench", "tiny", "--prompts", path, "--skip-broken", "--tokens", 4, "-s", "jacobi")
    assert done.exit_code == 0 and "left out" in done.stderr and "line 2" in done.stderr


def test_autotune_writes_a_config_that_a_decoder_is_made_from(specdec, prompts, tmp_path, monkeypatch):
    from specdec.bench import autotune as tuning

    monkeypatch.setitem(tuning.autotune.__kwdefaults__, "load", load)
    out = tmp_path / "decoder.yaml"
    arguments = ("autotune", "tiny", "--prompts", prompts, "--tokens", 4, "--out", out, "--only-given")
    ticks = itertools.count()  # seconds are how often the clock was read
    monkeypatch.setitem(tuning.autotune.__kwdefaults__, "clock", lambda: float(next(ticks)))
    done = specdec(*arguments, "-d", "jacobi", "--minutes", 1)
    assert done.exit_code == 0, done.output
    assert "times plain generate" in done.stdout
    config = load_config(out)
    assert config.target.model == "tiny" and config.drafter.type in ("none", "jacobi", "merge")
    decoder = Decoder.from_config(out, target=model())
    assert decoder.config.drafter == config.drafter
    ids = torch.tensor([[40, 41, 42, 40, 41, 42]])
    call = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(decoder.generate(ids, **call), model().generate(ids, **call))
    assert "there is such a file" in specdec(*arguments).stderr
    assert "expected a .yaml or .json" in specdec("autotune", "tiny", "--out", tmp_path / "x.txt").stderr
    assert "there is no folder" in specdec("autotune", "tiny", "--out", tmp_path / "no" / "x.yaml").stderr


def test_an_interrupted_search_writes_its_choice(specdec, prompts, tmp_path, monkeypatch):
    from specdec.bench import autotune as tuning

    monkeypatch.setitem(tuning.autotune.__kwdefaults__, "load", load)
    interrupt(monkeypatch, 12)
    out = tmp_path / "decoder.yaml"
    given = ("--tokens", 4, "--out", out, "--only-given", "-d", "{type: jacobi,\n block_size: 3}")
    done = specdec("autotune", "tiny", "--prompts", prompts, *given)
    assert done.exit_code == 130 and "the search was interrupted" in done.stdout
    assert load_config(out).drafter.type in ("none", "jacobi", "merge")


def test_figures_of_two_models_are_not_put_into_one_file(specdec, prompts, tmp_path):
    out = tmp_path / "results.jsonl"
    common = ("--prompts", prompts, "--per-task", 1, "--tokens", 4, "--out", out, "-s", "jacobi")
    assert specdec("bench", "tiny", *common).exit_code == 0
    before = out.read_text()
    refused = specdec("bench", "other", *common, "--append")
    assert refused.exit_code == 1 and "has results of tiny, not of other" in refused.stderr
    assert specdec("bench", "tiny", *common, "--append").exit_code == 0
    assert out.read_text().startswith(before) and len(read_results([out])[0]) == 8


def test_a_model_that_cannot_be_loaded_leaves_an_empty_file(specdec, prompts, tmp_path, monkeypatch):
    def missing(name, **options):
        raise ModelNotFoundError(f"{name} is nowhere")

    out = tmp_path / "results.jsonl"
    common = ("bench", "tiny", "--prompts", prompts, "--tokens", 4, "--out", out, "-s", "jacobi")
    with monkeypatch.context() as patched:
        patched.setitem(module.Bench.__init__.__kwdefaults__, "load", missing)
        assert "tiny is nowhere" in specdec(*common).stderr
    assert out.read_text() == ""
    assert specdec(*common).exit_code == 0, "the next run is not told that the file holds results"
