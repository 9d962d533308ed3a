"""What texts of strategies and points of the axes stand for."""

from __future__ import annotations

import pytest

from specdec.bench.candidates import candidates
from specdec.bench.setting import Setting, settings
from specdec.bench.strategies import Contender, contenders
from specdec.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "name", "kind", "argument"),
    [
        ("plain", "plain", "plain", ""),
        ("hf-prompt-lookup", "hf-prompt-lookup", "lookup", "10"),
        ("k3=hf-prompt-lookup:3", "k3", "lookup", "3"),
        ("hf-assisted:some/model", "hf-assisted:some/model", "assisted", "some/model"),
        ("peer=call:some/file.py:make", "peer", "call", "some/file.py:make"),
    ],
)
def test_other_decoders(text, name, kind, argument):
    found = Contender.parse(text)
    assert (found.name, found.kind, found.argument, found.config) == (name, kind, argument, None)


def test_drafters_in_the_short_form_keep_commas_and_colons():
    found = Contender.parse("both=merge:prompt-lookup,eagle2:a/folder")
    assert found.name == "both" and found.config is not None
    lookup, eagle = found.config.drafter.drafters
    assert (lookup.type, eagle.type, eagle.checkpoint) == ("prompt-lookup", "eagle2", "a/folder")
    assert Contender.parse("eagle2:run=3/best").config.drafter.checkpoint == "run=3/best"


def test_configs_in_braces_and_files(tmp_path):
    drafter = Contender.parse("n5={type: prompt-lookup, max_ngram: 5}")
    assert drafter.config.drafter.max_ngram == 5
    whole = Contender.parse("f={drafter: prompt-lookup, scheduler: {type: fixed, depth: 3}}")
    assert whole.config.scheduler.depth == 3
    path = tmp_path / "decoder.yaml"
    path.write_text("drafter: jacobi\nexactness: fixed-width\n")
    file = Contender.parse(f"file={path}")
    assert file.config.drafter.type == "jacobi"
    assert file.with_setting("algorithmic", False).exactness == "fixed-width"
    assert file.with_setting("fixed-width", True).exactness == "fixed-width"
    assert file.with_setting("fixed-width", True).compile


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("promt-lookup", "promt-lookup"),
        ("prompt-lookup:x", "takes neither a model nor a checkpoint"),
        ("hf-prompt-lookup:zero", "a number above 0"),
        ("hf-prompt-lookup:0", "a number above 0"),
        ("hf-assisted", "expected hf-assisted:MODEL"),
        ("call:file.py", "expected call:FILE:FUNCTION"),
        ("x={type: prompt-lookup, max_ngram: 0}", "drafter.max_ngram"),
        ("x={type: ", "--strategy"),
        ("none/such.yaml", "there is no such config file"),
        ("other=plain", "keeps its name"),
    ],
)
def test_a_wrong_strategy_is_named(text, cause):
    with pytest.raises(ConfigError, match=cause) as caught:
        contenders(["jacobi", text])
    assert f"--strategy {text}" in str(caught.value)


def test_plain_is_always_there_once_and_names_are_distinct():
    assert [one.name for one in contenders(["jacobi"])] == ["plain", "jacobi"]
    assert [one.name for one in contenders(["jacobi", "plain"])] == ["jacobi", "plain"]
    assert [one.kind for one in contenders()][:2] == ["plain", "lookup"]
    with pytest.raises(ConfigError, match="two strategies are named 'jacobi'"):
        contenders(["jacobi", "jacobi=prompt-lookup"])


def test_settings_are_all_points_of_the_axes():
    found = settings([1, 8, 1], [0.0, 0.7], ["float32", "bfloat16"], [False], ["algorithmic"])
    assert len(found) == len(set(found)) == 8
    assert [point.dtype for point in found] == ["float32"] * 4 + ["bfloat16"] * 4
    assert (
        str(Setting(8, 0.7, "float32", True, "fixed-width"))
        == "float32, batch 8, temperature 0.7, compiled, fixed-width"
    )
    with pytest.raises(ConfigError, match="batch size 0"):
        settings([0])
    with pytest.raises(ConfigError, match="exactness: expected 'algorithmic'"):
        settings(exactness=["nearly"])
    with pytest.raises(ConfigError, match="temperature -1"):
        settings(temperatures=[-1])


def test_candidates_have_the_wanted_guarantee_and_options_of_what_is_given():
    found = {one.name: one.config for one in candidates(["e=eagle2:folder"], exactness="fixed-width")}
    assert found["none"].drafter.type == "none" and "token-recycling" in found
    assert all(config.exactness == "fixed-width" and config.allow is None for config in found.values())
    assert found["e, nodes 24, depth 4"].drafter.nodes == 24
    assert found["merge of lookup and e"].drafter.drafters[1].checkpoint == "folder"
    chain = {one.name for one in candidates(["e=eagle:folder"], free=False)}
    assert chain == {"none", "e", "e, depth 4", "merge of lookup and e"}
    with pytest.raises(ConfigError, match="only strategies of specdec"):
        candidates(["hf-prompt-lookup:3"])
    with pytest.raises(ConfigError, match="exactness"):
        candidates(exactness="nearly")
