"""A drafter that breaks its contract: the error keeps its type and names the part; the next call works."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.core.draft import Draft, Kind
from specdec.core.errors import InvalidDraftError, InvalidLogitsError
from specdec.core.interfaces import Drafter, DraftSession, Scheduler, StatelessDrafter
from specdec.schedulers import Fixed
from specdec.verifiers import Token
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, VOCAB, Saying, decoder, llama, plain, target

UNIFORM = torch.full((3, VOCAB), 1 / VOCAB)


def notes(error):
    return " ".join(getattr(error, "__notes__", []))


class Bad(StatelessDrafter):
    """Well-behaved for two rounds, then returns what `draft(row)` says; only while `on`."""

    name = "bad"

    def __init__(self, draft, emits=frozenset({Kind.POINT}), branching=False):
        self.draft, self.emits, self.branching, self.on = draft, emits, branching, True

    def propose(self, row, budget, rng, context):
        return self.draft(row) if self.on and row.rounds == 3 else Draft.empty()


DRAFTS = {
    "an id out of range": (lambda row: Draft.point([1, VOCAB]), f"token id {VOCAB} .* vocabulary of {VOCAB}"),
    "a negative id": (lambda row: Draft.point([-1]), "token id -1"),
    "an id out of range in a tensor": (lambda row: Draft.point(torch.tensor([VOCAB + 5])), f"token id {VOCAB + 5}"),
    "no draft": (lambda row: None, "expected a Draft, found NoneType"),
    "a list of ids": (lambda row: [1, 2], "expected a Draft, found list"),
    "a fraction for an id": (lambda row: Draft.point([1.5]), "1.5 is a float"),
    "fractions in a tensor": (lambda row: Draft.point(torch.tensor([1.0])), "float32, expected int64"),
    "a column of ids": (lambda row: Draft.point(torch.tensor([[1], [2]])), r"found \[2, 1\]"),
    "more tokens than parents": (lambda row: Draft((1, 2), (-1,), (Kind.POINT,)), "2 tokens but 1 parents"),
    "more parents than kinds": (lambda row: Draft((1, 2), (-1, 0), (Kind.POINT,)), "2 parents but 1 kinds"),
    "a parent that follows": (lambda row: Draft.point([1, 2], [1, -1]), "node 0 has parent 1"),
    "its own parent": (lambda row: Draft.point([1], [0]), "node 0 has parent 0"),
    "too deep": (lambda row: Draft.point([1] * 6), "6 deep, but the budget allows 5"),
    "too many nodes": (lambda row: Draft.point([1] * 70, [-1] * 70), "70 nodes, but the budget allows 64"),
    "an undeclared tree": (lambda row: Draft.point([1, 2], [-1, -1]), "branches"),
    "an undeclared kind": (lambda row: Draft.sampled([1], UNIFORM), "IID .* declares that it emits POINT"),
    "a law without samples": (lambda row: Draft((1,), (-1,), (Kind.POINT,), UNIFORM), "carries a law q"),
    "a judged child of scratch": (lambda row: Draft.point([1, 2], scratch=[0]), "hangs under scratch node 0"),
    "scratch that is not there": (lambda row: Draft.point([1], scratch=[4]), r"scratch names nodes \[4\]"),
}  # fmt: skip
SAMPLED = {
    "samples without a law": (lambda row: Draft((1,), (-1,), (Kind.IID,)), "carries no law q"),
    "a law of another size": (lambda row: Draft.sampled([1], UNIFORM[:, :5]), r"\[3, 5\], expected \[1 or more, 64\]"),
    "a law for too few nodes": (lambda row: Draft.sampled([1, 2, 3, 4], UNIFORM), r"expected \[4 or more, 64\]"),
    "a flat law": (lambda row: Draft.sampled([1], UNIFORM[0]), r"q has shape \[64\]"),
    "a list for a law": (lambda row: Draft.sampled([1], [0.5]), "q is list"),
    "without replacement": (lambda row: Draft.sampled([1], UNIFORM, replace=False), "NO_REPLACE"),
}


def check(bad, match, **options):
    speculating = decoder(bad, Fixed(5))
    call = {"max_new_tokens": 20, **options}
    with pytest.raises(InvalidDraftError, match=match) as caught:
        speculating.generate(PROMPT, **call)
    assert isinstance(caught.value, ValueError)
    assert "row 0" in str(caught.value)
    assert "propose() of drafter 'bad', round 3" in notes(caught.value)
    bad.on = False
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=20, do_sample=False), plain(max_new_tokens=20))


@pytest.mark.core
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("sample", [False, True])
def test_invalid_drafts(draft, sample):
    made, match = DRAFTS[draft]
    check(Bad(made), match, do_sample=sample, **({"seed": 1} if sample else {}))


@pytest.mark.parametrize("draft", SAMPLED)
def test_invalid_sampled_drafts(draft):
    made, match = SAMPLED[draft]
    check(Bad(made, frozenset({Kind.IID})), match, do_sample=True, seed=1)


def test_all_faults_of_a_draft_are_named():
    with pytest.raises(InvalidDraftError) as caught:
        decoder(Bad(lambda row: Draft.point([99] * 6 + [1], [-1, 0, 1, 2, 3, 4, -1]))).generate(
            PROMPT, max_new_tokens=20, do_sample=False
        )
    for fault in ("token id 99", "6 deep", "branches"):
        assert fault in str(caught.value)


@pytest.mark.parametrize("returned", [[], [Draft.empty()] * 3, [Draft.empty()] * 2 + [None]], ids=["none", "3", "None"])
def test_the_wrong_number_of_drafts(returned):
    class Miscounting(Drafter):
        name = "miscounting"

        def begin(self, context):
            class Session(DraftSession):
                def propose(self, rows, budgets, rng):
                    return returned

            return Session()

    with pytest.raises(InvalidDraftError, match="drafts for 5 live rows") as caught:
        decoder(Miscounting()).generate(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=6, do_sample=False)
    assert "drafter 'miscounting', round 1" in notes(caught.value)


@pytest.mark.core
@pytest.mark.parametrize(("method", "number"), [("begin", 0), ("propose", 3), ("observe", 3), ("problems", None)])
@pytest.mark.parametrize("error", [KeyError, RuntimeError, KeyboardInterrupt])
def test_a_drafter_that_raises(method, number, error):
    class Raising(Drafter):
        name = "raising"
        on = False

        def _maybe(self, where):
            if self.on and method == where:
                raise error("on purpose")

        def problems(self, target, tokenizer=None):
            self._maybe("problems")
            return []

        def begin(self, context):
            self._maybe("begin")
            outer = self

            class Session(DraftSession):
                rounds = 0

                def propose(self, rows, budgets, rng):
                    self.rounds += 1
                    if self.rounds == 3:
                        outer._maybe("propose")
                    return [Draft.point([1, 2][: budget.depth]) for budget in budgets]

                def observe(self, outcomes):
                    if self.rounds == 2:
                        outer._maybe("observe")

            return Session()

    drafter = Raising()
    speculating = decoder(drafter)
    drafter.on = True
    with pytest.raises(error, match="on purpose") as caught:
        speculating.generate(PROMPT, max_new_tokens=20, do_sample=False)
    if number is not None and error is not KeyboardInterrupt:
        assert f"drafter 'raising', round {number}" in notes(caught.value)
    drafter.on = False
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=20, do_sample=False), plain(max_new_tokens=20))


@pytest.mark.parametrize(
    "change",
    [
        lambda tokens: tokens.append(5), lambda tokens: tokens.__setitem__(0, 9), lambda tokens: tokens.pop(),
        lambda tokens: tokens.extend([1]), lambda tokens: tokens.__delitem__(0), lambda tokens: tokens.clear(),
        lambda tokens: tokens.__iadd__([1]), lambda tokens: tokens.insert(0, 1), lambda tokens: tokens.reverse(),
        lambda tokens: tokens.sort(), lambda tokens: tokens.remove(1), lambda tokens: tokens.__imul__(2),
    ],
)  # fmt: skip
def test_a_drafter_that_writes_into_its_row_is_stopped(change):
    def say(row, budget):
        change(row.tokens)

    with pytest.raises(TypeError, match="only the engine") as caught:
        decoder(Saying(say)).generate(PROMPT, max_new_tokens=6, do_sample=False)
    assert "drafter 'saying', round 1" in notes(caught.value)


def test_a_drafter_may_change_copies_of_its_row():
    def say(row, budget):
        mine = list(row.tokens)
        mine += row.tokens[-2:] + row.new_tokens
        row.new_tokens.append(5)
        return [mine.pop()]

    out = decoder(Saying(say)).generate(PROMPT, max_new_tokens=12, do_sample=False)
    assert torch.equal(out, plain(max_new_tokens=12))


def test_a_drafter_that_forgets_the_budget_only_when_it_is_zero():
    # One token is left, so nothing can be drafted; a draft would be scored for nothing.
    with pytest.raises(InvalidDraftError, match="budget allows 0"):
        decoder(Saying(lambda row, budget: Draft.point([1]))).generate(PROMPT, max_new_tokens=2, do_sample=False)


def test_other_parts_that_raise_are_named():
    class Late(Scheduler):
        name = "late"

        def begin(self, context, drafts):
            raise LookupError("no plan")

    with pytest.raises(LookupError) as caught:
        Decoder(target(), Bad(lambda row: None), scheduler=Late()).generate(PROMPT, max_new_tokens=3)
    assert "begin() of scheduler 'late', round 0" in notes(caught.value)

    class Wrong(Token):
        name = "wrong"

        def verify(self, forest, laws, rng):
            raise ArithmeticError("no verdict")

    with pytest.raises(ArithmeticError) as caught:
        Decoder(target(), Bad(lambda row: None), Wrong()).generate(PROMPT, max_new_tokens=3, do_sample=True)
    assert "verify() of verifier 'wrong', round 0" in notes(caught.value)


def test_a_target_whose_logits_allow_no_token():
    model = llama(0)
    speculating = decoder("prompt-lookup", model=model)
    with torch.no_grad():
        kept = model.lm_head.weight.clone()
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(InvalidLogitsError, match="NaN"):
        speculating.generate(PROMPT, max_new_tokens=6, do_sample=True, seed=1)
    with torch.no_grad():
        model.lm_head.weight.copy_(kept)
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=6, do_sample=False), plain(max_new_tokens=6))
