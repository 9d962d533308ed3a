"""The search over decoders: the faster of two is chosen, by a clock that the test moves, if its text is right."""

from __future__ import annotations

import itertools

import pytest
import torch

from specdec.bench import run as module
from specdec.bench.autotune import autotune
from specdec.bench.candidates import candidates
from specdec.bench.runners import Answer, Skipped
from specdec.bench.strategies import Contender
from specdec.core.config import DecoderConfig
from tests.bench.tiny import PROMPTS, Clock, load


@pytest.fixture
def scripted(monkeypatch):
    """Runs autotune on strategies of these seconds; `wrong` ones write another text, `refused` ones cannot be built."""

    def run(seconds: dict[str, float], wrong=(), refused=(), minutes=1.0, prompts=PROMPTS):
        clock = Clock()

        def build(contender, target, tokenizer, setting):
            if contender.name in refused:
                raise Skipped("does not fit")

            def runner(ids, mask, call):
                clock.wait(seconds[contender.name])
                new = torch.full((len(ids), 5), 40)
                new[:, -1] += contender.name in wrong
                return Answer(torch.cat([ids, new], dim=1))

            return runner

        monkeypatch.setattr(module, "build", build)
        tried = [
            Contender.parse(f"{name}={{type: jacobi, block_size: {size}}}")
            for size, name in enumerate((name for name in seconds if name != "plain"), start=2)
        ]
        return autotune("tiny", tried, prompts, minutes=minutes, clock=clock, load=load), clock

    return run


def test_the_faster_is_chosen_and_the_budget_is_held(scripted):
    choice, clock = scripted({"plain": 1.0, "one": 0.8, "two": 0.5})
    assert isinstance(choice.config, DecoderConfig) and choice.config.drafter.block_size == 3
    assert choice.config.target.model == "tiny" and choice.config.specdec_version
    assert choice.outcome.ratio == pytest.approx(1.6) and clock() <= 60
    assert choice.claim.startswith("two: 2.00 times plain generate (4 prompts, ")
    assert "1.600 times the runner-up, one (95 % of resampled prompts: 1.600 to 1.600, faster in 100%)" in choice.claim


def test_how_sure_it_is_is_not_said_of_a_few_prompts(scripted):
    choice, _ = scripted({"plain": 1.0, "one": 0.8, "two": 0.5}, prompts=PROMPTS[:3])
    assert choice.claim.startswith("two: 2.00 times plain generate (3 prompts, ")
    assert "on so few prompts nobody can say how sure that is" in choice.claim and "faster in" not in choice.claim


def test_nothing_is_left_to_choose_from(scripted):
    choice, _ = scripted({"plain": 1.0, "one": 0.8}, wrong=["one"])
    assert choice.config is None and "left out: one (its text differs" in choice.claim


def test_a_text_that_is_not_plains_is_not_chosen(scripted):
    choice, _ = scripted({"plain": 1.0, "one": 0.8, "two": 0.5}, wrong=["two"])
    assert choice.outcome.best == "one" and "more than rounding" in choice.outcome.failed["two"]


def test_what_cannot_be_composed_is_left_out(scripted):
    choice, _ = scripted({"plain": 1.0, "one": 2.0, "two": 0.5}, refused=["two"])
    assert choice.outcome.failed == {"two": "does not fit"}
    assert "no candidate is faster than plain generate here" in choice.claim


def test_too_little_time(scripted):
    choice, _ = scripted({"plain": 100.0, "one": 1.0}, minutes=0.01)
    assert choice.outcome.unmeasured == ("one",) and choice.config is None and "more --minutes" in choice.claim


def test_equal_speeds_are_not_called_a_win(scripted):
    choice, _ = scripted({"plain": 1.0, "one": 0.5, "two": 0.5})
    assert "cannot be told apart" in choice.claim


def test_the_shipped_candidates_write_plains_text():
    """On a real (tiny) model; the clock counts how often it is read, so nothing hangs on real time."""
    ticks = itertools.count()
    choice = autotune(
        "tiny", candidates(), PROMPTS[2:], minutes=2.0, tokens=6, load=load, clock=lambda: float(next(ticks))
    )
    assert choice.outcome.failed == {} and choice.outcome.unmeasured == ()
    assert choice.config is not None and choice.config.drafter.type
