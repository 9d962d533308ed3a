"""`specdec train`, on a tiny target saved with a tokenizer of its own."""

from __future__ import annotations

import json
import signal

import pytest
import torch

from specdec.heads import load_head
from specdec.heads.config import tokenizer_fingerprint
from specdec.heads.shards import Dialogue, ShardWriter
from specdec.heads.training.bar import Bar

WORDS = 24


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target's folder, and one of shards with its tokenizer's fingerprint."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("train")
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1", pad_token="w1")
    tokenizer.save_pretrained(root / "target")
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(root / "target")
    about = {"model": "tiny", "tokenizer": tokenizer_fingerprint(tokenizer), "vocab_size": WORDS, "settings": {}}
    torch.manual_seed(1)
    texts = torch.randint(WORDS, (40, 14)).tolist()
    dialogues = [Dialogue(i, "x", tuple(ids), ((4, 14),), greedy=True) for i, ids in enumerate(texts)]
    ShardWriter(root / "data", about).write(dialogues, {})
    return root / "target", root / "data"


def test_a_head_is_trained_stored_and_loaded(specdec, folders, tmp_path):
    target, data = folders
    (tmp_path / "recipe.yaml").write_text("steps: 9\nbatch_tokens: 64\nlr: 0.01\n")
    out = specdec(
        "train", "medusa", "--target", target, "--data", data, "--out", tmp_path / "head", "--steps", 3,
        "--recipe", tmp_path / "recipe.yaml", "--set", "depth=2", "--option", "heads=2", "--draft-vocab", 20,
        "--dtype", "float32", "--store", tmp_path / "store", "--name", "someone/tiny",
    )  # fmt: skip
    assert out.exit_code == 0, out.stderr
    assert "medusa, 3 steps" in out.stdout and "tokens_per_pass" in out.stdout
    assert "held out" in out.stderr and "weights" in out.stderr
    head = load_head(tmp_path / "head", kind="medusa")
    assert head.config.heads == 2 and head.vocab_size == 20 and head.config.target == "someone/tiny"
    told = json.loads((tmp_path / "head" / "training.json").read_text())
    assert told["recipe"]["lr"] == 0.01 and told["recipe"]["depth"] == 2 and told["steps"] == 3
    assert str(tmp_path) not in json.dumps(told) + (tmp_path / "head" / "config.json").read_text()
    again = specdec(
        "train", "medusa", "--target", target, "--data", data, "--out", tmp_path / "x", "--dtype", "float32",
        "--store", tmp_path / "store", "--store-only",
    )  # fmt: skip
    assert again.exit_code == 0 and "features of 560 tokens" in again.stdout and not (tmp_path / "x").exists()


def test_ctrl_c_ends_a_run_with_a_checkpoint_and_the_same_command_goes_on(specdec, folders, tmp_path, monkeypatch):
    target, data = folders
    command = ["train", "eagle", "--target", target, "--data", data, "--out", tmp_path / "head", "--steps", 6]
    command += ["--batch-tokens", 64, "--dtype", "float32"]

    def pressed(self, args, state, control, **_):
        if state.global_step == 2:
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Bar, "on_step_begin", pressed)
    out = specdec(*command)
    assert out.exit_code == 130 and signal.getsignal(signal.SIGINT) is handler
    assert "stopping after this step" in out.stderr and "--resume goes on from step 3" in out.stderr
    assert load_head(tmp_path / "head").kind == "eagle"  # what there is can be used
    monkeypatch.undo()
    again = specdec(*command)
    assert again.exit_code == 1 and "go on with it by --resume" in again.stderr
    rest = specdec(*command, "--resume")
    assert rest.exit_code == 0 and "eagle, 6 steps" in rest.stdout, rest.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["hydra"], "kind: Input should be 'medusa', 'eagle', 'eagle3' or 'draft-model'"),
        (["eagle", "--set", "lr"], "--set lr: expected NAME=VALUE"),
        (["eagle", "--set", "speed=3"], "speed: Extra inputs are not permitted"),
        (["eagle", "--store-only"], "--store-only: give the folder"),
        (["eagle", "--lr", "-1"], "lr: Input should be greater than 0"),
        (["eagle", "--recipe", "nowhere.yaml"], "--recipe nowhere.yaml: No such file"),
        (["eagle"], "no data"),
    ],
)
def test_what_is_wrong_is_named(specdec, folders, tmp_path, arguments, named):
    target, _ = folders
    out = specdec("train", *arguments, "--target", target, "--data", tmp_path, "--out", tmp_path / "head")
    assert out.exit_code == 1 and named in out.stderr
    assert not (tmp_path / "head").exists()
