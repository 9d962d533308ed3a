"""The interleaved run on a tiny model: what is counted, who goes when, and what happens when something fails."""

from __future__ import annotations

import pytest
import torch

from specdec.bench import run as module
from specdec.bench.run import Bench, new_tokens, units
from specdec.bench.runners import Answer, Skipped
from specdec.bench.setting import Setting, settings
from specdec.bench.strategies import contenders
from specdec.core.errors import ConfigError
from tests.bench.tiny import PROMPTS, Clock, load, model


def bench(*strategies: str, points=None, **options) -> Bench:
    options = {"tokens": 12, "load": load, **options}
    return Bench("tiny", contenders(strategies), PROMPTS, points or [Setting()], **options)


def test_batches_are_of_one_task_and_what_is_left_is_mixed():
    assert [(unit.task, len(unit.prompts)) for unit in units(PROMPTS, 1)] == [("copy", 1)] * 3 + [("prose", 1)]
    assert [(unit.task, [p.text for p in unit.prompts]) for unit in units(PROMPTS, 2)] == [
        ("copy", ["abc abc abc abc", "one two one two"]),
        ("mixed", ["la la la", "the sea"]),
    ]


def test_new_tokens_end_with_the_first_end_token():
    sequences = torch.tensor([[9, 9, 4, 5, 0, 0], [9, 9, 4, 5, 6, 7]])
    assert new_tokens(sequences, 2, frozenset({0})) == [[4, 5, 0], [4, 5, 6, 7]]


def test_a_greedy_run():
    made = bench("hf-prompt-lookup:3", "prompt-lookup", "hf-assisted:other")
    records = [r for r in made.records()]
    assert len(records) == len(made) == 16
    assert [r.error for r in records] == [None] * 16
    assert all(r.identical for r in records), "in float32 every text is plain decoding's"
    by_name = {name: [r for r in records if r.strategy == name] for name in {r.strategy for r in records}}
    assert all(r.passes == r.tokens for r in by_name["plain"])
    lookup = by_name["prompt-lookup"]
    assert sum(r.passes for r in lookup) < sum(r.tokens for r in lookup)
    assert all(r.guarantee.startswith("exact-greedy") for r in lookup)
    assert all(r.near_ties is not None and r.smallest_margin > 0 for r in lookup)
    assert all(0 < r.seconds_draft + r.seconds_target + r.seconds_verify <= r.seconds for r in lookup)
    assert {r.dtype for r in records} == {"float32"}
    assert all(r.passes <= r.tokens for r in by_name["hf-prompt-lookup:3"])
    assert not model()._forward_pre_hooks, "what counts passes is taken off"


def test_the_order_rotates_from_prompt_to_prompt(monkeypatch):
    made, called = scripted(monkeypatch, "one=jacobi", "two=jacobi")
    list(made.records())
    assert called == ["plain", "one", "two", "one", "two", "plain", "two", "plain", "one", "plain", "one", "two"]


def test_seconds_are_those_of_the_clock(monkeypatch):
    clock = Clock()
    made, _ = scripted(monkeypatch, "one=jacobi", clock=clock, seconds={"plain": 2.0, "one": 0.5})
    records = list(made.records())
    assert {r.strategy: r.seconds for r in records} == {"plain": 2.0, "one": 0.5}
    assert {r.tokens for r in records} == {5}


def test_a_strategy_that_fails_is_recorded_and_the_rest_goes_on(monkeypatch):
    said: list[str] = []
    made, _ = scripted(monkeypatch, "one=jacobi", fails={("one", 2): RuntimeError("no luck")}, say=said.append)
    records = list(made.records())
    assert [(r.strategy, r.prompt) for r in records if r.error] == [("one", 1)]  # the warm-up was its call 0
    assert len(records) == 8 and "no luck" in said[0]
    assert [r.error for r in records if r.error] == ["RuntimeError: no luck"]


def test_an_interrupt_keeps_what_was_measured_on_its_prompt(monkeypatch):
    made, _ = scripted(monkeypatch, "one=jacobi", "two=jacobi", fails={("two", 2): KeyboardInterrupt()})
    found = []
    with pytest.raises(KeyboardInterrupt):
        for record in made.records():
            found.append(record)
    # The second prompt begins with "one"; "two" is interrupted.
    assert [(r.strategy, r.prompt) for r in found] == [("plain", 0), ("one", 0), ("two", 0), ("one", 1)]


def test_a_record_waits_only_for_plain_decoding(monkeypatch):
    made, called = scripted(monkeypatch, "one=jacobi", "two=jacobi")
    seen = [(record.strategy, len(called)) for record in made.records()]
    # Prompt 1 begins with "one" and ends with plain decoding, prompt 2 has it in the middle.
    assert seen[:6] == [("plain", 1), ("one", 2), ("two", 3), ("one", 6), ("two", 6), ("plain", 6)]
    assert seen[6:9] == [("two", 8), ("plain", 8), ("one", 9)]
    made, called = scripted(monkeypatch, "one=jacobi", "two=jacobi", points=[Setting(temperature=1.0)])
    assert [len(called) for _ in made.records()] == list(range(1, 13)), "sampled texts are not compared"


def test_an_interrupt_while_texts_are_compared_loses_nothing(monkeypatch):
    made, _ = scripted(monkeypatch, "one=jacobi", "two=jacobi")
    compared, calls = module.Bench.compared, []

    def interrupted(self, record, *rest):
        calls.append(record)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return compared(self, record, *rest)

    monkeypatch.setattr(module.Bench, "compared", interrupted)
    found = []
    with pytest.raises(KeyboardInterrupt):
        for record in made.records():
            found.append((record.strategy, record.prompt, record.identical))
    assert found[3:] == [("one", 1, None), ("two", 1, None), ("plain", 1, None)]


def test_a_strategy_that_cannot_take_part_is_skipped_with_the_reason():
    said: list[str] = []
    records = list(bench("hf-prompt-lookup:3", points=[Setting(batch=2)], say=said.append).records())
    (skipped,) = [r for r in records if r.skipped]
    assert skipped.strategy == "hf-prompt-lookup:3" and "one row at a time" in skipped.skipped and said
    assert [(r.task, r.rows, r.tokens) for r in records if r.measured] == [("copy", 2, 24), ("mixed", 2, 24)]


def test_axes_and_parts_that_do_not_fit():
    points = settings([2], [0.8], exactness=["algorithmic", "fixed-width"])
    records = list(bench("self={type: self-skip, draw: true}", "jacobi", points=points, repeats=2).records())
    (skipped,) = [r for r in records if r.skipped]
    assert (skipped.strategy, skipped.exactness) == ("self", "fixed-width")
    measured = [r for r in records if r.measured]
    assert all(r.identical is None for r in measured), "sampled texts are not compared"
    assert {r.repeat for r in measured} == {0, 1}
    assert any("fixed-width" in r.guarantee for r in measured if r.strategy == "jacobi")
    assert not [r for r in records if r.error]


def test_a_text_that_differs_is_told_by_its_margin(monkeypatch):
    wrong = {"one": lambda text: torch.cat([text[:, :-2], text[:, -2:] - 1], dim=1), "two": lambda text: text[:, :-1]}
    made, _ = scripted(monkeypatch, "one=jacobi", "two=jacobi", "three=jacobi", texts=wrong)
    found = {r.strategy: r for r in made.records()}
    assert found["one"].identical is False and found["one"].difference_margin > 0
    assert found["two"].identical is False and found["two"].difference_margin is None
    assert found["three"].identical is True


def test_a_function_of_a_file(tmp_path):
    file = tmp_path / "peer.py"
    file.write_text(
        "def make(model, tokenizer):\n"
        "    return lambda ids, mask, **options: model.generate(input_ids=ids, attention_mask=mask, **options)\n"
        "def absent(model, tokenizer):\n    import there_is_no_such_library\n"
        "def unable(model, tokenizer):\n    raise NotImplementedError('only on Tuesdays')\n"
    )
    records = list(bench(*(f"{name}=call:{file}:{name}" for name in ("make", "absent", "unable"))).records())
    assert {r.strategy: r.skipped for r in records if r.skipped} == {
        "absent": "not installed: No module named 'there_is_no_such_library'",
        "unable": "only on Tuesdays",
    }
    assert all(r.identical and r.passes == r.tokens for r in records if r.strategy == "make")
    with pytest.raises(ConfigError, match="the file has no 'other'"):
        list(bench(f"call:{file}:other").records())
    with pytest.raises(ConfigError, match="no such Python file"):
        list(bench(f"call:{file}x:make").records())


def test_a_model_without_a_tokenizer():
    with pytest.raises(ConfigError, match="no tokenizer"):
        list(bench(load=lambda name, **options: (model(), None)).records())


def scripted(monkeypatch, *strategies, clock=None, seconds=None, fails=None, texts=None, **options):
    """A bench whose strategies all write the same five tokens; the names of measured calls come in a list."""
    clock, called, counts = clock or Clock(), [], {}
    warm = len(contenders(strategies))

    def build(contender, target, tokenizer, setting):
        if contender.kind == "lookup":
            raise Skipped("not here")

        def runner(ids, mask, call):
            name = contender.name
            number = counts[name] = counts.get(name, -1) + 1
            if sum(counts.values()) + len(counts) > warm:
                called.append(name)
            if error := (fails or {}).get((name, number)):
                raise error
            clock.wait((seconds or {}).get(name, 1.0))
            text = torch.cat([ids, torch.full((len(ids), 5), 40)], dim=1)
            return Answer((texts or {}).get(name, lambda same: same)(text))

        return runner

    monkeypatch.setattr(module, "build", build)
    return bench(*strategies, clock=clock, **options), called


@pytest.fixture(autouse=True)
def _assistants(monkeypatch):
    monkeypatch.setattr("specdec.targets.load.load_model", load)
