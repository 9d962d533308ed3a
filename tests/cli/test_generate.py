"""`specdec generate`, on a tiny random Llama with a tokenizer of its own."""

from __future__ import annotations

import pytest
import torch

from specdec.cli.decoding import parse_drafter
from specdec.core.errors import ConfigError

TEXT = "the cat sat on a mat and dog ran to red barn user assistant : ."
WORDS = ["<unk>", "<s>", "</s>", *TEXT.split()]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} : {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)
PROMPT = "the cat sat on the mat and the cat sat on"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A folder with a random Llama of two layers and a tokenizer of whole words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-llama")
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(model_folder):
    """Plain `generate` on the same model, as text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_folder)

    def generate(text: str, length: int = 24) -> str:
        inputs = {key: value for key, value in tokenizer(text, return_tensors="pt").items() if "type" not in key}
        out = model.generate(**inputs, max_new_tokens=length, do_sample=False)
        return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    return generate


def generate(specdec, *arguments, text=None):
    result = specdec("generate", "--max-new-tokens", "24", *arguments, text=text)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result


def test_greedy_text_is_that_of_plain_generate(specdec, model_folder, plain):
    result = generate(specdec, "--model", model_folder, "--prompt", PROMPT, "--no-chat")
    assert result.stdout.strip() == plain(PROMPT).strip()
    assert "tokens per pass" in result.stderr and "acceptance rate" not in result.stderr


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "draft-model"])
def test_every_drafter_gives_the_same_text(specdec, model_folder, plain, drafter):
    if drafter == "draft-model":
        drafter = f"draft-model:{model_folder}"
    result = generate(specdec, "--model", model_folder, "--drafter", drafter, "--prompt", PROMPT, "--no-chat")
    assert result.stdout.strip() == plain(PROMPT).strip()


def test_the_chat_template_is_used_unless_refused(specdec, model_folder, plain):
    chatted = generate(specdec, "--model", model_folder, "--prompt", PROMPT)
    assert chatted.stdout.strip() == plain(f"user : {PROMPT} assistant : ").strip()


def test_the_prompt_comes_from_standard_input(specdec, model_folder, plain):
    result = generate(specdec, "--model", model_folder, "--no-chat", text=PROMPT)
    assert result.stdout.strip() == plain(PROMPT).strip()


def test_a_seed_repeats_sampled_text_with_any_point_drafter(specdec, model_folder):
    arguments = [
        "--model",
        model_folder,
        "--prompt",
        PROMPT,
        "--no-chat",
        "--temperature",
        "0.9",
        "--seed",
        "5",
    ]
    texts = {
        generate(specdec, *arguments, "--drafter", drafter).stdout
        for drafter in ("none", "prompt-lookup", "prompt-lookup")
    }
    assert len(texts) == 1


def test_stats(specdec, model_folder):
    result = generate(specdec, "--model", model_folder, "--prompt", PROMPT, "--stats")
    for part in ("tokens per pass", "acceptance rate", "tokens a second", "guarantee: "):
        assert part in result.stderr


def test_a_config_names_target_and_parts(specdec, model_folder, plain, tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text(
        f"target: {{model: {model_folder}, dtype: float32}}\n"
        "drafter: {type: prompt-lookup, max_ngram: 2}\nscheduler: {type: fixed, depth: 3}\n"
    )
    result = generate(specdec, "--config", path, "--prompt", PROMPT, "--no-chat")
    assert result.stdout.strip() == plain(PROMPT).strip()


def test_model_stands_in_for_the_target_of_a_config(specdec, model_folder, tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text("target: nobody/has-this-model\ndrafter: none\n")
    generate(specdec, "--config", path, "--model", model_folder, "--prompt", PROMPT, "--dtype", "bfloat16")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no target: give --model"),
        (["--model", "m", "--drafter", "prompt-lookup:x"], "takes neither a model nor a checkpoint"),
        (["--model", "m", "--drafter", "promt-lookup"], "Did you mean 'prompt-lookup'?"),
        (["--model", "m", "--drafter", "draft-model"], "drafter.model: this option is required"),
        (["--model", "m", "--drafter", "none", "--config", "x.yaml"], "give one of them"),
        (["--config", "gone.yaml"], "gone.yaml: there is no such config file"),
        (["--model", "m", "--dtype", "fp8", "--prompt", "x"], "target.dtype: there is no dtype 'fp8'"),
        (["--model", "m", "--prompt", "  "], "the prompt is empty"),
    ],
)
def test_mistakes_are_found_before_anything_is_loaded(specdec, arguments, message):
    result = specdec("generate", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and message in result.stderr


def test_a_model_that_is_not_there_is_one_message(specdec):
    result = specdec("generate", "--model", "/no/such/folder", "--prompt", "x")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and "/no/such/folder" in result.stderr


def test_a_config_without_target_needs_a_model(specdec, tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text("drafter: none\n")
    result = specdec("generate", "--config", path, "--prompt", "x")
    assert result.exit_code == 1 and "no target of type 'hf'" in result.stderr


def test_parse_drafter():
    assert parse_drafter("none") == {"type": "none"}
    assert parse_drafter("draft-model:org/name") == {"type": "draft-model", "model": "org/name"}
    assert parse_drafter("draft-model:C:/models/a") == {"type": "draft-model", "model": "C:/models/a"}
    pinned = {"type": "eagle3", "checkpoint": "org/name", "revision": "refs/pr/1"}
    assert parse_drafter("eagle3:org/name@refs/pr/1") == pinned
    assert parse_drafter("medusa:./a/b@c") == {"type": "medusa", "checkpoint": "./a/b@c"}
    pair = [{"type": "prompt-lookup"}, {"type": "draft-model", "model": "org/name"}]
    assert parse_drafter("merge:prompt-lookup, draft-model:org/name") == {"type": "merge", "drafters": pair}
    assert parse_drafter("first:none") == {"type": "first", "drafters": [{"type": "none"}]}
    with pytest.raises(ConfigError, match="unknown drafter 'nothing'"):
        parse_drafter("nothing:x")
    with pytest.raises(ConfigError, match="unknown drafter 'nothing'"):
        parse_drafter("merge:none,nothing:x")


def test_particles_are_written_when_their_text_is_drawn(specdec, model_folder, tmp_path):
    path = tmp_path / "decoder.yaml"
    path.write_text(
        f"target: {model_folder}\ndrafter: {{type: self-skip, exit_layer: 1, draw: true}}\n"
        "verifier: {type: smc, particles: 4}\nallow: consistent\n"
    )
    options = ("--config", path, "--prompt", PROMPT, "--max-new-tokens", 12, "--seed", 3, "--stats")
    result = specdec("generate", *options, "--temperature", 1.0)
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.split()) > 3 and "guarantee: consistent" in result.stderr
    assert "decodes greedily" in specdec("generate", *options).stderr
