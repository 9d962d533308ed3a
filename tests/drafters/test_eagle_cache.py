"""The cache of an EAGLE head holds the true states of the text, and drafts are what the head says without a cache."""

from __future__ import annotations

import pytest
import torch

from specdec.core import host
from specdec.core.draft import Kind
from specdec.core.state import Budget
from specdec.drafters import Eagle
from specdec.schedulers import Fixed
from specdec.verifiers import SMC
from tests.drafters.eagles import BATCH, DRAFTERS, decoder, features, taught, with_head
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, plain, target


class Watched:
    """Keeps a drafter's sessions, and holds a head's last states against a run without a cache in some rounds."""

    def __init__(self, drafter, every=3):
        self.sessions, self.compared, self.kinds = [], 0, set()
        begin = drafter.begin

        def watched(context):
            session = begin(context)
            self.sessions.append(session)
            propose = session.propose

            def proposing(rows, budgets, rng):
                drafts = propose(rows, budgets, rng)
                for row, draft in zip(rows, drafts, strict=True):
                    self.kinds |= set(draft.kinds)
                    if len(draft) and row.rounds % every == every - 1:
                        self.compare(drafter.head, session, row)
                return drafts

            session.propose = proposing
            return session

        drafter.begin = watched

    def compare(self, head, session, row):
        first = session._first[row.index]
        assert session._session.length(session._place[row.index]) == len(row.tokens) - 1 - first
        text = torch.tensor([row.tokens])
        with torch.no_grad():
            known = head.fuse(features(target(), text, head.features))[:, first:-1]
            want = head(text[:, first + 1 :], known)
        assert torch.allclose(session._last[row.index], want[0, -1], atol=1e-4)
        self.compared += 1


CALLS = {
    "one": (PROMPT, {}),
    "ragged": (RAGGED, BATCH),
    "copies": (PROMPT, {"num_return_sequences": 3}),
}


@pytest.mark.core
@pytest.mark.parametrize("head", ["fresh", "taught"])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("prompts", CALLS)
def test_the_cache_holds_the_states_of_the_text(name, prompts, head):
    drafter = with_head(name, head)
    watched = Watched(drafter, every=1 if prompts == "one" else 3)
    ids, more = CALLS[prompts]
    decoder(drafter).generate(ids, max_new_tokens=20, do_sample=prompts == "copies", **more)
    assert watched.compared >= (2 if prompts == "one" else 5)


def test_resampled_particles_take_their_caches_along():
    drafter = with_head("eagle")
    watched, followed = Watched(drafter, every=1), []
    begin = drafter.begin

    def following(context):
        session = begin(context)
        follow = session.follow
        session.follow = lambda ancestors: followed.append(dict(ancestors)) or follow(ancestors)
        return session

    drafter.begin = following
    made = decoder(drafter, Fixed(3), verifier=SMC(particles=4, threshold=1.0), allow="consistent")
    made.generate(PROMPT, max_new_tokens=20, do_sample=True, seed=1)
    assert any(row != source for ancestors in followed for row, source in ancestors.items())
    assert watched.compared >= 8


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafts_are_those_of_the_head_run_from_the_start(name):
    # Whatever the cache does, a draft is what the head says of the text when it is run without a cache.
    drafter = with_head(name)
    watched = Watched(drafter)
    for event in decoder(drafter, Fixed(3, 8)).stream(RAGGED, max_new_tokens=12, do_sample=False, **BATCH):
        for outcome in event.rows:
            if not len(outcome.draft) or event.number % 4 != 3:
                continue
            text = list(outcome.row.tokens[: len(outcome.row.tokens) - len(outcome.tokens)])
            depths, head = outcome.draft.topology.depths, drafter.head
            for node, token in enumerate(outcome.drafted):
                path = [outcome.drafted[at - 1] for at in outcome.draft.topology.paths[node + 1]]
                logits = alone(head, text, path[:-1])
                best = head.to_target(logits.topk(min(4, len(logits)) if drafter.branching else 1).indices).tolist()
                assert token in best, f"round {event.number}, depth {depths[node + 1]}"
    assert len(watched.sessions) == 1


def alone(head, text, path):
    """Logits of the head after a text and some drafted tokens, without a cache."""
    ids = torch.tensor([text])
    with torch.no_grad():
        states = head.fuse(features(target(), ids, head.features))[:, : len(text) - 1]
        for step in range(len(path) + 1):
            tokens = torch.tensor([[*text[1:], *path[:step]]])
            out = head(tokens, states)
            states = torch.cat([states, out[:, -1:]], 1)
        return head.logits(out[0, -1])


def test_q_of_a_chain_is_the_heads_law():
    head = taught("eagle")
    for event in decoder(Eagle(head), Fixed(3)).stream(PROMPT, max_new_tokens=12, do_sample=True, top_k=7, seed=5):
        for outcome in event.rows:
            for node in range(len(outcome.draft)):
                text = list(outcome.row.tokens[: len(outcome.row.tokens) - len(outcome.tokens)])
                logits = alone(head, text, list(outcome.drafted[:node])).double()
                logits[logits < logits.topk(7).values[-1]] = -torch.inf
                assert set(outcome.draft.kinds) == {Kind.IID}
                assert torch.allclose(outcome.draft.q[node], logits.softmax(-1), atol=1e-5)


def test_a_later_turn_begins_after_the_states_that_are_missing():
    drafter = with_head("eagle2")
    speculating = decoder(drafter)
    first = speculating.generate(PROMPT, max_new_tokens=12, do_sample=False, return_dict_in_generate=True)
    longer = torch.cat([first.sequences, torch.tensor([[3, 4, 5]])], 1)
    want = plain(longer, max_new_tokens=20)
    name = "cache" if getattr(first, "cache", None) is not None else "past_key_values"
    watched = Watched(drafter)
    again = speculating.generate(
        longer, max_new_tokens=20, do_sample=False, return_dict_in_generate=True, **{name: first[name]}
    )
    assert torch.equal(again.sequences, want)
    assert watched.sessions[0]._first[0] > 0 and again.stats.judged > 0


def test_plain_rounds_between_drafts_are_made_up_for():
    class Now(Fixed):
        """Drafts in every third round."""

        def begin(self, context, drafts):
            session, count = super().begin(context, drafts), iter(range(1000))
            plan = session.plan
            session.plan = lambda rows: plan(rows) if next(count) % 3 == 2 else Budget(0, 0)
            return session

    for name in DRAFTERS:
        got = decoder(with_head(name), Now(4, 12)).generate(RAGGED, max_new_tokens=16, do_sample=False, **BATCH)
        assert torch.equal(got, plain(RAGGED, max_new_tokens=16, **BATCH))


def test_nothing_runs_before_something_is_drafted():
    drafter = with_head("eagle2")
    watched = Watched(drafter)
    decoder(drafter, Fixed(0)).generate(PROMPT, max_new_tokens=5, do_sample=False)
    assert watched.sessions[0]._session is None


def test_confidences_are_the_values_of_the_nodes():
    drafter = with_head("eagle2")
    watched = Watched(drafter)
    for event in decoder(drafter, Fixed(3, 8)).stream(PROMPT, max_new_tokens=10, do_sample=False):
        (outcome,) = event.rows
        if not len(outcome.draft):
            continue
        known = watched.sessions[0].confidences(outcome.row)
        assert len(known) == len(outcome.draft)
        text = list(outcome.row.tokens[: len(outcome.row.tokens) - len(outcome.tokens)])
        for node, path in enumerate(outcome.draft.topology.paths[1:]):
            tokens = [outcome.drafted[at - 1] for at in path]
            worth = 1.0
            for length, token in enumerate(tokens):
                worth *= float(alone(drafter.head, text, tokens[:length]).softmax(-1)[token])
            assert float(known[node]) == pytest.approx(worth, rel=1e-3)


def test_a_rows_draft_does_not_depend_on_the_batch():
    drafter = with_head("eagle2")
    together, each = {}, {}
    for event in decoder(drafter).stream(RAGGED, max_new_tokens=15, do_sample=False, **BATCH):
        for outcome in event.rows:
            together.setdefault(outcome.row.index, []).append((outcome.drafted, outcome.draft.parents))
    for row in range(len(RAGGED)):
        ids = RAGGED[row, RAGGED_MASK[row] == 1][None]
        for event in decoder(drafter).stream(ids, max_new_tokens=15, do_sample=False):
            for outcome in event.rows:
                each.setdefault(row, []).append((outcome.drafted, outcome.draft.parents))
    assert together == each


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_tree_is_read_once_and_a_chain_not_at_all(name, monkeypatch):
    drafter, reads = with_head(name), []
    read, begin = host.read, drafter.begin
    monkeypatch.setattr(host, "read", lambda *tensors: reads.append("read") or read(*tensors))

    def watched(context):
        session = begin(context)
        propose = session.propose
        session.propose = lambda rows, budgets, rng: reads.append("propose") or [
            *propose(rows, budgets, rng), *(reads.append("proposed") or [])
        ]  # fmt: skip
        return session

    drafter.begin = watched
    decoder(drafter).generate(RAGGED, max_new_tokens=8, do_sample=False, **BATCH)
    during = [reads[at + 1 : reads.index("proposed", at)] for at, what in enumerate(reads) if what == "propose"]
    most = 1 if drafter.branching else 0
    assert len(during) >= 3 and max(map(len, during)) == most
