"""Statistics count what happened: after stops, prefixes only, bonus tokens as said."""

from __future__ import annotations

import pytest
import torch

from specdec.core.draft import Draft
from specdec.schedulers import Fixed
from tests.frontdoor.models import DRAFTERS, PROMPT, RAGGED, RAGGED_MASK, Saying, decoder, oracle, plain

CALL = {"do_sample": False, "return_dict_in_generate": True}


@pytest.mark.core
def test_a_perfect_draft():
    texts = plain(max_new_tokens=61)
    out = decoder(oracle(texts), Fixed(5)).generate(PROMPT, max_new_tokens=61, **CALL)
    stats = out.stats
    # One token from the prompt, then ten rounds of five drafted tokens and the bonus token.
    assert (stats.rounds, stats.target_passes, stats.emitted) == (11, 11, 61)
    assert (stats.judged, stats.accepted, stats.acceptance_rate) == (50, 50, 1.0)
    assert stats.accepted_lengths == (1, 0, 0, 0, 0, 10)
    assert stats.accepted_by_depth == stats.judged_by_depth == (10,) * 5
    assert (stats.emitted - 1) / (stats.target_passes - 1) == 6.0
    assert stats.tokens_per_pass == 61 / 11 and stats.mean_accepted == 50 / 11


def test_a_hopeless_draft():
    texts = plain(max_new_tokens=31)
    out = decoder(oracle((texts + 1) % 64), Fixed(5)).generate(PROMPT, max_new_tokens=31, **CALL)
    assert out.stats.accepted == 0 and out.stats.acceptance_rate == 0.0
    assert out.stats.target_passes == out.stats.emitted == 31 and out.stats.tokens_per_pass == 1.0
    assert out.stats.accepted_lengths == (31,)


def test_plain_decoding():
    stats = decoder("none").generate(PROMPT, max_new_tokens=9, **CALL).stats
    assert (stats.judged, stats.accepted, stats.acceptance_rate, stats.tokens_per_pass) == (0, 0, 0.0, 1.0)
    assert stats.nodes_scored == 9


@pytest.mark.core
def test_drafted_tokens_are_those_that_were_proposed():
    texts, proposed = plain(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=20), []

    def say(row, budget):
        ahead = oracle(texts, 3).say(row, budget)[: 1 + (row.rounds + row.index) % 4]
        proposed.append(len(ahead[: budget.depth]))
        return ahead

    out = decoder(Saying(say), Fixed(4)).generate(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=20, **CALL)
    stats = out.stats
    assert stats.judged == sum(proposed) == sum(stats.judged_by_depth)
    assert stats.emitted == 100
    assert stats.nodes_scored == stats.target_passes + stats.judged
    assert 0 < stats.accepted < stats.judged
    assert stats.accepted == sum(stats.accepted_by_depth)
    assert stats.emitted == stats.accepted + stats.target_passes  # every pass ended with the target's own token
    assert all(kept <= tried for kept, tried in zip(stats.accepted_by_depth, stats.judged_by_depth, strict=False))


def test_tokens_after_the_first_wrong_one_are_not_accepted():
    texts = plain(max_new_tokens=20)

    def say(row, budget):
        ahead = oracle(texts).say(row, budget)
        return [(token + (place == 1)) % 64 for place, token in enumerate(ahead)]  # right, wrong, right, right

    stats = decoder(Saying(say), Fixed(4)).generate(PROMPT, max_new_tokens=17, **CALL).stats
    assert stats.accepted_lengths[1] == stats.accepted == sum(stats.accepted_lengths) - 1
    assert len(stats.accepted_by_depth) == 1


@pytest.mark.core
def test_tokens_after_the_end_are_not_accepted():
    free = plain(max_new_tokens=20)
    new = free[0, 7:].tolist()
    step = next(i for i in range(2, 6) if new[i] not in new[:i])
    out = decoder(oracle(free), Fixed(9)).generate(PROMPT, max_new_tokens=20, eos_token_id=new[step], **CALL)
    assert out.sequences.shape[1] == 7 + step + 1
    # One token from the prompt; the rest up to and with the end were drafted, and no bonus token follows an end.
    assert out.stats.emitted == step + 1
    assert out.stats.accepted == step == sum(out.stats.accepted_by_depth)
    assert out.stats.tokens_per_pass == (step + 1) / 2


def test_scratch_nodes_are_scored_and_not_judged():
    texts = plain(max_new_tokens=20)

    def say(row, budget):
        if budget.depth < 2:
            return []
        (ahead,) = oracle(texts).say(row, budget)[:1]
        return Draft.point([ahead, 1, 2], [-1, 0, 1], scratch=[1, 2]) if budget.depth >= 3 else []

    stats = decoder(Saying(say), Fixed(3)).generate(PROMPT, max_new_tokens=20, **CALL).stats
    drafts = stats.judged
    assert drafts > 5 and stats.accepted == drafts and stats.judged_by_depth == (drafts,)
    assert stats.nodes_scored == stats.target_passes + 3 * drafts


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_times_and_margins(drafter):
    stats = decoder(drafter).generate(PROMPT, max_new_tokens=20, **CALL).stats
    parts = stats.seconds_draft + stats.seconds_target + stats.seconds_verify
    assert 0 < stats.seconds_target < parts <= stats.seconds_total * 1.0001
    logits = plain(max_new_tokens=20, output_logits=True, return_dict_in_generate=True).logits
    margins = [float(a - b) for a, b in (step[0].topk(2).values for step in logits)]
    assert stats.smallest_margin == pytest.approx(min(margins), abs=1e-4)


def test_acceptance_of_a_prompt_is_the_same_whatever_ran_before_and_in_a_batch():
    speculating = decoder("noisy", Fixed(4))
    alone = [speculating.generate(RAGGED[row : row + 1], attention_mask=RAGGED_MASK[row : row + 1], max_new_tokens=20,
                                  **CALL).stats for row in range(5)]  # fmt: skip
    batch = speculating.generate(RAGGED, attention_mask=RAGGED_MASK, max_new_tokens=20, **CALL).stats
    assert batch.accepted == sum(stats.accepted for stats in alone)
    assert batch.judged == sum(stats.judged for stats in alone)
    assert batch.target_passes == sum(stats.target_passes for stats in alone)
    assert len({stats.accepted for stats in alone}) > 1


def test_statistics_of_a_stream_grow():
    stream = decoder("self", Fixed(3)).stream(PROMPT, max_new_tokens=20, do_sample=False)
    emitted = [(next(stream), stream.stats.emitted)[1] for _ in range(4)]
    assert emitted == [1, 5, 9, 13]
    assert torch.equal(stream.sequences, plain(max_new_tokens=13))
