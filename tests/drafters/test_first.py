"""First: in each row the first drafter that has a guess drafts, and all of them learn what became of the text."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.core.config import load_config
from specdec.core.contracts import Needs
from specdec.core.draft import Draft, Kind
from specdec.core.state import Budget
from specdec.drafters import DraftModel, First, Merge, NoDraft, PromptLookup
from specdec.schedulers import Adaptive, Fixed
from specdec.verifiers import Block
from tests.drafters.parts import Scripted, ahead, full_tree, texts_of
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, draft, plain, target


def some_rounds(texts, when, right=3):
    """Right for `right` tokens in the rounds that `when` says, silent in the others."""
    return Scripted(lambda row, budget: ahead(texts, right)(row, budget) if when(row) else Draft.empty())


@pytest.mark.core
@pytest.mark.parametrize("scheduler", [Fixed(5), Adaptive()], ids=["fixed", "adaptive"])
def test_greedy_text_is_that_of_generate(scheduler):
    for drafter in (
        First(PromptLookup(), DraftModel(draft("noisy"))),
        First(PromptLookup(min_ngram=3), Merge(PromptLookup(), DraftModel(draft("foreign")))),
        First(NoDraft()),
    ):
        decoder = Decoder(target(), drafter, scheduler=scheduler)
        assert torch.equal(decoder.generate(PROMPT, max_new_tokens=60, do_sample=False), plain(max_new_tokens=60))
        call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 40, "do_sample": False}
        assert torch.equal(decoder.generate(RAGGED, **call), plain(RAGGED, **call))


@pytest.mark.core
def test_the_first_with_a_guess_drafts_row_by_row_and_the_others_hear_of_the_text():
    texts = texts_of(plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=30), RAGGED_MASK)
    needs = Needs(features=("final",))
    silent_in_odd = some_rounds(texts, lambda row: (row.index + row.rounds) % 2 == 0)
    last = Scripted(lambda row, budget: ahead(texts, right=2)(row, budget), needs=needs)
    decoder = Decoder(target(), First(silent_in_odd, last), scheduler=Fixed(4))
    events = list(
        decoder.stream(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=30, do_sample=False, pad_token_id=0)
    )
    drafted = {(event.number, outcome.row.index): outcome.draft for event in events for outcome in event.rows}
    for number, budgets in enumerate(last.budgets, start=1):
        for row, budget in budgets.items():
            silent = (row + number) % 2 == 1
            assert (budget.nodes > 0) == (silent and silent_in_odd.budgets[number - 1][row].nodes > 0)
            if budget.nodes == 0 and silent_in_odd.budgets[number - 1][row].nodes:
                assert len(drafted[number, row]) > 0  # the first one's
    states = {}
    with torch.no_grad():
        fresh = [target()(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0] for text in texts]
    for outcome in last.outcomes:
        states.setdefault(outcome.row.index, []).append(outcome.features("final"))
        if len(outcome.draft) == 0:
            assert outcome.path == () and outcome.accepted == 0
    for row, parts in states.items():
        seen = torch.cat(parts)
        assert torch.allclose(seen, fresh[row][: len(seen)], atol=1e-4)


@pytest.mark.core
def test_a_model_behind_a_lookup_runs_only_where_the_lookup_is_silent():
    texts = texts_of(plain(max_new_tokens=60))
    passes = []
    model = draft("noisy")
    handle = model.register_forward_hook(lambda *args: passes.append(1))
    try:
        always = Decoder(target(), First(Scripted(ahead(texts)), DraftModel(model)), scheduler=Fixed(4))
        always.generate(PROMPT, max_new_tokens=50, do_sample=False)
        assert len(passes) == 1  # the prompt
        never = Decoder(target(), First(some_rounds(texts, lambda row: False), DraftModel(model)), scheduler=Fixed(4))
        never.generate(PROMPT, max_new_tokens=50, do_sample=False)
        assert len(passes) > 10
    finally:
        handle.remove()


@pytest.mark.core
def test_declarations_are_unions_and_chains_stay_chains():
    drafter = First(PromptLookup(), DraftModel(draft("foreign")))
    assert drafter.emits == {Kind.POINT, Kind.IID} and not drafter.branching
    assert isinstance(Decoder(target(), drafter, Block()), Decoder)  # which judges chains only
    assert First(drafter, Scripted(full_tree(2), True)).branching
    with_seed = Decoder(target(), drafter, scheduler=Fixed(4)).generate(
        PROMPT, max_new_tokens=20, do_sample=True, seed=1
    )
    again = Decoder(target(), drafter, scheduler=Fixed(4)).generate(PROMPT, max_new_tokens=20, do_sample=True, seed=1)
    assert torch.equal(with_seed, again)


def test_budgets_are_handed_on_whole():
    one, two = Scripted(lambda row, budget: Draft.empty()), Scripted(full_tree(2), True)
    Decoder(target(), First(one, two), scheduler=Fixed(3, 9)).generate(PROMPT, max_new_tokens=9, do_sample=False)
    assert one.budgets == two.budgets and one.budgets[0][0] == Budget(3, 9, reach=two.budgets[0][0].reach)


@pytest.mark.core
def test_config_round_trip():
    made = First(PromptLookup(max_ngram=4), Merge(NoDraft(), PromptLookup()))
    again = load_config(Decoder(target(), made).config.model_dump(mode="json"))
    assert again.drafter == made.config
    rebuilt = Decoder.from_config(again, target=target()).drafter
    assert rebuilt.config == made.config and [type(part) for part in rebuilt.drafters] == [PromptLookup, Merge]
