"""Heads: what they borrow, which targets they fit, and that files are read and written whole or not at all."""

from __future__ import annotations

import copy
import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from specdec import Decoder
from specdec.core.errors import CheckpointError, IncompatibleError, ModelNotFoundError
from specdec.drafters import Medusa
from specdec.heads import MedusaHead, files, load_head
from specdec.heads.base import embedded, facts_of, public_name
from specdec.heads.config import HeadConfig, TargetFacts, checked_ids, tokenizer_fingerprint
from specdec.heads.eagle import EagleHead
from specdec.heads.trees import cartesian
from specdec.targets.hf import HFTarget
from tests.frontdoor.models import VOCAB, llama, target, tokenizer

IDS = [0, 3, 5, 17, 40, 63]


def head(**options):
    """A head with weights that are none of the initial ones."""
    made = MedusaHead.for_target(target(), **{"heads": 2, **options})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for weights in made.parameters():
            weights.normal_(std=0.3)
    return made


# --- what is borrowed


def test_borrowed_modules_are_neither_saved_nor_moved_nor_copied():
    made = head()
    assert set(made.state_dict()) == {"weight", "bias"} and len(list(made.modules())) == 1
    lm_head = made.borrowed.lm_head
    assert copy.deepcopy(made).borrowed.lm_head is lm_head
    made.to(torch.bfloat16)
    assert lm_head.weight.dtype == torch.float32 and made.dtype == torch.bfloat16


def test_a_head_without_its_targets_modules_says_so():
    loose = MedusaHead(head().config)
    with pytest.raises(RuntimeError, match="call bind"):
        loose.logits(torch.zeros(2, 32))
    loose.bind(None, None)
    with pytest.raises(RuntimeError, match="without the target's lm_head"):
        loose.logits(torch.zeros(2, 32))
    with pytest.raises(RuntimeError, match="without the target's embed_tokens"):
        loose.embed(torch.tensor([1]))


def test_logits_are_the_lm_heads_rows_with_their_bias():
    made = head(draft_ids=IDS)
    lm_head = nn.Linear(32, VOCAB)
    states = torch.randn(3, 2, 32)
    made.bind(None, lm_head)
    expected = lm_head(states)[..., IDS]
    assert torch.allclose(made.logits(states), expected, atol=1e-6)
    with torch.no_grad():
        lm_head.weight.add_(1.0)  # the cut follows the module it was cut from
    assert torch.allclose(made.logits(states), lm_head(states)[..., IDS], atol=1e-5)
    assert made.to_target(torch.tensor([[5, 0]])).tolist() == [[63, 0]]
    assert made.vocab_size == 6 and head().vocab_size == VOCAB


def test_a_served_head_leaves_the_users_alone():
    made = head().to(torch.bfloat16)
    lm_head = target().get_output_embeddings()
    served = made.serving({"lm_head": lm_head}, torch.device("cpu"), torch.float32)
    assert served.dtype == torch.float32 and made.dtype == torch.bfloat16
    assert torch.equal(served.weight, made.weight.float())
    again = made.serving({"lm_head": lm_head}, torch.device("cpu"), torch.float32)
    assert again is served  # what is compiled for it serves the next call, too
    with torch.no_grad():
        made.weight.add_(1.0)  # trained on
    later = made.serving({"lm_head": lm_head}, torch.device("cpu"), torch.float32)
    assert torch.equal(later.weight, made.weight.float())
    same = made.serving({}, torch.device("cpu"), torch.bfloat16)
    assert same.weight is made.weight and same.borrowed.lm_head is None
    assert made.borrowed.lm_head is lm_head  # bound when it was made, and still so


# --- draft vocabularies


@pytest.mark.parametrize(
    ("ids", "said"),
    [([], "at least one"), ([1, 1], "1 occurs twice"), ([-1, 2], "-1 is outside"), ([3, VOCAB], "64 is outside")],
)
def test_a_draft_vocabulary_is_a_set_of_the_targets_ids(ids, said):
    with pytest.raises(ValueError, match=said):
        checked_ids(ids, VOCAB)


def test_draft_ids_are_kept_in_order_and_counted():
    assert head(draft_ids=[9, 2, 5]).draft_ids.tolist() == [2, 5, 9]
    with pytest.raises(ValueError, match=r"3 draft ids, but the config's draft_vocab_size is 6"):
        MedusaHead(head(draft_ids=IDS).config, [1, 2, 3])


# --- fit


def test_facts():
    expected = (32, VOCAB, 2)
    for found in (facts_of(target()), facts_of(HFTarget(target()))):
        assert (found.hidden_size, found.vocab_size, found.layers) == expected


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"hidden_size": 48}, "a hidden size of 32, but T has 48"),
        ({"layers": 3}, "a number of layers of 2, but T has 3"),
        ({"vocab_size": 70}, "a vocabulary of 64, but T has 70"),
        ({"vocab_size": 63}, "a vocabulary of 64, but T has 63"),
    ],
)
def test_a_head_for_another_model_is_named(other, said):
    facts = {"name": "T", "hidden_size": 32, "vocab_size": VOCAB, "layers": 2}
    assert head().fit_problems(TargetFacts(**facts)) == []
    (problem,) = head(name="org/made").fit_problems(TargetFacts(**{**facts, **other}))
    advice = "use a head that was trained for this model"
    assert problem == f"the medusa head (made for org/made) expects {said}; {advice}"


def test_a_few_added_tokens_are_no_other_model():
    assert head().fit_problems(TargetFacts("T", 32, VOCAB + 2, 2)) == []


def test_every_mismatch_is_listed_when_a_decoder_is_composed():
    other = llama(0, layers=3, vocab=80)
    with pytest.raises(IncompatibleError) as caught:
        Decoder(other, Medusa(head()))
    text = str(caught.value)
    assert "layers of 2, but target 'hf' has 3" in text and "vocabulary of 64, but target 'hf' has 80" in text


def test_another_tokenizer_is_named():
    made = head(tokenizer=tokenizer_fingerprint(tokenizer()))
    assert made.config.tokenizer_problems(None) == made.config.tokenizer_problems(tokenizer()) == []
    (problem,) = made.config.tokenizer_problems(tokenizer(rotated=3))
    assert tokenizer_fingerprint(tokenizer(rotated=3)) in problem and "another token" in problem
    assert head().config.tokenizer_problems(tokenizer(rotated=3)) == []  # nothing is known
    assert Medusa(made).problems(HFTarget(target()), tokenizer(rotated=3)) == [problem]


def test_the_name_of_a_target_is_never_a_path(tmp_path):
    model = copy.copy(target())
    for found, expected in [("org/name", "org/name"), (str(tmp_path), "LlamaForCausalLM"), ("", "LlamaForCausalLM")]:
        model.config = copy.copy(target().config)
        model.config._name_or_path = found
        assert public_name(model) == expected


# --- files


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"draft_ids": IDS, "blocks": 2}, {"own_lm_head": True}], ids=str)
def test_a_saved_head_comes_back(tmp_path, dtype, options):
    made = head(**options).to(dtype)
    made.save(tmp_path / "head")
    again = load_head(tmp_path / "head")
    assert type(again) is MedusaHead and again.config == made.config and again.dtype == dtype and not again.training
    assert again.where == str(tmp_path / "head")
    ours, theirs = made.state_dict(), again.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours)
    assert all(weights.requires_grad for weights in again.parameters())
    assert sorted(entry.name for entry in (tmp_path / "head").iterdir()) == ["config.json", "model.safetensors"]
    again.save(tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "head" / name).read_bytes()


def test_shards_are_joined(tmp_path):
    made = head()
    made.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    for number, name in enumerate(sorted(weights)):
        save_file({name: weights[name]}, tmp_path / f"part{number}.safetensors")
    table = {name: f"part{number}.safetensors" for number, name in enumerate(sorted(weights))}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    assert torch.equal(load_head(tmp_path).weight, made.weight)
    whole = (tmp_path / "part1.safetensors").read_bytes()
    (tmp_path / "part1.safetensors").write_bytes(whole[:-5])
    with pytest.raises(CheckpointError, match=r"part1.safetensors \(\d+ bytes\) is not a whole safetensors file"):
        load_head(tmp_path)
    (tmp_path / "part1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"part1.safetensors is missing"):
        load_head(tmp_path)
    for shard in ("../a.safetensors", "/a.safetensors", "..\\a.safetensors", "c:a.safetensors", "..", ""):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": shard}}))
        with pytest.raises(CheckpointError, match="not a file of its folder, and nothing else is read"):
            load_head(tmp_path)


def damaged(tmp_path, **changes):
    """A saved head with tensors replaced (or removed, by None)."""
    head().save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.update({name: value for name, value in changes.items() if value is not None})
    kept = {name: value for name, value in weights.items() if name not in changes or changes[name] is not None}
    save_file(kept, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weight": torch.zeros(1, 2, 32, 31)}, r"weight has shape \[1, 2, 32, 31\], expected \[1, 2, 32, 32\]"),
        ({"bias": None}, "bias is missing"),
        ({"gate": torch.zeros(1)}, "gate is not known"),
        ({"bias": torch.zeros(1, 2, 32, dtype=torch.int64)}, "bias is torch.int64, expected torch.float32"),
        ({"bias": torch.zeros(1, 2, 32).to(torch.float8_e4m3fn)}, r"float8_e4m3fn, .*it is quantised.*the whole, unq"),
    ],
    ids=["shape", "missing", "unknown", "dtype", "quantised"],
)
def test_weights_that_are_not_the_heads_are_listed(tmp_path, changes, said):
    with pytest.raises(CheckpointError, match=said):
        load_head(damaged(tmp_path, **changes))


def test_draft_ids_in_a_file_are_checked(tmp_path):
    head(draft_ids=IDS).save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for ids, said in [([0, 3, 5, 17, 40, 64], "64 is outside"), ([3, 0, 5, 17, 40, 63], "ascending order")]:
        save_file({**weights, "draft_ids": torch.tensor(ids)}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=f"draft_ids: .*{said}"):
            load_head(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "hydra"}, "'kind' is 'hydra', expected one of medusa, eagle"),
        ({"kind": None}, "'kind' is None"),
        ({"kind": ["medusa"]}, "'kind' is"),
        ({"format_version": 2}, "format_version is 2, but this specdec reads 1"),
        ({"heads": 0}, "heads: Input should be greater"),
        ({"head": 3}, "head: Extra inputs"),
    ],
)
def test_a_config_that_is_no_heads_is_refused(tmp_path, change, said):
    head().save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=said) as caught:
        load_head(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "sharp"}, "its layers cannot be built: .*sharp"),
        ({"rope_parameters": {"rope_type": "bent"}}, "its layers cannot be built: .*bent"),
        ({"num_attention_heads": 10**6, "num_key_value_heads": None, "head_dim": 2}, "cannot be built|has shape"),
        # No memory is taken for what a config says.
        ({"target_vocab_size": 10**13, "draft_vocab_size": 10**12}, r"draft_ids has shape \[4\], expected"),
        ({"intermediate_size": 10**14}, r"has shape .* expected \[32, 100000000000000\]"),
    ],
)
def test_layers_that_cannot_be_built_are_named(tmp_path, change, said):
    EagleHead.for_target(target(), draft_ids=[1, 2, 3, 4]).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=said):
        load_head(tmp_path)


def test_a_head_of_another_kind_is_refused(tmp_path):
    head().save(tmp_path)
    with pytest.raises(CheckpointError, match="a head of kind 'medusa', expected 'eagle'"):
        load_head(tmp_path, kind="eagle")


def test_missing_files_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no config.json \(it holds nothing\)"):
        load_head(tmp_path)
    head().save(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match=r"no model.safetensors; medusa_lm_head.pt may run code when read"):
        load_head(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json cannot be read as JSON"):
        load_head(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="expected a mapping, found a list"):
        load_head(tmp_path)
    with pytest.raises(ModelNotFoundError, match="is a file; expected the folder"):
        load_head(tmp_path / "config.json")


def test_what_is_neither_folder_nor_hub_id_is_refused_before_a_hub_is_asked(tmp_path):
    with pytest.raises(ModelNotFoundError, match="neither an existing folder nor a hub id"):
        load_head(tmp_path / "nothing")
    with pytest.raises(ModelNotFoundError, match="only hub ids have them"):
        load_head(tmp_path, revision="main")


def test_a_hub_id_is_fetched_without_pickles(tmp_path, monkeypatch):
    import huggingface_hub

    head().save(tmp_path)
    calls = []

    def fetched(name, **options):
        calls.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    assert load_head("org/name", revision="v1").where == "org/name"
    assert calls == [("org/name", {"revision": "v1", "allow_patterns": ["*.json", "*.safetensors"]})]


def test_a_hub_that_cannot_be_reached_is_named():
    with pytest.raises(ModelNotFoundError, match="no head could be loaded from 'org/name'"):
        load_head("org/name")


@pytest.mark.parametrize("failing", ["weights", "sync", "text"])
def test_a_full_disk_leaves_the_earlier_save_whole(tmp_path, monkeypatch, failing):
    earlier = head()
    earlier.save(tmp_path)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*args, **kwargs):
        raise full

    import safetensors.torch

    if failing == "weights":
        monkeypatch.setattr(safetensors.torch, "save_file", fail)
    elif failing == "sync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(files.Path, "write_text", fail)
    with pytest.raises(CheckpointError, match=r"could not be saved .*No space left.*before is unchanged"):
        head(heads=3).save(tmp_path)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert torch.equal(load_head(tmp_path).weight, earlier.weight)


def test_a_config_says_what_it_is():
    config = HeadConfig(kind="x", target_hidden_size=3, target_vocab_size=4, target_layers=5)
    assert config.model_dump()["format_version"] == 1
    assert all(field.description for field in HeadConfig.model_fields.values())


@pytest.mark.parametrize("width", [8, 16])
def test_logits_of_states_cut_from_a_wider_pass_are_one_product(width):
    """By the strides of such states torch would multiply row by row, with a copy of the weights for each."""
    made = head().bind(target().get_input_embeddings(), target().get_output_embeddings())
    states = torch.randn(1, 16, target().config.hidden_size)[:, :width]

    class Named(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Named() as seen:
        logits = made.logits(states)
    assert "mm" in seen.names and "bmm" not in seen.names
    assert torch.allclose(logits, target().lm_head(states.clone()), atol=1e-5)


def test_a_head_may_be_shared_by_threads_and_targets():
    made, targets = head(), [target(), llama(3)]
    want = [made.serving(shared_of(model), torch.device("cpu"), torch.float64).borrowed.lm_head for model in targets]

    def use(which):
        return all(
            made.serving(shared_of(targets[which]), torch.device("cpu"), torch.float64).borrowed.lm_head is want[which]
            for _ in range(200)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, [0, 1] * 4))


def shared_of(model):
    return {"embed_tokens": model.get_input_embeddings(), "lm_head": model.get_output_embeddings()}


def test_a_save_leaves_nothing_of_an_earlier_one_that_would_be_read_first(tmp_path):
    first, second = head(), head()
    first.tree = cartesian((2, 1))
    first.save(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "old.safetensors"}}')
    second.save(tmp_path)
    again = load_head(tmp_path)
    assert again.tree is None and all(
        torch.equal(a, b) for a, b in zip(again.parameters(), second.parameters(), strict=True)
    )


def test_rows_of_an_embedding_are_those_that_it_puts_out():
    class Scaled(nn.Embedding):
        def forward(self, ids):
            return 3.0 * super().forward(ids)

    module = Scaled(10_000, 4)
    assert torch.equal(torch.cat([*embedded(module)]), 3.0 * module.weight)
