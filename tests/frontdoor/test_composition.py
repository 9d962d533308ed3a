"""Composition: what does not fit is refused with every reason; configs build decoders and come back from them."""

from __future__ import annotations

import json
import types
from typing import Literal

import pytest
import torch
import yaml

from specdec import Decoder
from specdec.core.config import DecoderConfig, StrategyConfig
from specdec.core.contracts import Caps, Exactness, Needs
from specdec.core.draft import Draft, Kind
from specdec.core.errors import (
    ConfigError,
    IncompatibleError,
    TokenizerMismatchError,
    UnknownStrategyError,
    UnsupportedOptionError,
)
from specdec.core.interfaces import StatelessDrafter
from specdec.drafters import DraftModel, NoDraft, PromptLookup
from specdec.plugins.hookspecs import hookimpl
from specdec.plugins.manager import PluginManager, use
from specdec.plugins.strategy import PLUGIN_API, Strategy
from specdec.schedulers import Adaptive, Fixed
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import Block, Greedy, Token, Walk
from tests.frontdoor.models import (
    LETTERS,
    PROMPT,
    cyclic,
    decoder,
    draft,
    encode,
    llama,
    markov,
    noisy,
    plain,
    target,
    tokenizer,
)


class Demanding(StatelessDrafter):
    """Wants what nobody has."""

    name = "demanding"
    emits = frozenset({Kind.NO_REPLACE, Kind.IID})
    branching = True
    needs = Needs(features=("layer:99", "soul"), shared=("lm_head", "wings"))

    def propose(self, row, budget, rng, context):
        return Draft.empty()

    def problems(self, target, tokenizer=None):
        return ["drafter 'demanding' is in a bad mood"]


@pytest.mark.core
def test_all_reasons_are_given_at_once():
    class Weak(Walk):
        name, exactness, bias_note, branching = "weak", Exactness.APPROXIMATE, "it guesses", False

    with pytest.raises(IncompatibleError) as caught:
        Decoder(target(), Demanding(), Weak())
    found = caught.value.problems
    for word in ("IID, NO_REPLACE", "trees", "layer:99, soul", "wings", 'allow="approximate"', "bad mood"):
        assert any(word in problem for problem in found), word
    assert len(found) == 6 and all(problem in str(caught.value) for problem in found)
    assert isinstance(caught.value, ValueError)
    assert "lm_head" not in str(caught.value)


def test_what_the_target_cannot_do_is_a_reason():
    class Limited(TabularTarget):
        def __init__(self):
            super().__init__(lambda prefix: [1, 1], 2)
            self.caps = Caps(trees=False, rollback=False, why="it only counts")

    class Tree(StatelessDrafter):
        name, branching = "tree", True

        def propose(self, row, budget, rng, context):
            return Draft.empty()

    with pytest.raises(IncompatibleError) as caught:
        Decoder(Limited(), Tree())
    assert sum("it only counts" in problem for problem in caught.value.problems) == 2
    Decoder(Limited(), NoDraft())  # plain decoding rejects nothing


def test_allow_names_the_weakest_law():
    class Weak(Walk):
        name, exactness, bias_note = "weak", Exactness.APPROXIMATE, "it guesses"

    speculating = Decoder(target(), PromptLookup(), Weak(), allow="approximate")
    out = speculating.generate(PROMPT, max_new_tokens=4, do_sample=True, seed=1, return_dict_in_generate=True)
    assert out.guarantee.exactness is Exactness.APPROXIMATE and "it guesses" in str(out.guarantee)
    for allow in ("consistent", "exact-sampling"):
        with pytest.raises(IncompatibleError, match="approximate"):
            Decoder(target(), PromptLookup(), Weak(), allow=allow)
    with pytest.raises(ValueError, match=r"(?i)nearly.*approximate"):
        Decoder(target(), PromptLookup(), allow="nearly")


def test_a_greedy_rule_cannot_sample():
    speculating = Decoder(target(), PromptLookup(), Greedy())
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=8, do_sample=False), plain(max_new_tokens=8))
    with pytest.raises(IncompatibleError, match="exact-greedy"):
        speculating.generate(PROMPT, max_new_tokens=8, do_sample=True)


def test_default_parts_follow_what_a_drafter_emits():
    def verifier(drafter):
        return type(Decoder(target(), drafter)._usual)

    assert verifier(PromptLookup()) is Walk
    assert verifier(DraftModel(draft("foreign"))) is Block


@pytest.mark.parametrize("options", [{"exactness": "reverify"}, {"exactness": "nonsense"}], ids=str)
def test_modes_that_do_not_exist_yet_are_refused(options):
    with pytest.raises(UnsupportedOptionError, match="algorithmic"):
        Decoder(target(), PromptLookup(), **options)


# --- configs --------------------------------------------------------------------------------------------

WHOLE = {
    "drafter": {"type": "prompt-lookup", "max_ngram": 4, "match": "first"},
    "verifier": "walk",
    "scheduler": {"type": "fixed", "depth": 7},
    "allow": None,
}


@pytest.mark.core
@pytest.mark.parametrize("form", ["dict", "yaml", "json", "config"])
def test_decoders_from_every_form_of_config(form, tmp_path):
    source = WHOLE
    if form == "yaml":
        source = tmp_path / "decoder.yaml"
        source.write_text(yaml.safe_dump(WHOLE))
    elif form == "json":
        source = str(tmp_path / "decoder.json")
        (tmp_path / "decoder.json").write_text(json.dumps(WHOLE))
    elif form == "config":
        source = DecoderConfig.model_validate(WHOLE)
    made = Decoder.from_config(source, target=target())
    assert isinstance(made.verifier, Walk)
    assert made.drafter.config.max_ngram == 4 and made.scheduler.config.depth == 7
    assert torch.equal(made.generate(PROMPT, max_new_tokens=9, do_sample=False), plain(max_new_tokens=9))
    again = Decoder.from_config(made.config, target=target())
    assert again.config == made.config
    assert DecoderConfig.model_validate_json(made.config.model_dump_json()) == made.config


@pytest.mark.parametrize(
    "parts",
    [
        (NoDraft(), None, None),
        (PromptLookup(max_tokens=3), Walk(), Adaptive(max_depth=4, margin=0.1)),
        (PromptLookup(), Token(), Fixed(2, 9)),
        (PromptLookup(), Greedy(), None),
        (PromptLookup(), Block(), None),
    ],
    ids=lambda parts: "+".join("default" if part is None else part.name for part in parts),
)
def test_configs_come_back(parts):
    config = Decoder(target(), *parts).config
    assert Decoder.from_config(config.model_dump(), target=target()).config == config
    assert config.drafter == parts[0].config
    assert config.verifier == (parts[1].config if parts[1] else None)
    assert config.scheduler == (parts[2].config if parts[2] else None)


def test_models_named_in_a_config(tmp_path):
    target().save_pretrained(tmp_path / "target")
    tokenizer().save_pretrained(tmp_path / "target")
    draft("foreign").save_pretrained(tmp_path / "draft")
    tokenizer().save_pretrained(tmp_path / "draft")
    config = {
        "target": str(tmp_path / "target"),
        "drafter": {"type": "draft-model", "model": str(tmp_path / "draft"), "temperature": 0.5, "top_k": 9},
    }
    made = Decoder.from_config(config)
    assert torch.equal(made.generate(PROMPT, max_new_tokens=9, do_sample=False), plain(max_new_tokens=9))
    assert made.config.drafter.model == str(tmp_path / "draft") and made.config.drafter.top_k == 9
    assert made.config.target.model == str(tmp_path / "target")
    assert Decoder.from_config(made.config).config == made.config
    named = {"model": str(tmp_path / "target"), "dtype": "float64"}
    again = Decoder.from_config({**config, "target": named})
    assert again.config.target.model_dump(exclude_defaults=True) == named and again.target.model.dtype == torch.float64
    assert again.tokenizer.get_vocab() == tokenizer().get_vocab() and Decoder(target(), NoDraft()).tokenizer is None
    # The tokenizer came with the target, so stop strings need no other.
    letter = tokenizer().decode(next(token for token in plain(max_new_tokens=9)[0, 9:].tolist() if token < 32))
    out = made.generate(PROMPT, max_new_tokens=9, do_sample=False, stop_strings=letter)
    expected = plain(max_new_tokens=9, stop_strings=letter, tokenizer=tokenizer())
    assert expected.shape[1] < 16 and torch.equal(out, expected)
    tokenizer(3).save_pretrained(tmp_path / "draft")
    with pytest.raises(TokenizerMismatchError, match="different tokenizers"):
        Decoder.from_config(config)


@pytest.mark.core
def test_wrong_configs():
    with pytest.raises(UnknownStrategyError, match="prompt-lookup"):
        Decoder.from_config({"drafter": "prompt-lokup"}, target=target())
    with pytest.raises(ConfigError, match=r"drafter.max_ngrams.*max_ngram"):
        Decoder.from_config({"drafter": {"type": "prompt-lookup", "max_ngrams": 3}}, target=target())
    with pytest.raises(ConfigError, match="required"):
        Decoder.from_config({}, target=target())
    with pytest.raises(IncompatibleError, match="names no target"):
        Decoder.from_config({"drafter": "none"})
    with pytest.raises(ConfigError, match="no such config file"):
        Decoder.from_config("nowhere.yaml", target=target())


def test_a_part_without_a_config_is_named():
    with pytest.raises(IncompatibleError, match="demand"):
        _ = Decoder(target(), type("D", (Demanding,), {
            "name": "demand", "emits": frozenset({Kind.POINT}), "needs": Needs(), "problems": lambda *a: [],
        })()).config  # fmt: skip


# --- vocabularies ---------------------------------------------------------------------------------------


def spelling(size=32):
    return markov([(index + 1) % 12 if index < 12 else 0 for index in range(size)])


@pytest.mark.core
@pytest.mark.parametrize("sizes", [(32, 40), (40, 32), (32, 32)], ids=str)
@pytest.mark.parametrize("sample", [False, True])
def test_padded_vocabularies(sizes, sample):
    assert len(LETTERS) == 32
    model, other = spelling(sizes[0]), spelling(sizes[1])
    drafting = DraftModel(other, tokenizer=tokenizer())
    speculating = decoder(drafting, Fixed(4), model)
    ids = encode("abcdefgh")
    if not sample:
        out = speculating.generate(ids, tokenizer=tokenizer(), max_new_tokens=14, do_sample=False,
                                   return_dict_in_generate=True)  # fmt: skip
        assert torch.equal(out.sequences, plain(ids, model, max_new_tokens=14))
        assert out.stats.acceptance_rate == 1.0
    else:
        out = speculating.generate(ids, max_new_tokens=60, do_sample=True, temperature=2.0, seed=3)
        assert out.max() < sizes[0]
        if sizes[0] > 32:
            assert out.max() >= 32  # also a token that the draft model does not have went through both caches


def test_different_tokenizers_are_refused():
    model = spelling()
    drafting = DraftModel(spelling(), tokenizer=tokenizer(rotated=3))
    speculating = decoder(drafting, model=model)  # composed without the target's tokenizer, so nothing is known
    with pytest.raises(TokenizerMismatchError, match=r"32 ids differ.*id 0 is 'a' and 'd'") as caught:
        speculating.generate(encode("abc"), tokenizer=tokenizer(), max_new_tokens=4)
    assert isinstance(caught.value, ValueError)
    assert "same tokenizer" in str(caught.value)


def test_added_tokens_are_no_difference():
    drafting = DraftModel(spelling(40), tokenizer=tokenizer(extra=4))
    out = decoder(drafting, model=spelling()).generate(
        encode("abc"), tokenizer=tokenizer(), max_new_tokens=4, do_sample=False
    )
    assert tokenizer().decode(out[0]) == "abcdefg"


def test_very_different_sizes_are_refused_when_composed():
    with pytest.raises(IncompatibleError, match="vocabulary of 64 and the draft model one of 2000"):
        Decoder(target(), DraftModel(llama(1, vocab=2000)))


def test_two_calls_with_different_tokenizers_do_not_disturb_each_other():
    speculating = decoder(DraftModel(spelling(), tokenizer=tokenizer()), model=spelling())
    ids = encode("abc")
    for _ in range(2):
        speculating.generate(ids, tokenizer=tokenizer(), max_new_tokens=3, do_sample=False)
        with pytest.raises(TokenizerMismatchError):
            speculating.generate(ids, tokenizer=tokenizer(5), max_new_tokens=3, do_sample=False)
    assert cyclic() is not None


# --- draft models of every kind -------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("limit", [8, 12, 20, 30])
def test_a_draft_model_with_a_shorter_context_steps_aside(limit):
    model = target()
    other = llama(0, max_position_embeddings=limit)
    other.load_state_dict(model.state_dict())
    for ids, mask in (
        (PROMPT, None),
        (torch.tensor([[0, 0, 0, 9], [5, 6, 7, 8]]), torch.tensor([[0, 0, 0, 1], [1] * 4])),
    ):
        call = {"max_new_tokens": 40, "attention_mask": mask}
        for scheduler in (Fixed(5), None):
            out = decoder(DraftModel(other), scheduler).generate(
                ids, do_sample=False, return_dict_in_generate=True, **call
            )
            assert torch.equal(out.sequences, plain(ids, **call))
            assert out.stats.accepted == out.stats.judged < 40 * len(ids)
            assert scheduler is None or (ids is PROMPT and limit == 8) or out.stats.accepted > 0
    out = decoder(DraftModel(other), Fixed(4)).generate(PROMPT, max_new_tokens=40, do_sample=True, seed=1)
    assert out.shape[1] == 47


def test_absolute_positions_of_a_draft_model_run_out():
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=20, bos_token_id=1, eos_token_id=None
        )
        other = transformers.GPT2LMHeadModel(config).eval()
    out = decoder(DraftModel(other), Fixed(5)).generate(PROMPT, max_new_tokens=40, do_sample=False)
    assert torch.equal(out, plain(max_new_tokens=40))


@pytest.mark.parametrize("sample", [False, True])
def test_quirks_of_a_draft_model_do_not_matter(sample):
    quirky = noisy(target())
    call = {"max_new_tokens": 24, "do_sample": sample, **({"seed": 4, "temperature": 0.8} if sample else {})}
    usual = decoder(DraftModel(quirky), Fixed(4)).generate(PROMPT, **call)
    quirky.generation_config.update(
        repetition_penalty=5.0, eos_token_id=9, max_length=9, num_beams=2, use_cache=False, do_sample=True
    )
    quirky.config.use_cache = False
    assert torch.equal(decoder(DraftModel(quirky), Fixed(4)).generate(PROMPT, **call), usual)
    quirky.train()
    quirky.requires_grad_(True)
    assert torch.equal(decoder(DraftModel(quirky), Fixed(4)).generate(PROMPT, **call), usual)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_draft_model_of_another_number_type(dtype):
    other = noisy(target(), 0.0).to(dtype)
    out = decoder(DraftModel(other), Fixed(4)).generate(
        PROMPT, max_new_tokens=30, do_sample=False, return_dict_in_generate=True
    )
    assert torch.equal(out.sequences, plain(max_new_tokens=30))
    assert out.stats.acceptance_rate > 0.5
    sampled = decoder(DraftModel(other), Fixed(4)).generate(
        PROMPT, max_new_tokens=30, do_sample=True, seed=1, return_dict_in_generate=True
    )
    assert sampled.stats.acceptance_rate > 0.8


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("sample", [False, True])
def test_a_draft_model_with_broken_logits_costs_acceptance_only(value, everywhere, sample):
    other = noisy(target(), 0.0)

    def breaking(module, inputs, output):
        output[..., slice(None) if everywhere else slice(5, 8)] = value

    other.lm_head.register_forward_hook(breaking)
    call = {"max_new_tokens": 20, "do_sample": sample, **({"seed": 4, "temperature": 0.7} if sample else {})}
    out = decoder(DraftModel(other), Fixed(4)).generate(PROMPT, **call)
    assert out.shape[1] == 27
    if not sample:
        assert torch.equal(out, plain(max_new_tokens=20))


def test_the_draft_model_may_be_the_target_object():
    out = decoder(DraftModel(target()), Fixed(4)).generate(
        PROMPT, max_new_tokens=60, do_sample=False, return_dict_in_generate=True
    )
    assert torch.equal(out.sequences, plain(max_new_tokens=60))
    assert out.stats.acceptance_rate == 1.0


class TableConfig(StrategyConfig):
    """Options of a target that a plugin brings."""

    type: Literal["table"] = "table"
    tokens: int = 2


def build_table(config):
    return TabularTarget(lambda prefix: [1.0] * config.tokens, config.tokens)


def test_a_target_of_a_plugin_is_built_by_it():
    plugin, here = types.ModuleType("with_target"), __name__
    strategy = Strategy("target", "table", f"{here}:TableConfig", f"{here}:build_table", api=PLUGIN_API)
    plugin.specdec_strategies = hookimpl(lambda: [strategy])
    with use(PluginManager.from_modules([plugin])):
        decoder = Decoder.from_config({"target": {"type": "table", "tokens": 5}, "drafter": "none"})
    assert isinstance(decoder.target, TabularTarget) and decoder.target.vocab_size == 5
    assert decoder.tokenizer is None
