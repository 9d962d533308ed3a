"""Typical acceptance: what it keeps, where it is exact, and the distances that the documentation gives."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from benchmarks import typical_law

from specdec import Decoder
from specdec.core.contracts import Exactness
from specdec.core.draft import Draft
from specdec.core.errors import ConfigError, IncompatibleError
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.drafters import DraftModel, PromptLookup
from specdec.schedulers import Fixed
from specdec.testing.harness import finish, generation_of
from specdec.testing.honest import TableDrafter
from specdec.testing.laws import HashTable
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Typical
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, Saying, draft, plain, target

DOCS = Path(__file__).resolve().parents[2] / "docs" / "approximate.md"


def kept(law, tokens, parents=None, **options):
    """How many of the drafted tokens one verdict keeps, and the token after them, on a table of one law."""
    table = HashTable((law,))
    draft = Draft.point(tokens, parents)
    saying = Saying(lambda row, budget: draft if len(row.tokens) == 2 else Draft.empty())
    saying.branching = True
    generation = generation_of(
        TabularTarget(table, len(law)), saying, Typical(**options), Fixed(8, 64), [(0,)], 10, TorchRng(1)
    )
    events = generation.rounds()
    next(events)
    return next(events).rows[0]


@pytest.mark.core
def test_the_defaults_are_medusas():
    config = Typical().config
    assert (config.epsilon, config.delta, config.bonus) == (0.09, 0.3, "draw")
    assert Typical.exactness is Exactness.APPROXIMATE and "docs/approximate.md" in Typical.bias_note


def threshold(law, epsilon, delta):
    """The criterion written out: min(epsilon, delta exp(-H)), H = -sum p log(p + 1e-5)."""
    p = torch.tensor(law, dtype=torch.float64) / sum(law)
    entropy = -(p * (p + 1e-5).log()).sum()
    return p, min(epsilon, float(delta * (-entropy).exp()))


@pytest.mark.core
@pytest.mark.parametrize("law", [(60, 20, 10, 6, 3, 1), (1, 1, 1, 1, 1, 1), (95, 1, 1, 1, 1, 1), (50, 50, 0, 0, 0, 0)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.3, 0.09), (0.0, 0.0), (0.9, 0.9)])
def test_a_token_is_kept_if_it_is_probable_enough(law, epsilon, delta):
    p, least = threshold(law, epsilon, delta)
    for token in range(6):
        outcome = kept(law, [token], epsilon=epsilon, delta=delta)
        assert outcome.accepted == int(p[token] > least), token


def test_what_is_kept_shrinks_as_the_thresholds_grow():
    law = (40, 25, 15, 10, 6, 4)
    for name in ("epsilon", "delta"):
        other = {"delta": 0.99} if name == "epsilon" else {"epsilon": 0.99}
        sets = [
            {token for token in range(6) if kept(law, [token], **{name: value}, **other).accepted}
            for value in (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9)
        ]
        assert all(high <= low for low, high in pairwise(sets)) and sets[0] == set(range(6)) and sets[-1] < sets[0]


def test_the_longest_path_is_kept_and_of_equal_ones_the_most_probable():
    law = (40, 30, 20, 10)
    # Two paths of depth 2 and one of depth 1, all tokens probable enough.
    outcome = kept(law, [3, 2, 0, 1, 1], parents=[-1, 0, -1, 2, -1])
    assert outcome.path == (3, 4)  # 0 then 1: the more probable one
    outcome = kept(law, [0, 3, 2], parents=[-1, -1, 1])
    assert outcome.path == (2, 3)  # 3 then 2: longer, though 0 alone is likelier
    outcome = kept((60, 38, 1, 1), [2, 0, 1], parents=[-1, 0, -1])
    assert outcome.path == (3,)  # the first token of the longer path is too improbable


def test_a_token_always_follows():
    for epsilon in (0.0, 0.9):
        outcome = kept((3, 2, 1, 0), [3], epsilon=epsilon, delta=0.9)
        assert outcome.accepted == 0 and len(outcome.tokens) == 1  # token 3 is impossible


def test_the_fast_bonus_is_the_most_probable_token():
    outcome = kept((5, 90, 5), [1, 1], bonus="argmax")
    assert outcome.tokens == (1, 1, 1)


@pytest.mark.core
@pytest.mark.parametrize("drafter", [PromptLookup, lambda: DraftModel(draft("noisy"))], ids=["lookup", "model"])
def test_at_temperature_0_it_is_argmax_decoding(drafter):
    decoder = Decoder(target(), drafter(), Typical(), Fixed(4), allow="approximate")
    assert torch.equal(decoder.generate(PROMPT, do_sample=False, max_new_tokens=40), plain(max_new_tokens=40))
    batch = decoder.generate(RAGGED, attention_mask=RAGGED_MASK, pad_token_id=0, do_sample=False, max_new_tokens=20)
    want = plain(RAGGED, attention_mask=RAGGED_MASK, pad_token_id=0, max_new_tokens=20)
    assert torch.equal(batch, want)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2), (3, 1)])
def test_at_temperature_0_trees_are_argmax_decoding_too(seed, shape):
    p, q = typical_law.model(seed), typical_law.model(seed + 50)
    generation = generation_of(
        TabularTarget(p, 3), TableDrafter(q, "point", shape), Typical(), Fixed(3, 64), [(1, 0), (2,)], 12,
        TorchRng(seed), sampling=Sampling(greedy=True),
    )  # fmt: skip
    finish(generation)
    for row in generation.rows:
        text = list(row.tokens[: row.prompt_length])
        while len(text) < len(row.tokens):
            law = p(tuple(text))
            text.append(law.index(max(law)))
        assert text == list(row.tokens)


def test_processors_see_their_own_paths():
    decoder = Decoder(target(), DraftModel(draft("noisy")), Typical(), Fixed(4), allow="approximate")
    out = decoder.generate(
        PROMPT, do_sample=True, max_new_tokens=30, seed=2, no_repeat_ngram_size=2, repetition_penalty=1.1
    )[0].tolist()
    assert len(set(pairwise(out))) == len(out) - 1


def test_it_has_to_be_allowed_and_says_so():
    with pytest.raises(IncompatibleError, match=r"verifier 'typical' is approximate .*allow=\"approximate\""):
        Decoder(target(), PromptLookup(), Typical())
    decoder = Decoder(target(), PromptLookup(), Typical(), allow="approximate")
    out = decoder.generate(PROMPT, do_sample=True, max_new_tokens=5, return_dict_in_generate=True)
    assert out.guarantee.exactness is Exactness.APPROXIMATE and Typical.bias_note in out.guarantee.notes


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"epsilon": 1.0}, "less than 1"), ({"delta": -0.1}, "greater than or equal to 0"), ({"bonus": "best"}, "argmax")],
    ids=str,
)
def test_options_out_of_range_name_the_field_and_the_range(options, limit):
    (field,) = options
    with pytest.raises(ConfigError, match=rf"verifier\.{field}: .*{limit}"):
        Decoder.from_config(
            {"drafter": "none", "verifier": {"type": "typical", **options}, "allow": "approximate"}, target=target()
        )


def test_distances_in_the_documentation_are_those_that_the_benchmark_counts():
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| (draw|argmax) \| ([\d.]+) \|(.*)\|$", DOCS.read_text(), re.M)
    assert len(rows) == len(typical_law.RULES) * len(typical_law.TEMPERATURES)
    for epsilon, delta, bonus, temperature, values in rows[1::5]:
        shown = dict(zip(typical_law.DRAFTS, map(float, values.split("|")), strict=True))
        for name in ("likely", "other"):
            rule = (float(epsilon), float(delta), bonus)
            found = [typical_law.distance(seed, rule, float(temperature), name) for seed in range(8)]
            assert sum(found) / len(found) == pytest.approx(shown[name], abs=6e-4)
