"""Configs: what they accept, how they travel through files, and how they answer mistakes."""

from __future__ import annotations

import json
import pickle
import sys
import types
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from specdec.core.config import DecoderConfig, DrafterField, StrategyConfig, TargetConfig, load_config
from specdec.core.errors import ConfigError, IncompatibleError, TokenizerMismatchError, UnknownStrategyError
from specdec.drafters.none_config import NoDraftConfig
from specdec.drafters.prompt_lookup_config import PromptLookupConfig
from specdec.plugins import Strategy, hookimpl
from specdec.plugins.manager import PluginManager, discover, use
from specdec.plugins.schema import decoder_schema, strategy_schema
from specdec.schedulers.fixed_config import FixedConfig

FULL = {
    "target": {"type": "hf", "model": "some/model", "dtype": "bfloat16"},
    "drafter": {"type": "prompt-lookup", "max_ngram": 4, "match": "first"},
    "verifier": "walk",
    "scheduler": {"type": "adaptive", "max_depth": 8},
    "exactness": "fixed-width",
    "allow": "exact-greedy",
    "compile": True,
}


class PairConfig(StrategyConfig):
    type: Literal["pair"] = Field(default="pair", description="Name of the strategy.")
    drafters: tuple[DrafterField, ...] = Field(description="Drafters in order.")


@pytest.fixture
def composites(monkeypatch):
    """A manager that knows a drafter made of drafters."""
    hooks = types.ModuleType("pairs")

    @hookimpl
    def specdec_strategies():
        return [Strategy("drafter", "pair", "pairs_config:PairConfig", "pairs_config:PairConfig", api=1)]

    hooks.specdec_strategies = specdec_strategies
    config = types.ModuleType("pairs_config")
    config.PairConfig = PairConfig
    monkeypatch.setitem(sys.modules, "pairs_config", config)
    manager = PluginManager()
    manager.register(hooks, dist="specdec-pairs", version="0.4")
    with use(manager):
        yield manager


def every_strategy() -> list[Strategy]:
    return [*PluginManager().registry]


@pytest.mark.parametrize("drafter", ["none", {"type": "none"}, NoDraftConfig()])
def test_a_field_takes_a_name_a_mapping_or_a_config(drafter):
    assert DecoderConfig.model_validate({"drafter": drafter}).drafter == NoDraftConfig()


def test_a_target_is_named_by_its_model():
    for target in ("some/model", {"model": "some/model"}, TargetConfig(model="some/model")):
        assert load_config({"drafter": "none", "target": target}).target == TargetConfig(model="some/model")


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
def test_round_trip_through_files(tmp_path, suffix):
    config = load_config(FULL)
    path = tmp_path / f"decoder{suffix}"
    if suffix == ".json":
        path.write_text(config.model_dump_json())
    else:
        path.write_text(yaml.safe_dump(config.model_dump()))
    assert load_config(path) == config == load_config(str(path))
    assert load_config(config) is config
    assert pickle.loads(pickle.dumps(config)) == config


def test_none_in_yaml_is_the_drafter_none(tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text("drafter: none\nverifier: null\n")
    assert load_config(path) == DecoderConfig.model_validate({"drafter": "none"})


@pytest.mark.parametrize("strategy", every_strategy(), ids=str)
def test_every_shipped_config_is_light_described_frozen_and_round_trips(strategy):
    config_class = strategy.load_config()
    assert all(field.description for field in config_class.model_fields.values())
    given = {"drafters": ["none", {"type": "prompt-lookup", "max_ngram": 2}]}
    required = {name: given.get(name, "x") for name, field in config_class.model_fields.items() if field.is_required()}
    config = config_class(**required)
    assert config_class.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(ValidationError):
        config.type = "other"
    with pytest.raises(ValidationError, match="extra option"):
        config_class(**required, no_such_option=1)


def test_every_option_of_a_decoder_is_described():
    assert all(field.description for field in DecoderConfig.model_fields.values())


MISTAKES = {
    "drafter.max_ngramm: extra option. Did you mean 'max_ngram'? The options are: max_ngram, min_ngram": {
        "drafter": {"type": "prompt-lookup", "max_ngramm": 3}
    },
    "drafter.seed: extra option. There are no options.": {"drafter": {"type": "none", "seed": 3}},
    "verifer: extra option. Did you mean 'verifier'?": {"drafter": "none", "verifer": "walk"},
    "drafter.max_ngram: Input should be greater than or equal to 1; found 0": {
        "drafter": {"type": "prompt-lookup", "max_ngram": 0}
    },
    "drafter: min_ngram is 5 and max_ngram is 2; expected min_ngram to be at most": {
        "drafter": {"type": "prompt-lookup", "min_ngram": 5, "max_ngram": 2}
    },
    "drafter.match: Input should be 'recent' or 'first'; found 'last'": {
        "drafter": {"type": "prompt-lookup", "match": "last"}
    },
    "drafter.model: this option is required": {"drafter": "draft-model"},
    "drafter: this option is required": {},
    "found None. Known drafters: draft-model, ": {"drafter": None},
    "Write 'none' to decode without guesses.": {"drafter": None},
    "drafter: expected the name of a drafter, a mapping with 'type', or a config; found a mapping": {
        "drafter": {"max_ngram": 2}
    },
    "scheduler: expected the name of a scheduler, a mapping with 'type', or a config; found 5": {
        "drafter": "none",
        "scheduler": 5,
    },
    "target.dtype: there is no dtype 'fp{8}'; expected one of auto, bfloat16": {
        "drafter": "none",
        "target": {"model": "m", "dtype": "fp{8}"},
    },
    "exactness: expected 'algorithmic', 'fixed-width' or a width such as 'fixed-width:8'": {
        "drafter": "none",
        "exactness": "bit",
    },
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_answered_with_its_path(message):
    with pytest.raises(ConfigError) as caught:
        load_config(MISTAKES[message])
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError) and not isinstance(caught.value, UnknownStrategyError)


def test_all_mistakes_are_listed_at_once_with_the_file(tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text("drafter: {type: prompt-lookup, max_ngram: 0, mach: first}\nscheduler: fixd\nallow: maybe\n")
    with pytest.raises(UnknownStrategyError) as caught:
        load_config(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: 4 problems"
    assert [line.strip().split(":")[0] for line in lines[1:]] == [
        "drafter.max_ngram",
        "drafter.mach",
        "scheduler",
        "allow",
    ]
    assert "Did you mean 'match'?" in lines[2] and "Did you mean 'fixed'?" in lines[3]


def test_unknown_strategies_keep_path_and_type():
    with pytest.raises(
        UnknownStrategyError, match=r"^drafter: unknown drafter 'promt-lookup'\. Did you mean 'prompt-lo"
    ):
        load_config({"drafter": {"type": "promt-lookup", "{x}": 1}})
    with pytest.raises(ValidationError, match=r"unknown drafter 'fixed'\. 'fixed' is a scheduler"):
        DecoderConfig(drafter=FixedConfig())
    with pytest.raises(ConfigError, match="unknown target 'vllm'"):
        load_config({"drafter": "none", "target": {"type": "vllm", "model": "m"}})


def test_a_config_that_borrows_a_name_is_refused():
    class Impostor(StrategyConfig):
        type: str = "none"

    with pytest.raises(ConfigError, match="Impostor says type 'none', but the drafter of that name takes NoDraftConf"):
        load_config({"drafter": Impostor()})


def test_a_strategy_config_alone_names_the_nearest_option():
    with pytest.raises(ValueError, match=r"max_ngramm\n.*Did you mean 'max_ngram'"):
        PromptLookupConfig(max_ngramm=3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.yaml", None, "there is no such config file"),
        ("a.yaml", "drafter: [none", "not valid YAML"),
        ("a.json", "{'drafter': 1}", "not valid JSON"),
        ("a.yaml", "", "expected a mapping with at least 'drafter'; found an empty file"),
        ("a.yaml", "none", "expected a mapping with at least 'drafter'; found a str"),
        ("a.yaml", "!!python/object/apply:os.getcwd []", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_config(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_composites_nest_with_paths_and_round_trip(composites):
    config = load_config({"drafter": {"type": "pair", "drafters": ["none", {"type": "prompt-lookup"}]}})
    assert config.drafter.drafters == (NoDraftConfig(), PromptLookupConfig())
    assert load_config(json.loads(config.model_dump_json())) == config
    with pytest.raises(ConfigError, match=r"drafter.drafters\[1\].mach: extra option. Did you mean 'match'"):
        load_config({"drafter": {"type": "pair", "drafters": ["none", {"type": "prompt-lookup", "mach": 1}]}})


def test_stamping_notes_the_versions_of_what_is_used(composites):
    plain = composites.stamp(load_config({"drafter": "none", "scheduler": "fixed"}))
    assert plain.plugin_versions == {} and plain.specdec_version
    inner = composites.stamp(load_config({"drafter": {"type": "pair", "drafters": ["none"]}}))
    assert inner.plugin_versions == {"specdec-pairs": "0.4"}
    assert load_config(json.loads(inner.model_dump_json())) == inner


def test_schema_is_the_tagged_union_of_what_is_installed(composites):
    schema = decoder_schema(composites.registry)
    assert "x-specdec-role" not in json.dumps(schema)
    union = schema["$defs"]["drafter"]["anyOf"][0]
    assert set(union["discriminator"]["mapping"]) == set(composites.registry.names("drafter"))
    by_name = schema["$defs"]["drafter"]["anyOf"][1]["enum"]  # those that need no option
    assert {"none", "prompt-lookup"} <= set(by_name) and not {"draft-model", "medusa", "pair"} & set(by_name)
    assert schema["properties"]["drafter"]["$ref"] == "#/$defs/drafter"
    assert schema["$defs"]["drafter.draft-model"]["required"] == ["model", "type"]
    references = {
        part["$ref"] for role in ("drafter", "verifier") for part in schema["$defs"][role]["anyOf"][0]["oneOf"]
    }
    assert all(reference.removeprefix("#/$defs/") in schema["$defs"] for reference in references)
    pair = strategy_schema(composites.registry.find("pair"), composites.registry)
    assert pair["properties"]["drafters"]["items"] == {"$ref": "#/$defs/drafter"}
    assert "drafter.none" in pair["$defs"]


def test_the_process_manager_is_what_configs_ask():
    assert discover().registry.get("drafter", "none").load_config() is NoDraftConfig


def test_incompatible_errors_list_every_problem_and_survive_pickling():
    one, two = IncompatibleError("alone"), TokenizerMismatchError(["first", "second"])
    assert str(one) == "alone" and one.problems == ("alone",)
    assert "first" in str(two) and "second" in str(two) and str(two).startswith("2 problems")
    copy = pickle.loads(pickle.dumps(two))
    assert type(copy) is TokenizerMismatchError and copy.problems == two.problems and str(copy) == str(two)


KEYS = st.sampled_from(["type", "drafter", "drafters", "target", "scheduler", "depth", "model", "required_plugins"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["none", "pair", "fixed", "prompt-lookup", "hf", "{a}", "x>=1"])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3) | st.integers(), inner),
    max_leaves=8,
)


@given(st.dictionaries(KEYS | st.integers(), TREES, max_size=4))
def test_whatever_a_file_holds_the_answer_is_a_config_or_a_config_error(data):
    try:
        config = load_config(data)
    except ConfigError as error:
        assert str(error)
    else:
        assert load_config(json.loads(config.model_dump_json())) == config
