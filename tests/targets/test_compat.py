"""Every shim over the versions of transformers does what it says on the one that is installed."""

from __future__ import annotations

from types import SimpleNamespace

import peft
import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache, LlamaConfig, LogitsProcessorList
from transformers.generation import logits_process

from specdec.targets import compat
from tests.targets import zoo

pytestmark = pytest.mark.core


def test_parameters_are_those_of_the_model_below_a_wrapper() -> None:
    model = zoo.make("llama")
    names = compat.parameters(model)
    assert {"input_ids", "attention_mask", "position_ids", "logits_to_keep"} <= names
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert compat.parameters(wrapped) == names


def test_input_device_is_that_of_the_embedding_or_of_its_offloading_hook() -> None:
    model = zoo.make("llama")
    assert compat.input_device(model) == torch.device("cpu")
    model.to("meta")
    assert compat.input_device(model) == torch.device("cpu")  # nothing says otherwise
    embedding = model.get_input_embeddings()
    embedding._hf_hook = SimpleNamespace(execution_device=torch.device("cuda:1"))
    assert compat.input_device(model) == torch.device("cuda:1")
    inner = SimpleNamespace(execution_device="cpu")
    embedding._hf_hook = SimpleNamespace(hooks=[SimpleNamespace(), inner])
    assert compat.input_device(model) == torch.device("cpu")


def test_cache_keyword_is_the_one_that_forward_takes() -> None:
    assert compat.cache_keyword(frozenset({"input_ids", "past_key_values", "cache"})) == "cache"
    assert compat.cache_keyword(frozenset({"input_ids", "past_key_values"})) == "past_key_values"
    assert compat.cache_keyword(frozenset({"input_ids", "cache_params"})) is None
    model = zoo.shared("llama")
    keyword, cache = compat.cache_keyword(compat.parameters(model)), DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.tensor([[3, 4, 5]]), use_cache=True, **{keyword: cache})
    assert cache.get_seq_length() == 3


def test_query_length_from_a_number_or_from_positions() -> None:
    assert compat.query_length(3) == 3
    assert compat.query_length(torch.arange(7, 12)) == 5


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("llama", {"full_attention"}),
        ("mistral", {"sliding_attention"}),
        ("gemma3", {"sliding_attention", "full_attention"}),
        ("gpt-oss", {"sliding_attention", "full_attention"}),
        ("llama4", {"chunked_attention", "full_attention"}),
        ("gpt2", {"full_attention"}),
        ("qwen2", {"full_attention"}),
    ],
)
def test_layer_kinds_of_real_configs(name: str, kinds: set[str]) -> None:
    assert set(compat.layer_kinds(zoo.CONFIGS[name][1]())) == kinds
    assert kinds <= set(compat.KINDS)


def test_layer_kinds_name_what_is_not_keys_and_values() -> None:
    old_hybrid = SimpleNamespace(layers_block_type=["recurrent", "recurrent", "attention"])
    assert compat.layer_kinds(old_hybrid) == ("recurrent", "full_attention")
    new_hybrid = SimpleNamespace(layer_types=["linear_attention", "full_attention", "linear_attention"])
    assert compat.layer_kinds(new_hybrid) == ("linear_attention", "full_attention")
    assert compat.layer_kinds(SimpleNamespace(attention_chunk_size=8)) == ("chunked_attention",)


def test_sliding_window_only_where_it_is_used() -> None:
    assert compat.sliding_window(zoo.CONFIGS["mistral"][1]()) == zoo.WINDOW
    assert compat.sliding_window(zoo.CONFIGS["llama"][1]()) is None
    assert compat.sliding_window(SimpleNamespace(sliding_window=4096, use_sliding_window=False)) is None
    assert compat.sliding_window(SimpleNamespace(sliding_window=None)) is None


def layers_of(length: int, layers: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(length)
    shape = (1, 2, length, 8)
    return [(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)) for _ in range(layers)]


def test_filled_cache_knows_its_length_also_where_a_window_drops_positions() -> None:
    layers = layers_of(20)
    plain = compat.filled_cache(zoo.CONFIGS["llama"][1](), layers)
    assert plain.get_seq_length() == 20
    assert torch.equal(plain.layers[0].keys, layers[0][0])
    windowed = compat.filled_cache(zoo.CONFIGS["gemma3"][1](), layers_of(20, 4))
    assert windowed.get_seq_length() == 20
    assert windowed.layers[0].keys.shape[2] < 20  # sliding
    assert windowed.layers[2].keys.shape[2] == 20  # full


def test_cache_of_takes_either_name_out_of_the_arguments() -> None:
    cache = DynamicCache()
    for name in ("cache", "past_key_values"):
        kwargs = {name: cache, "other": 1}
        assert compat.cache_of(kwargs) is cache
        assert kwargs == {"other": 1}
    assert compat.cache_of({"cache": None, "past_key_values": cache}) is cache
    assert compat.cache_of({}) is None


def test_cached_layers_only_where_every_position_is_kept() -> None:
    layers = layers_of(6)
    cache = compat.filled_cache(zoo.CONFIGS["llama"][1](), layers)
    found = compat.cached_layers(cache)
    assert found is not None
    for got, want in zip(found, layers, strict=True):
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])
    assert compat.cached_layers(None) is None
    assert compat.cached_layers(DynamicCache()) is None
    assert compat.cached_layers(compat.filled_cache(zoo.CONFIGS["mistral"][1](), layers_of(20))) is None
    static = transformers.StaticCache(config=zoo.CONFIGS["llama"][1](), max_cache_len=16)
    assert compat.cached_layers(static) is None


def test_lists_of_processors_hold_classes_and_do_not_overlap() -> None:
    assert set(compat.WARPERS) < set(compat.PURE)
    assert not set(compat.PURE) & set(compat.STATEFUL)
    for name in ("EncoderRepetitionPenaltyLogitsProcessor", "EncoderNoRepeatNGramLogitsProcessor"):
        assert getattr(logits_process, name) in set(compat.PURE) - set(compat.WARPERS)
    for name in ("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper"):
        assert getattr(logits_process, name) in compat.WARPERS
    for name in ("RepetitionPenaltyLogitsProcessor", "NoRepeatNGramLogitsProcessor", "MinLengthLogitsProcessor"):
        assert getattr(logits_process, name) in set(compat.PURE) - set(compat.WARPERS)
    assert logits_process.SynthIDTextWatermarkLogitsProcessor in compat.STATEFUL


def test_every_processor_that_generate_makes_is_on_a_list() -> None:
    """A new release may bring new ones: they are then treated as unknown, and this test says so."""
    model = zoo.shared("llama")
    made: list[LogitsProcessorList] = []

    def keep(model: nn.Module, input_ids: torch.Tensor, logits_processor: LogitsProcessorList, **_: object):  # type: ignore[no-untyped-def]
        made.append(logits_processor)
        return input_ids

    model.generate(
        torch.tensor([[3, 4, 5]]), do_sample=True, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, typical_p=0.8,
        epsilon_cutoff=1e-3, eta_cutoff=1e-3, repetition_penalty=1.2, no_repeat_ngram_size=2,
        bad_words_ids=[[7]], sequence_bias={(8,): -1.0}, min_length=5, min_new_tokens=2, eos_token_id=9,
        forced_bos_token_id=1, forced_eos_token_id=9, exponential_decay_length_penalty=(2, 1.1),
        suppress_tokens=[10], begin_suppress_tokens=[11], remove_invalid_values=True, renormalize_logits=True,
        max_new_tokens=4, prefix_allowed_tokens_fn=lambda *_: [3, 4], custom_generate=keep,
    )  # fmt: skip
    assert len(made[0]) > 15
    unknown = [type(processor).__name__ for processor in made[0] if type(processor) not in compat.PURE]
    assert not unknown


def test_prefix_function_is_taken_out_of_its_processor() -> None:
    def allowed(batch: int, ids: torch.Tensor) -> list[int]:
        return [1]

    processor = logits_process.PrefixConstrainedLogitsProcessor(allowed, num_beams=1)
    assert compat.prefix_function(processor) is allowed
    assert compat.prefix_function(logits_process.TopKLogitsWarper(3)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_min_dtype_hides_a_key_without_nan(dtype: torch.dtype) -> None:
    hidden = torch.zeros(3, dtype=dtype)
    hidden[1:] = compat.min_dtype(dtype)
    assert torch.equal((hidden + 1).softmax(-1), torch.tensor([1.0, 0.0, 0.0], dtype=dtype))
    assert torch.isfinite(hidden).all()


@pytest.mark.parametrize(("rope", "edge"), [
    (None, ("", None)),
    ({"rope_type": "linear", "factor": 2.0}, ("", None)),
    ({"rope_type": "dynamic", "factor": 2.0}, ("dynamic", 64)),
    ({"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
      "original_max_position_embeddings": 32}, ("longrope", 32)),
])  # fmt: skip
def test_the_length_at_which_positions_are_computed_anew(rope, edge):
    options = {} if rope is None else {"rope_parameters": {"rope_theta": 10000.0, **rope}}
    config = LlamaConfig(hidden_size=16, num_attention_heads=2, max_position_embeddings=64, **options)
    assert compat.length_edge(config) == edge
    config.attn_temperature_tuning, config.floor_scale = True, 8192
    assert compat.length_edge(config) == ("attention temperature", 8192)
