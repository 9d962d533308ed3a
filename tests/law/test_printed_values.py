"""Trees and their verdicts as the textbook prints them, from the engine and from a real model's masks."""

from __future__ import annotations

import itertools

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.core.engine import Generation, Parts
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Row
from specdec.drafters import Jacobi, Lookahead, NoDraft
from specdec.schedulers import Fixed
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Greedy, Walk
from tests.drafters.parts import Scripted
from tests.frontdoor.models import PROMPT, llama


def candidate_tree(candidates):
    """Every combination of the candidates of each depth, breadth first."""
    paths = [path for depth in range(len(candidates)) for path in itertools.product(*candidates[: depth + 1])]
    return Draft.point([path[-1] for path in paths], [paths.index(path[:-1]) if path[1:] else -1 for path in paths])


ATTENTION = [
    [1, 0, 0, 0, 0, 0],
    [0, 1, 0, 0, 0, 0],
    [1, 0, 1, 0, 0, 0],
    [1, 0, 0, 1, 0, 0],
    [0, 1, 0, 0, 1, 0],
    [0, 1, 0, 0, 0, 1],
]


def test_the_printed_candidate_tree():
    draft = candidate_tree([[7, 8], [3, 4]])
    assert draft.tokens == (7, 8, 3, 4, 3, 4) and draft.parents == (-1, -1, 0, 0, 1, 1)
    shape = draft.topology
    leaves = [path for node, path in enumerate(shape.paths) if not shape.candidates[node]]
    assert [[draft.tokens[node - 1] for node in path] for path in leaves] == [[7, 3], [7, 4], [8, 3], [8, 4]]
    model, seen = llama(0), []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs.get("attention_mask")), with_kwargs=True
    )
    drafter = Scripted(lambda row, budget: draft if budget.depth > 1 else Draft.empty(), branching=True)
    Decoder(model, drafter, scheduler=Fixed(2)).generate(PROMPT, max_new_tokens=4, do_sample=False)
    hook.remove()
    (mask, *_) = [mask for mask in seen if mask is not None and mask.shape[-2] == 7]
    visible = (mask[0, 0] == 0).int()  # [7 queries, slots]
    start = PROMPT.shape[1] + 1  # the anchor lies behind the prompt, the tree behind the anchor
    assert visible[1:, start : start + 6].tolist() == ATTENTION
    assert bool(visible[:, :start].all()) and not bool(visible[:, start + 6 :].any())


def test_the_printed_verdict_on_a_candidate_tree():
    after = {0: 1, 1: 2, 2: 3, 3: 4, 4: 0, 5: 5, 6: 6, 7: 7}
    target = TabularTarget(lambda text: [float(token == after[text[-1]]) for token in range(8)], 8)
    draft = candidate_tree([[1, 5], [2], [3], [7]])
    for rule in (Greedy(), Walk()):
        row = Row(0, [4], Sampling(), 20)  # whose first token is 0
        drafter = Scripted(lambda row, budget: draft, branching=True)
        events = Generation(Parts(target, drafter, rule, Fixed(4)), (row,), TorchRng(0), TorchRng(1)).rounds()
        assert next(events).rows[0].tokens == (0,)
        outcome = next(events).rows[0]
        assert [outcome.drafted[node - 1] for node in outcome.path] == [1, 2, 3]
        assert outcome.tokens == (1, 2, 3, 4)


def passes(after, prompt, count, drafter):
    """Passes over the first `count` tokens after `prompt`, in a text where `after(prefix)` follows each prefix."""
    target = TabularTarget(lambda text: [float(token == after(text)) for token in range(16)], 16)
    row = Row(0, list(prompt), Sampling(), len(prompt) + count)
    generation = Generation(Parts(target, drafter, Greedy(), Fixed(16)), (row,), TorchRng(0), TorchRng(1))
    return sum(1 for _ in generation.rounds()), row.new_tokens


def test_the_printed_numbers_of_passes():
    def constant(text):
        return 5

    assert passes(constant, [0], 20, NoDraft())[0] == 20
    assert passes(constant, [0], 20, Jacobi(block_size=5))[0] == 5

    def period(text):  # 5, 8, 2, 8, over and over, and nothing else leads there
        return {(8, 5): 8, (5, 8): 2, (8, 2): 8, (2, 8): 5}.get(tuple(text[-2:]), 0)

    plain = passes(period, [5, 8], 24, NoDraft())
    assert plain[0] == 24
    assert passes(period, [5, 8], 24, Jacobi(block_size=5)) == plain
    lookahead = passes(period, [5, 8], 24, Lookahead(form="simple", block_size=5, ngram=4))
    assert lookahead == (8, plain[1])
