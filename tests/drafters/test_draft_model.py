"""Draft model: what it drafts, from which law, and that its cache follows the text."""

from __future__ import annotations

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper

from specdec.core.draft import Kind
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Outcome, Row, Scores
from specdec.drafters import DraftModel
from specdec.drafters.model_session import context_length
from specdec.schedulers import Fixed
from tests.frontdoor.models import PROMPT, VOCAB, decoder, llama, noisy, plain, target

NO_SCORES = Scores(torch.zeros(1, 1, VOCAB))


def greedy_continuation(model, tokens, count):
    return model.generate(torch.tensor([tokens]), max_new_tokens=count or 1, do_sample=False)[0, len(tokens) :].tolist()


def start(drafter, prompts, sampling=None, room=60):
    sampling = sampling or Sampling()
    rows = tuple(Row(i, list(prompt), sampling, len(prompt) + room, group=i) for i, prompt in enumerate(prompts))
    with torch.inference_mode():
        session = drafter.begin(Context(rows, VOCAB, torch.device("cpu"), NO_SCORES))
    for row in rows:  # the round of the prompt emits a token before anything is drafted
        row.tokens.commit(30)
        row.rounds = 1
    return session, rows


def propose(session, rows, depths, seed=0, nodes=64):
    with torch.inference_mode():
        return session.propose(rows, [Budget(depth, nodes) for depth in depths], TorchRng(seed))


def settle(session, row, draft, accepted, bonus):
    """Commit the first `accepted` drafted tokens and one of the target's own, and tell the session."""
    ids = [int(token) for token in draft.tokens]
    emitted = [*ids[:accepted], bonus]
    for token in emitted:
        row.tokens.commit(token)
    row.rounds += 1
    return Outcome(row, draft, tuple(ids), tuple(range(1, accepted + 1)), tuple(emitted), NO_SCORES, row.index)


@pytest.mark.core
def test_a_greedy_row_gets_the_draft_models_greedy_text_whatever_was_accepted():
    model = llama(1, layers=1)
    session, rows = start(DraftModel(model), [(1, 2, 3), (9,), (5, 6, 7, 8, 9, 10)])
    depths = [4, 3, 5]
    for number in range(6):
        drafts = propose(session, rows, depths)
        for row, draft, depth in zip(rows, drafts, depths, strict=True):
            assert set(draft.kinds) == {Kind.POINT} and draft.q is None and len(draft) == depth
            assert [int(token) for token in draft.tokens] == greedy_continuation(model, list(row.tokens), depth)
        # From nothing accepted to everything, differently in each row.
        accepted = [(number + row.index) % (depth + 1) for row, depth in zip(rows, depths, strict=True)]
        session.observe([
            settle(session, row, draft, kept, (11 * number + 3) % VOCAB)
            for row, draft, kept in zip(rows, drafts, accepted, strict=True)
        ])  # fmt: skip


@pytest.mark.core
def test_rows_may_rest_and_come_back_and_end():
    model = llama(1, layers=1)
    session, rows = start(DraftModel(model), [(1, 2, 3), (9, 8), (5, 6, 7, 8)])
    live = list(rows)
    for number, depths in enumerate([(3, 0, 2), (0, 0, 0), (2, 4, 0), (3, 1), (2,), (5,)]):
        live = live[: len(depths)]
        drafts = propose(session, live, depths)
        for row, draft, depth in zip(live, drafts, depths, strict=True):
            assert [int(token) for token in draft.tokens] == greedy_continuation(model, list(row.tokens), depth)[:depth]
        session.observe([
            settle(session, row, draft, min(number % 3, len(draft)), 20 + number)
            for row, draft in zip(live, drafts, strict=True)
        ])  # fmt: skip


@pytest.mark.parametrize(
    ("own", "temperature", "top_k"),
    [
        ({}, 0.7, 5),
        ({"temperature": 1.5}, 1.5, None),
        ({"top_k": 3}, None, 3),
        ({"temperature": 0.5, "top_k": 9}, 0.5, 9),
    ],
    ids=str,
)
def test_q_is_the_law_that_was_drawn_from(own, temperature, top_k):
    model = llama(1, layers=1)
    mirrored = (TemperatureLogitsWarper(0.7), TopKLogitsWarper(5))
    target_sampling = Sampling(mirrored, greedy=False, mirrored=mirrored)
    session, rows = start(DraftModel(model, **own), [(1, 2, 3), (4, 5)], target_sampling)
    drafts = propose(session, rows, [3, 3], seed=8)
    for row, draft in zip(rows, drafts, strict=True):
        assert set(draft.kinds) == {Kind.IID} and draft.q.dtype == torch.float64
        tokens = [int(token) for token in draft.tokens]
        for node in range(3):
            with torch.no_grad():
                logits = model(torch.tensor([[*row.tokens, *tokens[:node]]])).logits[0, -1].double()
            if top_k:
                logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
            law = (logits / (temperature or 1.0)).softmax(-1)
            assert torch.allclose(draft.q[node], law, atol=1e-5)
            assert draft.q[node].sum() == pytest.approx(1.0) and draft.q[node, tokens[node]] > 0
            assert top_k is None or (draft.q[node] > 0).sum() == top_k


def test_drafts_are_drawn_as_q_says():
    # Many first tokens of one prompt: their frequencies are the first law.
    sampling = Sampling(greedy=False)
    drafter = DraftModel(llama(1, layers=1), temperature=0.5)
    session, rows = start(drafter, [(1, 2, 3)] * 400, sampling)
    for row in rows:
        row.copy = row.index
    drafts = propose(session, rows, [1] * 400, seed=2)
    law = drafts[0].q[0]
    counts = torch.bincount(torch.cat([draft.tokens for draft in drafts]), minlength=VOCAB).double()
    likely = law * 400 > 5
    cells = torch.cat([counts[likely], counts[~likely].sum()[None]])
    expected = torch.cat([law[likely], law[~likely].sum()[None]]) * 400
    assert float(((cells - expected) ** 2 / expected).sum()) < 3 * len(cells) + 10


def test_guesses_depend_on_the_row_and_the_round_not_on_the_batch():
    drafter = DraftModel(llama(1, layers=1))
    sampling = Sampling(greedy=False)
    together, rows = start(drafter, [(1, 2, 3), (4, 5), (6,)], sampling)
    many = propose(together, rows, [4, 2, 3], seed=5)
    for index, prompt in enumerate([(1, 2, 3), (4, 5), (6,)]):
        alone, (row,) = start(drafter, [prompt], sampling)
        (one,) = propose(alone, (row,), [(4, 2, 3)[index]], seed=5)
        assert torch.equal(one.tokens, many[index].tokens)


def test_forward_passes_are_no_more_than_needed():
    other = noisy(target())
    passes = []
    other.register_forward_hook(lambda *args: passes.append(1))
    for count in range(1, 9):
        passes.clear()
        out = decoder(DraftModel(other)).generate(
            PROMPT, max_new_tokens=count, do_sample=False, return_dict_in_generate=True
        )
        # One for the prompt and one for each guess; nothing where no guess could be kept.
        assert len(passes) == (out.stats.judged + 1 if count > 2 else 0)


def test_the_cache_holds_no_more_than_the_text():
    model = target()
    drafter = DraftModel(model)
    session, (row,) = start(drafter, [tuple(PROMPT[0].tolist())], room=200)
    for _ in range(25):
        (draft,) = propose(session, (row,), [5])
        session.observe([settle(session, row, draft, 5, int(draft.tokens[0]))])
        cached = session._session
        assert len(row.tokens) - 2 <= cached.length(0) <= len(row.tokens)


def test_context_length():
    assert context_length(llama(0, max_position_embeddings=24)) == 24


def test_config():
    made = DraftModel(target(), temperature=0.3, top_k=4, top_p=0.9)
    assert (made.config.temperature, made.config.top_k, made.config.top_p) == (0.3, 4, 0.9)
    for wrong in ({"temperature": -1.0}, {"top_k": 0}, {"top_p": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DraftModel(target(), **wrong)


def test_a_draft_that_is_not_a_causal_lm_is_refused():
    with pytest.raises((TypeError, ValueError)):
        DraftModel(torch.nn.Linear(2, 2))
    with pytest.raises((TypeError, ValueError)):
        DraftModel("a name")


def test_plain_text_of_the_tests_is_varied():
    assert len(set(plain(max_new_tokens=30)[0].tolist())) > 8


@pytest.mark.parametrize("tree", [None, (3, 2, 2)])
def test_confidences_are_products_of_the_draft_models_probabilities(tree):
    model = llama(1, layers=1)
    session, rows = start(DraftModel(model, tree=tree), [(1, 2, 3), (9,)])
    drafts = propose(session, rows, [3, 2])
    for row, draft in zip(rows, drafts, strict=True):
        found = session.confidences(row)
        assert len(found) == len(draft) and len(draft) >= draft.topology.depth > 1
        ids = draft.tokens.tolist()
        for node, chance in enumerate(found.tolist()):
            path = [ids[at - 1] for at in draft.topology.paths[node + 1]]
            with torch.no_grad():
                laws = model(torch.tensor([[*row.tokens, *path]])).logits[0].double().softmax(-1)
            expected = 1.0
            for back, token in enumerate(reversed(path)):
                expected *= float(laws[-2 - back, token])
            assert chance == pytest.approx(expected, rel=1e-4)
    propose(session, rows[:1], [2])
    assert session.confidences(rows[1]) is None  # nothing was drafted for it
    drawn, (row,) = start(DraftModel(model), [(1, 2, 3)], Sampling(greedy=False))
    propose(drawn, (row,), [3])
    assert drawn.confidences(row) is None


@pytest.mark.core
@pytest.mark.parametrize(
    "prompts", [[(1, 2, 3)], [(1, 2, 3), (9,), (5, 6, 7, 8, 9, 10)], [(1, 2, 3), (1, 2, 3), (4, 5)]]
)
def test_trees_by_confidence_hold_the_worthiest_paths_whatever_was_accepted(prompts):
    model = llama(1, layers=1)
    sampling = Sampling(greedy=False)  # what is drafted does not depend on it
    session, rows = start(DraftModel(model, expand=3), prompts, sampling)
    for number in range(5):
        drafts = propose(session, rows, [3] * len(rows), nodes=9)
        outcomes = []
        for row, draft in zip(rows, drafts, strict=True):
            assert set(draft.kinds) == {Kind.POINT} and len(draft) == 9 and draft.topology.depth <= 3
            paths = [[int(draft.tokens[at - 1]) for at in path] for path in draft.topology.paths[1:]]
            worths = [worth(model, list(row.tokens), path) for path in paths]
            known = session.confidences(row)
            assert known.tolist() == pytest.approx(worths, rel=1e-3)
            # No path of the draft could be lengthened, nor widened, by a worthier node.
            assert min(worths) >= max(left_out(model, list(row.tokens), paths, 3), default=0.0) - 1e-6
            kept = max(range(len(draft) + 1), key=lambda node: (node * 7 + number + row.index) % 10)
            outcomes.append(settle_tree(session, row, draft, kept, (11 * number + 3) % VOCAB))
        session.observe(outcomes)


def next_law(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1].softmax(-1)


def worth(model, text, path):
    value = 1.0
    for length, token in enumerate(path):
        value *= float(next_law(model, [*text, *path[:length]])[token])
    return value


def left_out(model, text, paths, fan):
    """Values of what was looked at and not kept: likeliest children of the anchor and of inner nodes."""
    inner = {tuple(path[:-1]) for path in paths}
    for node in inner:
        for token in next_law(model, [*text, *node]).topk(fan).indices.tolist():
            if [*node, token] not in paths:
                yield worth(model, text, [*node, token])


def settle_tree(session, row, draft, leaf, bonus):
    """Commit the path to `leaf` (0: none of it) and one of the target's own tokens."""
    ids = [int(token) for token in draft.tokens]
    path = draft.topology.paths[leaf]
    emitted = [*(ids[node - 1] for node in path), bonus]
    for token in emitted:
        row.tokens.commit(token)
    row.rounds += 1
    return Outcome(row, draft, tuple(ids), path, tuple(emitted), NO_SCORES, row.index)


@pytest.mark.parametrize("kind", ["foreign", "noisy", "self"])
def test_trees_by_confidence_leave_the_text_alone(kind):
    from tests.frontdoor.models import RAGGED, RAGGED_MASK, draft

    drafter = DraftModel(draft(kind), expand=3)
    batch = {"attention_mask": RAGGED_MASK, "pad_token_id": 0}
    speculating = decoder(drafter, Fixed(4, 12))
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=30, do_sample=False), plain(max_new_tokens=30))
    got = speculating.generate(RAGGED, max_new_tokens=16, do_sample=False, **batch)
    assert torch.equal(got, plain(RAGGED, max_new_tokens=16, **batch))
    call = {"max_new_tokens": 16, "do_sample": True, "seed": 7}
    want = decoder("none").generate(PROMPT, **call)
    assert torch.equal(speculating.generate(PROMPT, **call), want)
    out = speculating.generate(PROMPT, max_new_tokens=30, do_sample=False, return_dict_in_generate=True)
    assert kind != "self" or out.stats.tokens_per_pass > 2.0


def test_one_shape_of_tree_at_a_time():
    with pytest.raises(ValueError, match="tree and expand exclude each other"):
        DraftModel(target(), tree=(2, 1), expand=2)
    chain = DraftModel(target(), expand=1)
    assert not chain.branching and chain.emits == {Kind.POINT} and chain.config.expand == 1
    text = decoder(chain, Fixed(4)).generate(PROMPT, max_new_tokens=20, do_sample=False)
    assert torch.equal(text, plain(max_new_tokens=20))
