"""What parts declare, and the small records: guarantees, budgets, rows, errors, one read a round."""

from __future__ import annotations

import pickle

import pytest
import torch

from specdec.core import host
from specdec.core.contracts import Exactness, validate, validate_count, validate_ids
from specdec.core.draft import Draft
from specdec.core.engine import blame
from specdec.core.errors import IncompatibleError, InvalidDraftError, TokenizerMismatchError
from specdec.core.guarantee import Guarantee
from specdec.core.interfaces import StatelessDrafter, Verifier
from specdec.core.sampling import Laws, Sampling
from specdec.core.state import Budget, Row, Tokens
from specdec.core.verdict import RowVerdict, Verdict

pytestmark = pytest.mark.core


class Plain(StatelessDrafter):
    name = "plain"

    def propose(self, row, budget, rng, context):
        return Draft.empty()


def test_guarantees_are_ordered_and_named():
    assert Exactness.APPROXIMATE < Exactness.CONSISTENT < Exactness.EXACT_GREEDY < Exactness.EXACT_SAMPLING
    for level in Exactness:
        assert Exactness.parse(level.label) is level
    with pytest.raises(ValueError, match=r"'exact'.*exact-sampling"):
        Exactness.parse("exact")
    assert str(Guarantee(Exactness.EXACT_GREEDY, notes=("a", "b"))) == "exact-greedy (algorithmic); a; b"


def test_good_drafts_pass():
    budget = Budget(3, 3)
    for draft in (Draft.empty(), Draft.point([0, 4, 1]), Draft.point(torch.tensor([4]))):
        validate(draft, Plain(), budget, 5, 0)
    validate_count([Draft.empty()] * 2, 2)
    validate_ids([0, 4], 5, 0)


def test_bad_counts_and_ids():
    with pytest.raises(InvalidDraftError, match="1 drafts for 2 live rows"):
        validate_count([Draft.empty()], 2)
    with pytest.raises(InvalidDraftError, match=r"row 7.*token id 5.*vocabulary of 5"):
        validate_ids([0, 5], 5, 7)
    with pytest.raises(InvalidDraftError, match="row 3"):
        validate(Draft.point([1, 2]), Plain(), Budget(1, 9), 5, 3)


def test_incompatible_errors_keep_their_list():
    for kind in (IncompatibleError, TokenizerMismatchError):
        error = pickle.loads(pickle.dumps(kind(["one", "two"])))
        assert type(error) is kind and error.problems == ("one", "two") and "2 problems" in str(error)
    assert str(IncompatibleError("only")) == "only"


def test_blame_keeps_the_exception_and_names_the_place():
    error = KeyError("x")
    with pytest.raises(KeyError) as caught:
        with blame(Plain(), "propose", 4):
            raise error
    assert caught.value is error
    assert error.__notes__ == ["while calling propose() of drafter 'plain', round 4"]


# --- rows -----------------------------------------------------------------------------------------------


def row(**options):
    return Row(0, [5, 6, 7], Sampling(), **{"max_length": 10, **options})


def test_a_row_knows_its_place():
    made = row(padding=(0, 0))
    assert (made.anchor, made.position, made.room, made.new_tokens, made.prompt_length) == (7, 2, 7, [], 3)
    assert isinstance(made.tokens, Tokens) and made.tokens == [5, 6, 7]
    assert made.prefix(torch.device("cpu")).tolist() == [[0, 0, 5, 6, 7]]
    assert made.extend([8, 9], None, torch.device("cpu")) == 2
    assert made.prefix(torch.device("cpu")).tolist() == [[0, 0, 5, 6, 7, 8, 9]]
    assert made.prefix(torch.device("cpu"), 4).tolist() == [[0, 0, 5, 6, 7, 8]]
    assert made.new_tokens == [8, 9] and not made.done


@pytest.mark.parametrize(
    ("options", "kept", "reason"),
    [
        ({"eos": frozenset({9})}, 2, "eos"),
        ({"max_length": 6}, 3, "length"),
        ({"max_length": 5, "eos": frozenset({9})}, 2, "eos"),
        ({"criteria": (lambda ids, scores: ids.shape[1] == 6,)}, 3, "criterion"),
        ({"criteria": (lambda ids, scores: torch.tensor([True]),)}, 1, "criterion"),
    ],
)
def test_a_row_ends_at_the_first_reason(options, kept, reason):
    made = row(**options)
    assert made.extend([8, 9, 8, 9], None, torch.device("cpu")) == kept
    assert made.done and made.finish_reason == reason and len(made.tokens) == 3 + kept


def test_every_criterion_is_asked_even_after_a_yes():
    asked = []
    criteria = tuple(lambda ids, scores, i=i: asked.append(i) or i == 0 for i in range(3))
    row(criteria=criteria).extend([8, 9], None, torch.device("cpu"))
    assert asked == [0, 1, 2]


def test_tokens_can_be_read_like_a_list_and_not_written():
    tokens = Tokens([1, 2])
    assert tokens == [1, 2] and tokens[-1] == 2 and list(tokens) + [3] == [1, 2, 3] and tokens[:1] == [1]
    with pytest.raises(TypeError, match=r"list\(row.tokens\)"):
        tokens.append(3)
    with pytest.raises(TypeError):
        tokens += [3]
    tokens.commit(3)
    assert tokens == [1, 2, 3]


# --- reading --------------------------------------------------------------------------------------------


class Counted(torch.Tensor):
    """A tensor that says it lies elsewhere and counts how often it is brought to the host."""

    transfers = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") == "cpu":
            Counted.transfers += 1
        if function == torch.Tensor.device.__get__:
            return torch.device("meta")
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("elsewhere", [False, True])
def test_all_is_read_in_one_transfer(elsewhere):
    parts = [
        torch.tensor([3, -1]), torch.tensor([[0.5, -0.0], [1e-300, torch.inf]], dtype=torch.float64),
        torch.tensor([True, False]), torch.tensor([2.5], dtype=torch.float32), torch.tensor([7], dtype=torch.int32),
    ]  # fmt: skip
    if elsewhere:
        parts = [part.as_subclass(Counted) for part in parts]
        Counted.transfers = 0
    read = host.read(*parts)
    assert read == [[3, -1], [0.5, -0.0, 1e-300, float("inf")], [1, 0], [2.5], [7]]
    if elsewhere:
        assert Counted.transfers == 1


def test_flags():
    assert host.is_true(torch.tensor([False, True])) and not host.is_true(torch.tensor([False]))
    assert host.is_true(True) and not host.is_true(0)
    assert host.known_true(lambda: torch.tensor([True, True]), torch.device("cpu"))
    assert not host.known_true(lambda: torch.tensor([True, False]), torch.device("cpu"))
    assert not host.known_true(lambda: 1 / 0, torch.device("meta"))  # not even asked where reading costs
    assert host.known_rows(torch.tensor([True, False])) == [True, False]
    meta = torch.empty(2, dtype=torch.bool, device="meta")
    assert host.known_rows(meta) is None and host.peek(meta) is None


# --- verifiers and laws by the short road ---------------------------------------------------------------


def test_a_verifier_may_judge_row_by_row():
    from specdec.core.forest import Forest
    from specdec.core.rng import TorchRng
    from specdec.core.state import Scores

    seen = []

    class Simple(Verifier):
        name = "simple"

        def judge(self, draft, law, rng):
            seen.append([law(node).tolist() for node in range(len(draft) + 1)])
            return RowVerdict(len(draft), int(law(0).argmax()))

    rows = [Row(i, [1], Sampling(greedy=False), 9) for i in range(2)]
    forest = Forest.pack(rows, [Draft.point([1, 0]), Draft.point([1])], torch.device("cpu"))
    logits = torch.arange(18.0).view(2, 3, 3) % 5
    verdict = Simple().verify(forest, Laws(Scores(logits), forest), TorchRng(0))
    assert isinstance(verdict, Verdict) and verdict.leaf.tolist() == [2, 1]
    assert verdict.next_token.tolist() == logits[:, 0].argmax(-1).tolist()
    for index, laws in enumerate(seen):
        for node, law in enumerate(laws):
            assert torch.allclose(torch.tensor(law).double(), logits[index, node].double().softmax(-1))

    class Empty(Verifier):
        name = "empty"

    with pytest.raises(NotImplementedError, match=r"'empty'.*verify.*judge"):
        Empty().verify(forest, Laws(Scores(logits), forest), TorchRng(0))
