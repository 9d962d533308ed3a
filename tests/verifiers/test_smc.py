"""SMC on tables: what its weights are worth, by enumeration of every random branch."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from specdec.analysis import chi_square, smc_error_bound, smc_speedup
from specdec.core.contracts import Exactness
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.drafters.none import NoDraft
from specdec.schedulers.fixed import Fixed
from specdec.testing.enumeration import enumerate_law, total_variation
from specdec.testing.harness import finish, generation_of
from specdec.testing.honest import TableDrafter
from specdec.testing.laws import HashTable
from specdec.testing.tabular import TabularTarget, sequence_law
from specdec.verifiers import SMC

P = HashTable(((3, 2), (1, 4), (2, 3), (4, 1), (1, 2)))
Q = HashTable(((1, 1), (3, 1), (1, 4), (2, 3), (5, 2)))
PROMPT = (1, 0)


def run(rng, smc, tokens, depth, *, p=P, q=Q, particles=2, style="iid", eos=(), prompts=(PROMPT,), sampling=None):
    """A generation that has ended: its particles by output, and the chosen texts."""
    drafter = NoDraft() if q is None else TableDrafter(q, style, (1,) * depth)
    generation = generation_of(
        TabularTarget(p, p.vocab_size), drafter, smc, Fixed(depth, 64), prompts, tokens, rng, eos=eos,
        particles=particles, sampling=sampling,
    )  # fmt: skip
    finish(generation)
    rows = generation.rows
    return generation.population.ensembles(rows), tuple(
        tuple(row.new_tokens) for row in generation.population.outputs(rows)
    )


def texts(law, width):
    """The law of the first `width` tokens."""
    found = Counter()
    for key, chance in law.items():
        found[key[:width]] += chance
    return dict(found)


def weighed(smc, tokens, depth, **options):
    """E of the unnormalised weight of every text."""

    def ended(rng):
        ((one,), _) = run(rng, smc, tokens, depth, **options)
        return tuple((text, math.exp(one.log_z) * share) for text, share in zip(one.tokens, one.weights, strict=True))

    law = Counter()
    for particles, chance in enumerate_law(ended).items():
        for text, weight in particles:
            law[text] += chance * weight
    return dict(law)


def certain(table, *tokens):
    """The table with `tokens` certain after the prompt, and the token after the next two as well: fewer branches."""
    table = table.opening(PROMPT, tokens[0])
    for drafted in range(2):
        table = table.opening((*PROMPT, tokens[0], drafted), tokens[-1])
    return table


# --- weights --------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("resampling", ["systematic", "stratified", "multinomial"])
@pytest.mark.parametrize("tokens", [4, 5])
def test_weights_are_right_on_average_and_their_mass_is_one(resampling, tokens):
    # Two rounds, the second one without or with a draft, and resampling between them.
    table = P.opening(PROMPT, 1) if tokens == 4 else certain(P, 1, 0)
    law = weighed(SMC(2, threshold=0.95, resampling=resampling), tokens, 1, p=table)
    assert total_variation(law, sequence_law(table, PROMPT, tokens)) < 1e-9
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9)  # E[Z] = 1


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_a_power_aims_at_whole_texts(power):
    smc = SMC(2, threshold=0.9, power=power)
    law = weighed(smc, 3, 1)
    plain = sequence_law(P, PROMPT, 3)
    assert law == pytest.approx({text: chance**power for text, chance in plain.items()}, abs=1e-9)
    assert smc.exactness is Exactness.APPROXIMATE and f"power {power:g}" in smc.bias_note


def test_a_power_draws_the_last_token_by_itself_and_weighs_what_it_leaves_out():
    # Without drafts every token is the target's own: the weight is what normalises each law.
    law = weighed(SMC(1, power=2.0), 3, 1, q=None, particles=1)
    assert law == pytest.approx({text: chance**2 for text, chance in sequence_law(P, PROMPT, 3).items()}, abs=1e-9)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (HashTable(((1, 2, 0), (0, 1, 3))), HashTable(((2, 0, 1), (1, 1, 1)))),
        (HashTable(((1, 2, 1),)), HashTable(((1, 0, 0), (0, 1, 0)))),
        (HashTable(((0, 1, 0), (1, 0, 2))), HashTable(((1, 0, 1), (0, 1, 0)))),
    ],
    ids=["overlapping", "one-hot q", "disjoint"],
)
def test_supports_may_differ(p, q):
    table = p.opening(PROMPT, 0 if p((0,))[0] else 1)
    law = weighed(SMC(2, threshold=0.9), 3, 1, p=table, q=q)
    assert total_variation(law, sequence_law(table, PROMPT, 3)) < 1e-9


def test_an_end_token_is_absorbing():
    table = HashTable(((3, 2, 1), (1, 4, 2), (2, 3, 2))).opening(PROMPT, 1)
    q = HashTable(((1, 1, 3), (2, 1, 2)))
    law = weighed(SMC(2, threshold=0.9), 3, 1, p=table, q=q, eos=(2,))
    assert total_variation(law, sequence_law(table, PROMPT, 3, eos=(2,))) < 1e-9
    (one,), _ = run(TorchRng(3), SMC(8), 12, 2, p=table, q=q, eos=(2,), particles=8)
    assert any(text[-1] == 2 and len(text) < 12 for text in one.tokens)
    assert all(2 not in text[:-1] for text in one.tokens)


def test_point_candidates_are_followed_at_weight_one():
    law = weighed(SMC(2), 3, 1, style="point")
    assert total_variation(law, sequence_law(P, PROMPT, 3)) < 1e-9
    (one,), _ = run(TorchRng(1), SMC(4), 12, 3, style="point", particles=4)
    assert one.log_weights == (0.0,) * 4 and not any(one.resampled)


def test_weights_are_float64_and_named_by_token():
    seen = []

    class Watched(SMC):
        def verify(self, forest, laws, rng):
            verdict = super().verify(forest, laws, rng)
            seen.append((verdict.log_weights, forest.depth))
            return verdict

    run(TorchRng(0), Watched(4), 9, 3, particles=4)
    assert all(weights.dtype == torch.float64 and weights.shape == (4, depth + 1) for weights, depth in seen)


# --- anchors --------------------------------------------------------------------------------------------


@pytest.mark.core
def test_a_perfect_draft_never_resamples_and_is_exact():
    (one,), _ = run(TorchRng(7), SMC(8, threshold=0.99), 30, 4, q=P, particles=8)
    assert one.ess == pytest.approx([8.0] * len(one.ess)) and not any(one.resampled)
    assert one.log_weights == pytest.approx([0.0] * 8) and one.log_z == pytest.approx(0.0) and one.survivors == 8
    picked = enumerate_law(lambda rng: run(rng, SMC(2), 4, 1, q=P, p=P.opening(PROMPT, 1))[1][0])
    assert total_variation(picked, sequence_law(P.opening(PROMPT, 1), PROMPT, 4)) < 1e-9


@pytest.mark.core
def test_without_drafts_it_is_plain_sampling():
    (one,), _ = run(TorchRng(7), SMC(8), 20, 0, particles=8)
    assert one.ess == (8.0,) * 20 and not any(one.resampled) and one.log_weights == (0.0,) * 8
    assert {len(text) for text in one.tokens} == {20}
    picked = enumerate_law(lambda rng: run(rng, SMC(2), 3, 0)[1][0])
    assert total_variation(picked, sequence_law(P, PROMPT, 3)) < 1e-9


def test_one_particle_is_the_draft_and_a_token_of_the_target():
    table = P.opening(PROMPT, 1)

    def step(prefix):  # first token of the target, then two drafted, then one of the target
        return (Q if len(prefix) - len(PROMPT) in (1, 2) else table)(prefix)

    picked = enumerate_law(lambda rng: run(rng, SMC(1), 4, 2, p=table, particles=1)[1][0])
    assert total_variation(picked, sequence_law(step, PROMPT, 4)) < 1e-9


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_every_particle_grows_by_one_more_than_is_drafted(depth):
    generation = generation_of(
        TabularTarget(P, 2), TableDrafter(Q, "iid", (1,) * depth), SMC(8), Fixed(depth), [PROMPT], 1 + 6 * (depth + 1),
        TorchRng(depth), particles=8,
    )  # fmt: skip
    lengths = []
    for event in generation.rounds():
        assert {len(outcome.tokens) for outcome in event.rows} == {1 if event.number == 0 else depth + 1}
        lengths.append({len(row.new_tokens) for row in generation.rows})
    assert lengths == [{1 + number * (depth + 1)} for number in range(7)]


def test_particles_are_alike():
    """No place among the particles is special: each has the same share of the same texts on average."""
    shares = [Counter(), Counter()]

    def ended(rng):
        ((one,), _) = run(rng, SMC(2, threshold=0.95), 4, 1, p=P.opening(PROMPT, 1))
        return tuple((one.tokens[i], math.exp(one.log_z) * one.weights[i]) for i in range(2))

    for particles, chance in enumerate_law(ended).items():
        for place, (text, weight) in enumerate(particles):
            shares[place][text] += chance * weight
    assert total_variation(shares[0], shares[1]) < 1e-9


# --- the text that is picked ----------------------------------------------------------------------------


@pytest.mark.parametrize("particles", [1, 2, 3, 4])
@pytest.mark.parametrize(("p", "q"), [((3, 1), (1, 3)), ((9, 1), (1, 1)), ((2, 3), (3, 2))], ids=str)
def test_bounds_on_the_error_of_one_block(particles, p, q):
    table, other = certain(HashTable((p,)), 1, 0), HashTable((q,))
    law = texts(
        enumerate_law(
            lambda rng: run(rng, SMC(particles, threshold=0.0), 3, 1, p=table, q=other, particles=particles)[1][0][1:2]
        ),
        1,
    )
    want = torch.tensor(p, dtype=torch.float64) / sum(p)
    proposal = torch.tensor(q, dtype=torch.float64) / sum(q)
    got = torch.tensor([law.get((token,), 0.0) for token in range(2)], dtype=torch.float64)
    divergence = float((want * (want / got).log()).sum())
    distance = float((want - got).abs().sum() / 2)
    excess = float((want * (want / proposal - 1).clamp(min=0)).sum())
    assert divergence <= math.log1p(float(chi_square(want, proposal)) / particles) + 1e-12
    assert distance <= float(smc_error_bound(want, proposal, particles)) + 1e-12
    assert distance <= excess / particles + 1e-12
    if particles == 1:
        assert got.tolist() == pytest.approx(proposal.tolist())  # nothing to weigh against: the draft's own law


def test_more_particles_come_closer():
    table, other = certain(HashTable(((9, 1),)), 1, 0), HashTable(((1, 1),))
    want = sequence_law(table, PROMPT, 3)
    distances = [
        total_variation(
            enumerate_law(lambda rng, n=n: run(rng, SMC(n), 3, 1, p=table, q=other, particles=n)[1][0]), want
        )
        for n in (1, 2, 3, 4)
    ]
    assert distances == sorted(distances, reverse=True) and distances[3] < distances[0] / 2


def test_the_pick_is_in_proportion_to_weight():
    counts, expected = [0] * 4, [0.0] * 4
    for seed in range(200):
        (one,), _ = run(TorchRng(seed), SMC(4, threshold=0.0), 4, 2, particles=4)
        counts[one.chosen] += 1
        expected = [mean + share for mean, share in zip(expected, one.weights, strict=True)]
    assert all(abs(count - mean) < 4 * math.sqrt(mean) for count, mean in zip(counts, expected, strict=True))
    assert one.tokens[one.chosen] == run(TorchRng(199), SMC(4, threshold=0.0), 4, 2, particles=4)[1][0]


# --- the round and the exercise of the text that specdec follows -----------------------------------------

PEAKED = (40, 25, 15, 8, 5, 3, 2, 2)


def block_ratios(seed, p, q, count=8, depth=2):
    """Block ratios of the particles after one round, and the effective sample size that they give."""
    table = HashTable((p,))
    (one,), _ = run(
        TorchRng(seed), SMC(count, threshold=0.0), depth + 2, depth, p=table, q=HashTable((q,)), particles=count
    )
    return [math.exp(value) for value in one.log_weights], one.ess[1]


def test_a_round_of_eight_particles_from_a_uniform_draft():
    p = [weight / 100 for weight in PEAKED]
    possible = {round(8 * a * 8 * b, 6) for a, b in itertools.product(p, p)}
    ratios, sizes = [], []
    for seed in range(100):
        found, size = block_ratios(seed, PEAKED, (1,) * 8)
        assert {round(ratio, 6) for ratio in found} <= possible
        ratios += found
        sizes.append(size)
    mean = sum(ratios) / len(ratios)
    second = 64 * sum(value * value for value in p) ** 2 - 1  # variance of a block's ratio under the draft
    assert abs(mean - 1.0) < 4 * math.sqrt(second / len(ratios))
    # ESS of eight independent ratios, by its own definition and other randomness.
    chance = torch.Generator().manual_seed(0)
    law = torch.tensor(p, dtype=torch.float64) * 8
    draws = law[torch.randint(8, (20000, 8, 2), generator=chance)].prod(-1)
    plain = draws.sum(-1) ** 2 / draws.square().sum(-1)
    error = float(plain.std()) / math.sqrt(len(sizes))
    assert abs(sum(sizes) / len(sizes) - float(plain.mean())) < 4 * error
    fired = sum(size < 4 for size in sizes) / len(sizes)
    share = float((plain < 4).double().mean())
    assert abs(fired - share) < 4 * math.sqrt(share * (1 - share) / len(sizes))


def test_when_the_resampler_first_fires():
    """It fires the more often the further the draft is, and the earlier the more peaked the target is."""

    def fires(p, delta):
        q = tuple(1000 * ((1 - delta) * weight / sum(p) + delta / 8) for weight in p)
        return sum(block_ratios(seed, p, q)[1] < 4 for seed in range(25))

    peaked, sharper = (
        [fires(PEAKED, d) for d in (0, 0.4, 1)],
        [fires((90, 4, 2, 1, 1, 1, 1, 1), d) for d in (0, 0.4, 1)],
    )
    assert peaked[0] == sharper[0] == 0
    assert peaked[0] <= peaked[1] < peaked[2]
    assert sharper[1] > peaked[1] and sharper[2] >= peaked[2]


def test_speed_follows_from_the_block_alone():
    assert float(smc_speedup(4, 0.1)) == pytest.approx(5 / 1.4)


# --- rows -----------------------------------------------------------------------------------------------


def test_outputs_of_a_batch_are_those_of_each_prompt_alone():
    prompts = ((1, 0), (0,), (1, 1, 0, 1))
    smc = SMC(4, threshold=0.9)
    together, chosen = run(TorchRng(5), smc, 11, 2, particles=4, prompts=prompts)
    assert len(together) == 3 and any(any(one.resampled) for one in together)
    for place, prompt in enumerate(prompts):
        (alone,), (text,) = run(TorchRng(5), smc, 11, 2, particles=4, prompts=[prompt])
        assert together[place] == alone and chosen[place] == text


def test_greedy_rows_have_one_text():
    # The front door refuses temperature 0; the rule itself still gives argmax where q can.
    (one,), _ = run(TorchRng(0), SMC(3), 5, 2, particles=3, sampling=Sampling(greedy=True))
    assert len(set(one.tokens)) == 1
