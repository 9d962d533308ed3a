"""SMC on models: slots instead of copies, row groups, results, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from specdec import Decoder
from specdec.core.contracts import Caps, problems
from specdec.core.draft import Draft, Kind
from specdec.core.errors import ConfigError, IncompatibleError, UnsupportedOptionError
from specdec.core.interfaces import StatelessDrafter
from specdec.drafters import DraftModel, PromptLookup
from specdec.schedulers import Fixed
from specdec.targets.cached_lm import CachedLM
from specdec.targets.cached_session import CachedSession
from specdec.targets.hf import HFTarget
from specdec.verifiers import SMC
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, VOCAB, draft, llama, noisy, target

# Without the top-k of 50 that `generate` has by default: both laws have the whole vocabulary then.
CALL = {"do_sample": True, "top_k": 0, "max_new_tokens": 25, "seed": 4, "return_dict_in_generate": True}


def weighing(drafter=None, smc=None, depth=3, model=None):
    drafter = DraftModel(draft("noisy")) if drafter is None else drafter
    smc = SMC(4, threshold=0.9) if smc is None else smc
    return Decoder(target() if model is None else model, drafter, smc, Fixed(depth), allow="consistent")


# --- results --------------------------------------------------------------------------------------------


@pytest.mark.core
def test_the_result_holds_all_weighted_particles():
    out = weighing().generate(PROMPT, **CALL)
    (one,) = out.particles
    assert len(one.tokens) == len(one.weights) == 4 and sum(one.weights) == pytest.approx(1.0)
    assert out.sequences.shape == (1, PROMPT.shape[1] + 25)
    assert out.sequences[0, PROMPT.shape[1] :].tolist() == list(one.tokens[one.chosen])
    assert len(one.ess) == len(one.resampled) == out.stats.rounds and one.ess[0] == 4.0
    assert all(1.0 <= size <= 4.0 + 1e-9 for size in one.ess) and any(one.resampled)
    assert all(fired == (size < 3.6) for fired, size in zip(one.resampled[:-1], one.ess, strict=False))
    assert 1 <= one.survivors <= 4 and math.isfinite(one.log_z)
    assert out.guarantee.exactness.label == "consistent" and "4" in out.guarantee.notes[0]
    assert out.past_key_values is None or "cache" in out
    again = weighing().generate(PROMPT, **CALL)
    assert again.particles == out.particles and torch.equal(again.sequences, out.sequences)


def test_a_round_advances_by_one_more_than_is_drafted():
    stream = weighing(depth=4).stream(PROMPT, do_sample=True, top_k=0, max_new_tokens=1 + 5 * 4, seed=1)
    for event in stream:
        assert {len(outcome.tokens) for outcome in event.rows} == {5 if event.number else 1}
    assert stream.stats.acceptance_rate == 1.0
    ids = stream.result()
    assert ids.shape[1] == PROMPT.shape[1] + 21


def test_weights_are_the_two_models_own():
    """Log weights of particles that were never resampled, from plain passes over their texts."""
    other = draft("noisy")
    out = weighing(smc=SMC(4, threshold=0.0), depth=3).generate(PROMPT, **{**CALL, "max_new_tokens": 9})
    (one,) = out.particles
    drafted = [place for place in range(1, 9) if (place - 1) % 4 != 3]
    for text, weight in zip(one.tokens, one.log_weights, strict=True):
        ids, total = torch.cat([PROMPT, torch.tensor([text])], 1), 0.0
        with torch.no_grad():
            p = target()(ids).logits[0].double().log_softmax(-1)
            q = other(ids).logits[0].double().log_softmax(-1)
        for place in drafted:
            at = PROMPT.shape[1] + place - 1
            total += float(p[at, text[place]] - q[at, text[place]])
        assert weight == pytest.approx(total, abs=1e-4)


def test_scores_are_those_of_the_text_that_is_picked():
    out = weighing().generate(PROMPT, output_scores=True, output_logits=True, **CALL)
    assert len(out.scores) == len(out.logits) == 25
    with torch.no_grad():
        logits = target()(out.sequences).logits[0, PROMPT.shape[1] - 1 : -1]
    assert torch.allclose(torch.cat(out.logits), logits, atol=1e-4)


@pytest.mark.core
def test_a_ragged_batch_is_its_rows():
    smc = SMC(3, threshold=0.9)
    batch = weighing(smc=smc).generate(RAGGED, attention_mask=RAGGED_MASK, pad_token_id=0, **CALL)
    assert len(batch.particles) == 5
    for row in range(5):
        alone = weighing(smc=smc).generate(
            RAGGED[row : row + 1], attention_mask=RAGGED_MASK[row : row + 1], pad_token_id=0, **CALL
        )
        assert torch.equal(alone.sequences[0], batch.sequences[row])
        assert alone.particles[0].tokens == batch.particles[row].tokens


def test_several_samples_of_a_prompt_are_outputs_of_their_own():
    out = weighing().generate(PROMPT, num_return_sequences=3, **CALL)
    assert out.sequences.shape[0] == len(out.particles) == 3
    assert len({str(one.tokens) for one in out.particles}) == 3
    one = weighing().generate(PROMPT, **CALL)
    assert torch.equal(out.sequences[0], one.sequences[0])


def test_texts_end_at_end_tokens_and_live_again_by_resampling():
    model = llama(0, eos_token_id=11)
    seen = set()
    for seed in range(4):
        out = weighing(DraftModel(noisy(model)), SMC(6, threshold=0.95), model=model).generate(
            PROMPT, **{**CALL, "seed": seed, "max_new_tokens": 30, "eos_token_id": [11, 12, 13, 14], "pad_token_id": 0}
        )
        for text in out.particles[0].tokens:
            ends = [place for place, token in enumerate(text) if token in (11, 12, 13, 14)]
            assert ends in ([], [len(text) - 1]) and (ends or len(text) == 30)
            seen.add(bool(ends))
    assert seen == {True, False}


class Unigram(StatelessDrafter):
    """Any IID drafter may propose: here, the same law for every token."""

    name = "unigram"
    emits = frozenset({Kind.IID})

    def propose(self, row, budget, rng, context):
        depth = min(budget.depth, budget.nodes)
        if not depth:
            return Draft.empty()
        q = torch.ones(depth, context.vocab_size, dtype=torch.float64) / context.vocab_size
        return Draft.sampled(rng.categorical(q), q)


def test_any_iid_drafter_proposes_and_point_drafters_are_followed():
    out = weighing(Unigram()).generate(PROMPT, **CALL)
    assert out.stats.acceptance_rate == 1.0 and any(out.particles[0].resampled)
    out = weighing(PromptLookup()).generate(PROMPT, **CALL)
    assert out.particles[0].log_weights == (0.0,) * 4 and out.particles[0].log_z == 0.0


def test_top_k_of_the_target_is_never_left():
    out = weighing().generate(PROMPT, **{**CALL, "top_k": 3})
    for text in out.particles[0].tokens:
        ids = torch.cat([PROMPT, torch.tensor([text])], 1)
        with torch.no_grad():
            ranks = target()(ids).logits[0, PROMPT.shape[1] - 1 : -1].topk(3).indices
        assert all(token in row for token, row in zip(text, ranks.tolist(), strict=True))


# --- slots ----------------------------------------------------------------------------------------------


def sessions(decoder, prompt, tokens, monkeypatch, **call):
    """The slot sessions of a generation, the target's first, after it has ended; and what resampling did to them."""
    opened, moved = [], []
    original, follow = CachedLM.open, CachedSession.follow

    def watched(self, *args, **kwargs):
        session = original(self, *args, **kwargs)
        opened.append(session)
        return session

    def watched_follow(self, sources):
        before = [(layer.keys.data_ptr(), layer.keys.shape) for layer in self.cache.layers]
        follow(self, sources)
        assert before == [(layer.keys.data_ptr(), layer.keys.shape) for layer in self.cache.layers]
        moved.append(self)

    monkeypatch.setattr(CachedLM, "open", watched)
    monkeypatch.setattr(CachedSession, "follow", watched_follow)
    sizes = []
    for _ in decoder.stream(prompt, do_sample=True, max_new_tokens=tokens, seed=2, **call):
        sizes.append([(session.nbytes, [layer.keys.shape for layer in session.cache.layers]) for session in opened])
    return opened, moved, sizes


@pytest.mark.core
def test_particles_share_their_prompt_and_nothing_is_copied(monkeypatch):
    """Eight particles of a prompt of 1,000 tokens: at most 1.3 times one row's cache plus their own tokens."""
    length, tokens, particles = 1000, 40, 8
    model = llama(0, max_position_embeddings=2048)
    prompt = torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(0))
    decoder = weighing(DraftModel(noisy(model)), SMC(particles, threshold=0.9), depth=3, model=model)
    opened, moved, sizes = sessions(decoder, prompt, tokens, monkeypatch)
    assert len(opened) == 2 and {id(session) for session in moved} == {id(session) for session in opened}
    allowed = 1.3 * (length + tokens) + particles * tokens
    for session in opened:
        for layer in session.cache.layers:
            assert layer.keys.shape[0] == 1  # one batch row for all particles
            assert layer.keys.shape[2] <= allowed
    token = sum(2 * layer.keys[:, :, :1].nbytes for layer in opened[0].cache.layers)
    assert max(size[0][0] for size in sizes) <= allowed * token


def test_shared_history_is_stored_once():
    decoder = weighing(Unigram(), SMC(8, threshold=1.0), depth=2)
    used = []
    stream = decoder.stream(PROMPT, do_sample=True, max_new_tokens=60, seed=2)
    for _ in stream:
        pool = stream._generation.session.lm.map.pools[0]
        held = {slot for row in stream._generation.session.lm.map.rows for slot in row.slots}
        assert pool.used >= len(held)
        used.append(pool.used)
    assert max(used) < 7 + 8 * 60 / 2  # resampling keeps lineages together


def test_keys_after_resampling_are_those_of_a_fresh_pass():
    stream = weighing(smc=SMC(4, threshold=1.0)).stream(PROMPT, do_sample=True, max_new_tokens=24, seed=6)
    checked = 0
    for event in stream:
        session = stream._generation.session
        rows = [row for row in stream._generation.rows if not row.done]
        if event.number % 2 == 0 or not rows:
            continue
        for row in rows:
            cache = session.lm.export(session._row[row.index])
            with torch.no_grad():
                fresh = target()(torch.tensor([row.tokens[:-1]]), use_cache=True)
            past = getattr(fresh, "past_key_values", None) or fresh.cache
            for mine, theirs in zip(cache.layers, past.layers, strict=True):
                assert torch.allclose(mine.keys, theirs.keys, atol=1e-4)
                assert torch.allclose(mine.values, theirs.values, atol=1e-4)
            checked += 1
    assert checked >= 8


# --- what is refused ------------------------------------------------------------------------------------


def test_parts_that_do_not_fit():
    with pytest.raises(IncompatibleError, match=r"verifier 'smc' is consistent .*allow=\"consistent\""):
        Decoder(target(), DraftModel(draft("noisy")), SMC())
    with pytest.raises(IncompatibleError, match="drafter 'draft-model' drafts trees; verifier 'smc' judges chains"):
        Decoder(target(), DraftModel(draft("noisy"), tree=(2, 2)), SMC(), allow="consistent")
    with pytest.raises(IncompatibleError, match="verifier 'smc' is approximate"):
        Decoder(target(), DraftModel(draft("noisy")), SMC(power=2.0), allow="consistent")
    with pytest.raises((IncompatibleError, UnsupportedOptionError), match="fixed-width"):
        made = Decoder(target(), DraftModel(draft("noisy")), SMC(2), allow="consistent", exactness="fixed-width")
        made.generate(PROMPT, do_sample=True, max_new_tokens=5)


def test_a_target_whose_rows_cannot_go_on_from_each_other():
    class Alone(HFTarget):
        caps = Caps(why="its kernel takes no mask")

    found = problems(Alone(target()), DraftModel(draft("noisy")), SMC(2), SMC(2).exactness)
    assert any(
        "lets particles go on from each other's text" in text and "kernel takes no mask" in text for text in found
    )


def test_greedy_decoding_is_refused_before_anything_runs():
    decoder = weighing()
    with pytest.raises(IncompatibleError, match=r"verifier 'smc' weighs texts that are drawn.*do_sample=True"):
        decoder.generate(PROMPT, max_new_tokens=5, do_sample=False)
    assert decoder.generate(PROMPT, **CALL).sequences.shape[1] == 32


class Streamer:
    """Keeps what it is given."""

    def __init__(self):
        self.given = []

    def put(self, value):
        self.given += value.flatten().tolist()

    def end(self):
        self.given.append("end")


@pytest.mark.parametrize("particles", [1, 4])
def test_a_streamer_gets_the_text_that_is_picked(particles):
    streamer = Streamer()
    out = weighing(smc=SMC(particles)).generate(PROMPT, streamer=streamer, **CALL)
    assert streamer.given == [*out.sequences[0].tolist(), "end"]
    with pytest.raises(UnsupportedOptionError, match="streamer with 2 rows"):
        weighing().generate(PROMPT, streamer=Streamer(), num_return_sequences=2, **CALL)


@pytest.mark.parametrize(
    ("options", "field", "limit"),
    [
        ({"particles": 0}, "particles", "greater than or equal to 1"),
        ({"particles": 5000}, "particles", "less than or equal to 1024"),
        ({"threshold": 1.5}, "threshold", "less than or equal to 1"),
        ({"threshold": -0.1}, "threshold", "greater than or equal to 0"),
        ({"resampling": "best"}, "resampling", "systematic"),
        ({"power": 0.0}, "power", "greater than 0"),
    ],
    ids=str,
)
def test_options_out_of_range_name_the_field_and_the_range(options, field, limit):
    with pytest.raises(ValueError, match=field) as caught:
        SMC(**options)
    assert limit in str(caught.value)
    with pytest.raises(ConfigError, match=rf"verifier\.{field}: .*{limit}"):
        Decoder.from_config(
            {"drafter": "none", "verifier": {"type": "smc", **options}, "allow": "consistent"}, target=target()
        )


def test_depth_is_the_schedulers_and_is_held_to_its_range():
    with pytest.raises(ValueError, match=r"depth[\s\S]*greater than or equal to 0"):
        Fixed(-1)


def test_the_default_scheduler_does_not_measure_time():
    decoder = Decoder(target(), DraftModel(draft("noisy")), SMC(2), allow="consistent")
    texts = [decoder.generate(PROMPT, **CALL).sequences.tolist() for _ in range(2)]
    assert texts[0] == texts[1]
    torch.manual_seed(3)
    out = decoder.generate(PROMPT, **{**CALL, "seed": None, "max_new_tokens": 26})
    assert out.stats.accepted_lengths[5] > 0  # always the fixed depth


def test_one_particle_on_the_target_itself_is_plain_sampling():
    out = weighing(DraftModel(draft("self")), SMC(1)).generate(PROMPT, **CALL)
    assert out.particles[0].log_z == pytest.approx(0.0, abs=1e-3) and out.stats.acceptance_rate == 1.0
