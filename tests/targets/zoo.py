"""Tiny random models of many families: the ones that must be decoded rightly, and the ones that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import transformers
from torch import nn

VOCAB = 96
WINDOW = 8

# transformers' own names: hidden size and depth that most configs share.
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
_MIXED = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]


def _common(family: str, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{family}Config")(**{**_COMMON, **options})


def _own(family: str, **options: Any) -> Callable[[], Any]:
    ids = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False}
    return lambda: getattr(transformers, f"{family}Config")(**{"vocab_size": VOCAB, **ids, **options})


CONFIGS: dict[str, tuple[str, Callable[[], Any]]] = {
    "llama": ("LlamaForCausalLM", _common("Llama")),
    "qwen2": ("Qwen2ForCausalLM", _common("Qwen2")),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        _common("Qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    ),
    "qwen3": ("Qwen3ForCausalLM", _common("Qwen3", head_dim=8)),
    "mistral": ("MistralForCausalLM", _common("Mistral", sliding_window=WINDOW)),
    "gemma2": (
        "Gemma2ForCausalLM",
        _common("Gemma2", head_dim=8, query_pre_attn_scalar=8, sliding_window=WINDOW, num_hidden_layers=4),
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        _common(
            "Gemma3Text", head_dim=8, query_pre_attn_scalar=8, sliding_window=WINDOW, num_hidden_layers=4,
            layer_types=_MIXED,
        ),
    ),
    "gpt2": ("GPT2LMHeadModel", _own("GPT2", n_embd=32, n_layer=3, n_head=4, n_positions=256)),
    "gpt-neox": ("GPTNeoXForCausalLM", _common("GPTNeoX")),
    "gptj": ("GPTJForCausalLM", _own("GPTJ", n_embd=32, n_layer=3, n_head=4, n_positions=256, rotary_dim=4)),
    "opt": ("OPTForCausalLM", _common("OPT", ffn_dim=48, word_embed_proj_dim=32)),
    "phi": ("PhiForCausalLM", _common("Phi", num_key_value_heads=4, partial_rotary_factor=0.5)),
    "phi3-window": ("Phi3ForCausalLM", _common("Phi3", sliding_window=WINDOW)),
    "falcon": (
        "FalconForCausalLM",
        _common("Falcon", alibi=False, new_decoder_architecture=True, num_kv_heads=2),
    ),
    "stablelm": ("StableLmForCausalLM", _common("StableLm")),
    "cohere": ("CohereForCausalLM", _common("Cohere")),
    "cohere2": (
        "Cohere2ForCausalLM",
        _common("Cohere2", sliding_window=WINDOW, num_hidden_layers=4, layer_types=_MIXED),
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM",
        _common("Qwen3Moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        _common(
            "GptOss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW,
            num_hidden_layers=4,
        ),
    ),
    "deepseek-v3": (
        "DeepseekV3ForCausalLM",
        _common(
            "DeepseekV3", num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8,
            qk_rope_head_dim=4, v_head_dim=8, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
            n_group=2, topk_group=1, moe_intermediate_size=16, first_k_dense_replace=1,
        ),
    ),
    "llama4": (
        "Llama4ForCausalLM",
        _common(
            "Llama4Text", head_dim=8, attention_chunk_size=WINDOW, num_hidden_layers=4, num_local_experts=2,
            intermediate_size_mlp=48, num_experts_per_tok=1, no_rope_layers=[1, 1, 1, 0],
            interleave_moe_layer_step=2,
        ),
    ),
}  # fmt: skip
"""Family to class and config; every one of these must be decoded token for token as `generate` does."""

NEXT = ["linear_attention", "linear_attention", "full_attention"]
REFUSED: dict[str, tuple[str, Callable[[], Any], str]] = {
    "bloom": ("BloomForCausalLM", _own("Bloom", hidden_size=32, n_layer=2, n_head=4), "ALiBi"),
    "mpt": ("MptForCausalLM", _own("Mpt", d_model=32, n_layers=2, n_heads=4, max_seq_len=64), "ALiBi"),
    "falcon-alibi": ("FalconForCausalLM", _common("Falcon", alibi=True), "ALiBi"),
    "mamba": ("MambaForCausalLM", _own("Mamba", hidden_size=32, num_hidden_layers=2, state_size=4), "recurrent"),
    "qwen3-next": (
        "Qwen3NextForCausalLM",
        _common(
            "Qwen3Next", head_dim=8, layer_types=NEXT, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
            shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=2,
            linear_key_head_dim=8, linear_value_head_dim=8,
        ),
        "recurrent",
    ),
    "t5": (
        "T5ForConditionalGeneration",
        _own("T5", d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0),
        "encoder-decoder",
    ),
}  # fmt: skip
"""Family to class, config and the word by which the refusal must name its cause."""


# Seeds whose greedy text varies (see test_zoo): a text of one repeated token would hide every fault of a window.
_SEEDS = {
    "llama": 3, "qwen2": 4, "qwen2-window": 2, "qwen3": 5, "mistral": 1, "gemma2": 1, "gemma3": 5, "gpt2": 0,
    "gpt-neox": 18, "gptj": 9, "opt": 3, "phi": 8, "phi3-window": 1, "falcon": 16, "stablelm": 5, "cohere": 2,
    "cohere2": 4, "qwen3-moe": 4, "gpt-oss": 5, "deepseek-v3": 3, "llama4": 1,
}  # fmt: skip


def make(name: str, seed: int | None = None, attention: str | None = None, **options: Any) -> nn.Module:
    """A new random model of the family: float32, eval mode, weights large enough that greedy text varies."""
    class_name, config = REFUSED[name][:2] if name in REFUSED else CONFIGS[name]
    made = config()
    for key, value in options.items():
        setattr(made, key, value)
    if attention is not None:
        made._attn_implementation = attention
    seed = _SEEDS.get(name, 0) if seed is None else seed
    torch.manual_seed(seed)
    model = getattr(transformers, class_name)(made).eval()
    randomise(model, seed)
    model.generation_config.pad_token_id = 0
    return model


def randomise(model: nn.Module, seed: int) -> None:
    """Fill every weight, also those that a model starts at zero or one, so that none can be left out unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.dtype)
            if weight.dim() >= 2:
                weight.copy_(noise * (1.0 if "embed" in name or "wte" in name else 0.25))
            else:
                ones = weight.float().mean() > 0.5  # a norm that starts at one; biases start at zero
                weight.copy_(noise * 0.1 + (1.0 if ones else 0.0))


@cache
def shared(name: str, attention: str | None = None) -> nn.Module:
    """One model of the family for all tests that leave it as it is."""
    return make(name, attention=attention)


def greedy(model: nn.Module, prompt: list[int] | tuple[int, ...], count: int) -> tuple[int, ...]:
    """The new tokens of plain `generate`, alone, never ending early."""
    ids = torch.tensor([list(prompt)], device=next(model.parameters()).device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count
    )
    return tuple(out[0, len(prompt) :].tolist())
