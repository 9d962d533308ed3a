"""What is not read is refused by name: other drafters, damaged files, weights and maps that cannot be right."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from specdec import Decoder
from specdec.core.errors import CheckpointError, IncompatibleError
from specdec.drafters import Eagle3, Medusa
from specdec.heads import load_head
from specdec.heads.base import facts_of
from specdec.heads.config import TargetFacts
from specdec.heads.formats import FORMATS, read_published
from tests.frontdoor.models import llama
from tests.heads.formats import dialects
from tests.heads.formats.target import DRAFT, LAYERS, SIZE, VOCAB, D, target

pytestmark = pytest.mark.filterwarnings("ignore::specdec.core.errors.CheckpointWarning")

Z = torch.zeros(2, 2)
MLA = {"midlayer.self_attn.kv_a_proj_with_mqa.weight": Z, "fc.weight": Z}
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"]}
LM = {"model.embed_tokens.weight": Z, "model.layers.0.self_attn.q_proj.weight": Z}
OTHERS = {
    "dflash": ({"architectures": ["DFlashDraftModel"]}, {"fc.weight": Z}),
    "dflash-2": ({"architectures": ["DFlash2DraftModel"]}, {"fc.weight": Z}),
    "dspark-deepspec": ({"architectures": ["Qwen3DSparkModel"], "target_layer_ids": [1]}, {"fc.weight": Z}),
    "dspark-specforge": (
        {"architectures": ["DSparkDraftModel"], "dflash_config": {"projector_type": "dspark"}},
        {"fc.weight": Z},
    ),
    "dspark-speculators": ({"speculators_model_type": "dspark"}, {"fc.weight": Z}),
    "domino": ({"dflash_config": {"projector_type": "domino"}}, {"prefix_gru.weight": Z}),
    "xpress": ({"speculators_model_type": "xpress"}, {"fc.weight": Z}),
    "p-eagle": (EAGLE3, {"fc.weight": Z, "mask_hidden": Z, "midlayer.hidden_norm.weight": Z}),
    "hydra": ({"hydra_num_heads": 4}, {"0.0.linear.weight_in": Z}),
    "redrafter": ({"model_type": "recurrent_drafting_drafter"}, {"rnn.weight": Z}),
    "mlp": ({"speculators_model_type": "mlp"}, {"emb.0.weight": Z}),
    "mtp-speculators": ({"speculators_model_type": "mtp"}, {"mtp_layers.0.input_proj.weight": Z}),
    "eagle3-mla": (EAGLE3, MLA),
    "eagle3-gemma": ({**EAGLE3, "model_type": "gemma4_text"}, {"midlayer.hidden_norm.weight": Z}),
    "eagle3-plain": ({**EAGLE3, "eagle_config": {"use_aux_hidden_state": False}}, {"layers.0.mlp.up_proj.weight": Z}),
    "eagle3-parallel": (EAGLE3, {"fc.weight": Z, "parallel_draft_heads.0.lm_head.weight": Z}),
    "language-model": ({"num_hidden_layers": 2}, LM),
    "unknown": ({"hello": 1}, {"weight": Z}),
}
MTP = {
    "deepseek": ({"num_hidden_layers": 1}, {**LM, "model.layers.1.eh_proj.weight": Z}),
    "mimo": ({"num_hidden_layers": 1}, {**LM, "model.mtp_layers.0.input_proj.weight": Z}),
    "qwen3-next": ({"num_hidden_layers": 1}, {**LM, "mtp.fc.weight": Z}),
}


def folder_of(tmp_path, config, tensors):
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({name: value.clone() for name, value in tensors.items()}, tmp_path / "model.safetensors")
    return tmp_path


def changed(given, tmp_path, config=None, **tensors):
    """A dialect's folder with tensors (dots for double underscores) replaced, or removed by None."""
    stored = dict(given.tensors)
    for name, value in tensors.items():
        name = name.replace("__", ".")
        stored.pop(name, None)
        if value is not None:
            stored[name] = value
    return dataclasses.replace(given, config={**given.config, **(config or {})}, tensors=stored).write(tmp_path)


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_drafters_are_refused_by_what_they_are(name, tmp_path):
    with pytest.raises(CheckpointError) as caught:
        load_head(folder_of(tmp_path, *OTHERS[name]), target=facts_of(target()))
    assert FORMATS[name].title in str(caught.value) and FORMATS[name].why in str(caught.value)


@pytest.mark.parametrize("name", list(MTP))
def test_native_layers_are_refused_by_what_they_are(name, tmp_path):
    with pytest.raises(CheckpointError, match="multi-token-prediction layers of the target's own checkpoint"):
        Eagle3(folder_of(tmp_path, *MTP[name]))


def test_every_format_that_becomes_no_head_says_why():
    assert all(each.kind or each.why or each.name == "specdec" for each in FORMATS.values())
    refused = {name for name, each in FORMATS.items() if each.kind is None} - {"specdec", "mtp"}
    assert refused == set(OTHERS)


SMALL = torch.zeros(3)
OFFSETS = dialects.maps()["d2t"]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("safeailab", {"fc__weight": None}, "fc.weight is missing"),
        ("safeailab", {"midlayer__self_attn__o_proj__weight": None}, "o_proj.weight is missing"),
        ("safeailab", {"midlayer__gate__weight": SMALL}, "layers.0.gate.weight is not known"),
        ("safeailab", {"midlayer__hidden_norm__weight": SMALL}, r"hidden_norm.weight has shape \[3\], expected \[64\]"),
        ("safeailab", {"fc__weight": torch.zeros(D, 3 * D + 1)}, "193 values, which is no multiple of a state's 64"),
        ("safeailab", {"fc__weight": torch.zeros(D, 5 * D)}, "joins 5 states and no layer ids say which"),
        ("specforge", {"fc__weight": torch.zeros(D, 4 * D)}, "no multiple of a state's"),
        ("safeailab", {"d2t": OFFSETS + VOCAB}, r"row 0 to token 263, outside the vocabulary of 256"),
        ("safeailab", {"d2t": dialects.IDS}, "outside the vocabulary of 256; it has to hold offsets"),
        ("safeailab", {"d2t": OFFSETS - 1}, "to token 6, which t2d does not have: the maps disagree"),
        ("modelopt", {"d2t": OFFSETS.flip(0)}, "row 1 to token 132, not after the token 133"),
        ("safeailab", {"d2t": OFFSETS[:-1]}, r"d2t has shape \[63\], but the LM head has 64 rows"),
        ("safeailab", {"d2t": None, "t2d": None}, "64 rows for a vocabulary of 256, and no d2t or t2d"),
        ("safeailab", {"config": {"num_attention_heads": None}}, "num_attention_heads is None"),
        ("safeailab", {"config": {"num_attention_heads": 3}}, "do not divide into 3 heads"),
        ("safeailab", {"config": {"model_type": "qwen3_next"}}, "norms multiply by 1"),
        ("safeailab", {"config": {"partial_rotary_factor": 0.5}}, "only 0.5 of each head is rotated"),
        ("safeailab", {"config": {"hidden_act": "sharp"}}, "layers cannot be built: .*sharp"),
        ("specforge", {"config": {"eagle_config": {"layer_ids": [1, 1, 4]}}}, "expected different ids"),
        ("specforge", {"config": {"eagle_config": {"layer_ids": ["1"]}}}, "expected a list of layer numbers"),
        ("safeailab", {"config": {"quantization_config": {"bits": 4}}}, "is quantised .*quantization_config"),
        ("safeailab", {"midlayer__mlp__up_proj__weight_scale_inv": SMALL}, "quantised .*weight_scale_inv"),
        ("speculators", {"fc__weight": torch.zeros(D, 3 * D, dtype=torch.int8)}, "fc.weight is stored as I8"),
        ("speculators", {"config": {"transformer_layer_config": None}}, "transformer_layer_config is None"),
        ("speculators", {"module__model__fc__weight": torch.zeros(D, 3 * D)}, "are both fc.weight"),
        ("eagle_llama2", {"fc__weight": torch.zeros(D, D)}, "which cannot be used here"),
        ("eagle_llama3", {"embedding_layernorm__weight": SMALL}, "embedding_layernorm.weight, norms that specdec's"),
        ("eagle_llama3", {"norm__weight": SMALL}, "norm.weight is not known"),
        ("medusa_1", {"1__0__linear__weight": None}, "block 0 of head 1 is missing"),
        ("medusa_1", {"1__0__linear__bias": None}, "the bias of block 0 of head 1 is missing"),
        ("medusa_1", {"2__1__weight": None}, "the LM head of head 2 is missing"),
        ("medusa_1", {"2__1__weight": torch.zeros(9, D)}, r"head 2 has shape \[9, 64\], expected \[256, 64\]"),
        ("medusa_1", {"1__0__linear__weight": Z}, r"block 0 of head 1 has shape \[2, 2\], expected \[64, 64\]"),
        ("medusa_1", {"extra": Z}, "extra is not known"),
        ("medusa_vllm", {"token_map": dialects.IDS + VOCAB}, "token_map holds the id 452, outside"),
        ("medusa_vllm", {"token_map": dialects.IDS * 0}, "token_map holds an id twice"),
        ("medusa_vllm", {"token_map": dialects.IDS[1:]}, r"token_map has shape \[63\], but .* 64 rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_named(name, changes, said, tmp_path):
    folder = changed(dialects.DIALECTS[name](), tmp_path, **changes)
    with pytest.raises(CheckpointError, match=said):
        read_published(folder)


class Code:
    def __reduce__(self):
        return print, ("this was run",)


def test_a_pickle_with_code_is_not_read(tmp_path, capsys):
    given = dialects.safeailab()
    folder = given.write(tmp_path)
    torch.save({**given.tensors, "evil": Code()}, folder / given.file)
    with pytest.raises(CheckpointError, match="a pickle that holds more than tensors, and reading it could run code"):
        Eagle3(folder)
    assert "this was run" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["safeailab", "specforge"])
def test_a_file_that_is_cut_off_is_named(name, tmp_path):
    given = dialects.DIALECTS[name]()
    folder = given.write(tmp_path)
    whole = (folder / given.file).read_bytes()
    (folder / given.file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=rf"{given.file} \(\d+ bytes\) is not a whole"):
        read_published(folder)


def test_safetensors_go_before_pickles_and_one_file_is_chosen(tmp_path):
    given = dialects.specforge()
    folder = given.write(tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    (folder / "training_args.bin").write_bytes(b"not read")
    assert read_published(folder).kind == "eagle3"
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"x": Z}, folder / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"several files of weights and no index: a.safetensors, b.safetensors"):
        read_published(folder)
    for file in folder.glob("*.*s"):
        file.unlink()
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        read_published(folder)


def test_shards_stay_inside_the_folder_and_are_all_there(tmp_path):
    given = dialects.safeailab()
    (tmp_path / "config.json").write_text(json.dumps(given.config))
    names = list(given.tensors)
    torch.save({name: given.tensors[name] for name in names[:5]}, tmp_path / "a.bin")
    torch.save({name: given.tensors[name] for name in names[5:]}, tmp_path / "b.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    table = {name: "a.bin" if at < 5 else "b.bin" for at, name in enumerate(names)}
    index.write_text(json.dumps({"weight_map": table}))
    assert len(read_published(tmp_path).plan.weights) == len(names) - 1  # d2t and t2d have become draft_ids
    index.write_text(json.dumps({"weight_map": {**table, "gone": "b.bin"}}))
    with pytest.raises(CheckpointError, match="promises gone, which no shard holds"):
        read_published(tmp_path)
    index.write_text(json.dumps({"weight_map": {**table, "d2t": "../b.bin"}}))
    with pytest.raises(CheckpointError, match="not a file of its folder"):
        read_published(tmp_path)
    (tmp_path / "b.bin").unlink()
    index.write_text(json.dumps({"weight_map": table}))
    with pytest.raises(CheckpointError, match=r"b.bin is missing"):
        read_published(tmp_path)


# --- the target


def test_a_checkpoint_for_another_model_is_refused(tmp_path):
    folder = dialects.specforge().write(tmp_path)
    with pytest.raises(IncompatibleError, match="hidden size of 64, but target 'hf' has 32"):
        Decoder(llama(0, layers=LAYERS, vocab=VOCAB), Eagle3(folder))
    with pytest.raises(CheckpointError, match="a head of kind 'eagle3', expected 'medusa'"):
        Medusa(folder)


def test_layers_that_the_target_does_not_have_are_named(tmp_path):
    folder = changed(dialects.specforge(), tmp_path, {"eagle_config": {"layer_ids": [2, 4, 9]}})
    with pytest.raises(IncompatibleError, match="reads layer 8, but target 'hf' has 8 layers"):
        Decoder(target(), Eagle3(folder))


def test_default_layers_need_a_target_that_has_them(tmp_path):
    published = read_published(dialects.safeailab().write(tmp_path))
    with pytest.raises(IncompatibleError, match="names no layers of its target: a target of 6 layers has no three"):
        published.head(TargetFacts("T", D, VOCAB, 6))
    with pytest.raises(CheckpointError, match="does not say everything about its target"):
        load_head(tmp_path)
    with pytest.raises(RuntimeError, match="no head yet: compose it with a target"):
        _ = Eagle3(tmp_path).head


def test_a_head_of_another_width_needs_embeddings_of_its_own(tmp_path):
    given = dialects.specforge()
    # Its target's states are 96 wide, three of them.
    folder = changed(given, tmp_path / "a", {"target_hidden_size": 96}, fc__weight=torch.zeros(D, 3 * 96))
    assert read_published(folder).head(TargetFacts("T", 96, VOCAB, LAYERS)).config.width == D
    folder = changed(
        given, tmp_path / "b", {"target_hidden_size": 96}, fc__weight=torch.zeros(D, 288), embed_tokens__weight=None
    )
    with pytest.raises(CheckpointError, match="cannot use embeddings and LM head of a target of width 96"):
        read_published(folder)


@pytest.mark.parametrize("rows", [VOCAB - 6, VOCAB, VOCAB + 6])
def test_padded_vocabularies_and_added_tokens_fit(rows, tmp_path):
    given = dialects.specforge()
    members = torch.zeros(rows, dtype=torch.uint8).index_fill(0, dialects.IDS, 1)
    folder = changed(given, tmp_path, {"vocab_size": rows}, t2d=members, embed_tokens__weight=torch.ones(rows, D))
    head = read_published(folder).head(facts_of(target()))
    assert head.fit_problems(facts_of(target())) == [] and torch.equal(head.draft_ids, dialects.IDS)
    assert head.embed_tokens.weight.shape == (VOCAB, D)
    assert bool(head.embed_tokens.weight[-1].any()) == (rows >= VOCAB)


def test_a_map_of_zeros_is_the_identity_or_the_first_ids(tmp_path):
    given, zeros = dialects.deepspec(), torch.zeros(VOCAB, dtype=torch.int64)
    folder = changed(given, tmp_path / "all", d2t=zeros, t2d=torch.ones(VOCAB, dtype=torch.bool))
    assert read_published(folder).head(facts_of(target())).draft_ids is None
    folder = changed(dialects.safeailab(), tmp_path / "first", d2t=zeros[:DRAFT], t2d=None)
    published = read_published(folder)
    assert published.head(facts_of(target())).draft_ids.tolist() == list(range(DRAFT))
    assert any("all zeros" in remark for remark in published.remarks)


def test_wrappers_prefixes_are_stripped_and_types_made_one(tmp_path):
    given = dialects.specforge()
    stored = {f"module._orig_mod.draft_model.{name}": value for name, value in given.tensors.items()}
    name = "module._orig_mod.draft_model.embed_tokens.weight"
    stored[name] = stored[name].to(torch.bfloat16)
    head = read_published(dataclasses.replace(given, tensors=stored).write(tmp_path)).head(facts_of(target()))
    assert {each.dtype for each in head.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10000.0}),
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
        ),
        (
            {"rope_theta": None, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
            {"rope_type": "default", "rope_theta": 1e6},
        ),
        (
            {"rope_theta": 150000.0, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "truncate": False}},
            {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": False},
        ),
    ],
)
def test_rotary_embeddings_in_all_spellings(said, expected, tmp_path):
    head = read_published(changed(dialects.specforge(), tmp_path, said)).head(facts_of(target()))
    assert head.config.rope_parameters == expected and head.config.head_dim == SIZE


def test_pickles_are_fetched_only_where_there_is_nothing_else(tmp_path, monkeypatch):
    import huggingface_hub

    folder, calls = dialects.safeailab().write(tmp_path), []

    def fetched(name, revision, allow_patterns):
        calls.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    assert Eagle3("org/name").config.checkpoint == "org/name"
    assert len(calls) == 2 and "*.bin" in calls[1] and not any("*.bin" in each for each in calls[0])
