"""A small draft model: its size, what it begins as, and that its folder is like any other."""

from __future__ import annotations

import errno
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import Decoder, load_model
from specdec.core.errors import CheckpointError
from specdec.drafters import DraftModel
from specdec.heads.draft_model import new_draft_model, principal, save_draft_model
from specdec.schedulers import Fixed
from tests.frontdoor.models import LETTERS, PROMPT, VOCAB, cyclic, encode, plain, target, tokenizer

SIZES = {"hidden_size": 16, "layers": 2, "attention_heads": 2, "key_value_heads": 1}


def test_it_speaks_the_targets_tokens():
    model = new_draft_model(target(), **SIZES)
    config = model.config
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (VOCAB, 16, 64)
    assert (config.num_hidden_layers, config.max_position_embeddings) == (2, 512)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, None, 0)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    out = Decoder(target(), DraftModel(model), scheduler=Fixed(3)).generate(PROMPT, max_new_tokens=12, do_sample=False)
    assert torch.equal(out, plain(max_new_tokens=12))


def test_by_default_it_takes_15_megabytes_at_most_beside_smollm2():
    with torch.device("meta"):
        # As `new_draft_model` makes it by default.
        config = LlamaConfig(
            vocab_size=49152, hidden_size=128, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings=True,
        )  # fmt: skip
        named = LlamaForCausalLM(config).named_parameters()
        size = sum(weights.numel() for name, weights in named if name != "lm_head.weight")  # tied
    ours = new_draft_model(target()).config
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        assert getattr(ours, name) == getattr(config, name)
    assert size == 7_029_632 and 2 * size < 15e6


def test_its_embedding_keeps_the_most_of_how_alike_tokens_are():
    rows = torch.randn(50, 12, generator=torch.Generator().manual_seed(0)) @ torch.diag(torch.linspace(3, 0.1, 12))
    alike = rows @ rows.T
    errors = [float((alike - (cut := principal(rows, size)) @ cut.T).norm()) for size in (2, 6, 11, 12)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-3 * float(alike.norm())
    for seed in range(3):  # no other plane keeps more
        other, _ = torch.linalg.qr(torch.randn(12, 6, generator=torch.Generator().manual_seed(seed)))
        cut = rows @ other
        assert float((alike - cut @ cut.T).norm()) > errors[1]
    model = new_draft_model(target(), **SIZES)
    lm_head = target().get_output_embeddings().weight.detach()
    assert torch.allclose(model.get_input_embeddings().weight, principal(lm_head, 16), atol=1e-5)
    assert new_draft_model(target(), hidden_size=48, attention_heads=4).config.hidden_size == 48  # wider than it


def test_a_seed_makes_the_same_model_and_leaves_torchs_generator_alone():
    state = torch.random.get_rng_state()
    one, two, three = (new_draft_model(target(), seed=seed, **SIZES) for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    first, same, other = (model.model.layers[0].mlp.up_proj.weight for model in (one, two, three))
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_its_folder_is_one_that_anybody_loads(tmp_path):
    model = new_draft_model(cyclic(), **SIZES)
    save_draft_model(model, tmp_path / "draft", tokenizer())
    assert model.dtype == torch.float32  # the one in hand stays as it is
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {e.name for e in (tmp_path / "draft").iterdir()}
    assert all(w.dtype == torch.bfloat16 for w in load_file(tmp_path / "draft" / "model.safetensors").values())
    assert not [entry for entry in tmp_path.iterdir() if entry.name != "draft"]
    assert str(tmp_path) not in (tmp_path / "draft" / "config.json").read_text()
    again, words = load_model(tmp_path / "draft", dtype="float32")
    assert words.get_vocab() == tokenizer().get_vocab() and again.config.vocab_size == len(LETTERS)
    ids = encode("abcabc")
    assert torch.allclose(again(ids).logits, model(ids).logits, atol=0.1)
    made = Decoder.from_config(
        {"drafter": {"type": "draft-model", "model": str(tmp_path / "draft")}}, target=cyclic()
    ).generate(ids, max_new_tokens=9, do_sample=False)
    assert torch.equal(made, cyclic().generate(ids, max_new_tokens=9, do_sample=False))
    save_draft_model(again, tmp_path / "draft", words)  # over itself, after it was loaded from there
    assert "_name_or_path" not in json.loads((tmp_path / "draft" / "config.json").read_text())


def test_a_full_disk_leaves_the_earlier_save_whole(tmp_path, monkeypatch):
    model = new_draft_model(cyclic(), **SIZES)
    save_draft_model(model, tmp_path / "draft", tokenizer())
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "draft").iterdir()}

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    for part in (LlamaForCausalLM, type(tokenizer())):
        with monkeypatch.context() as patched:
            patched.setattr(part, "save_pretrained", fail)
            with pytest.raises(CheckpointError, match=r"No space left.*before is unchanged"):
                save_draft_model(new_draft_model(cyclic(), seed=3, **SIZES), tmp_path / "draft", tokenizer())
        assert {entry.name: entry.read_bytes() for entry in (tmp_path / "draft").iterdir()} == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["draft"]
