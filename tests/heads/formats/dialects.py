"""One checkpoint a dialect, with random weights, written as its trainer writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.heads.formats.target import DRAFT, FF, HEADS, KV, LAYERS, SIZE, VOCAB, D, target

IDS = torch.arange(DRAFT) * 3 + 7  # target ids of the trimmed vocabulary
MEMBERS = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, IDS, True)
LLAMA = {
    "model_type": "llama",
    "hidden_size": D,
    "intermediate_size": FF,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
}


@dataclass
class Dialect:
    """What a dialect's files hold, and what has to come of them.

    tensors: by stored name. plain: the same by SafeAILab's names, for the formulas. boundaries: the target's states
    that are fused, by what they enter. exports: formats in which it can be written again.
    """

    form: str
    drafter: str
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    plain: dict[str, torch.Tensor]
    file: str = "model.safetensors"
    boundaries: tuple[int, ...] = (2, LAYERS // 2, LAYERS - 3)
    ids: torch.Tensor | None = field(default_factory=lambda: IDS)
    before_residual: bool = False
    norm_output: bool = False
    final_norm: bool = True
    theta: float = 10000.0
    exports: tuple[str, ...] = ("speculators", "vllm")
    warns: bool = False

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.file.endswith(".safetensors"):
            save_file({name: value.clone() for name, value in self.tensors.items()}, folder / self.file)
        else:
            torch.save(self.tensors, folder / self.file)
        return folder


def random(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=chance) * (0.2 if len(shape) == 2 else 0.3)
        + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


def layer(prefix: str, width: int, norms: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}self_attn.q_proj.weight": (HEADS * SIZE, width),
        f"{prefix}self_attn.k_proj.weight": (KV * SIZE, width),
        f"{prefix}self_attn.v_proj.weight": (KV * SIZE, width),
        f"{prefix}self_attn.o_proj.weight": (D, HEADS * SIZE),
        f"{prefix}mlp.gate_proj.weight": (FF, D),
        f"{prefix}mlp.up_proj.weight": (FF, D),
        f"{prefix}mlp.down_proj.weight": (D, FF),
        **{f"{prefix}{norm}.weight": (D,) for norm in norms},
    }


def renamed(tensors: dict[str, torch.Tensor], old: str, new: str) -> dict[str, torch.Tensor]:
    return {name.replace(old, new): value for name, value in tensors.items()}


def embeddings() -> torch.Tensor:
    """Other ones than the target's, so that it shows which are used."""
    return target().model.embed_tokens.weight.detach() * 1.5


# --- Medusa


def medusa(lm: bool = True, heads: int = 3, rows: int = VOCAB) -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        shapes |= {f"{head}.0.linear.weight": (D, D), f"{head}.0.linear.bias": (D,)}
        if lm:
            shapes[f"{head}.1.weight"] = (rows, D)
    return random(shapes, 1)


def medusa_1() -> Dialect:
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "org/base"}
    w = medusa()
    return Dialect("medusa-1", "medusa", config, w, w, "medusa_lm_head.pt", ids=None, exports=("vllm",), warns=True)


def medusa_v2() -> Dialect:
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1, "version": "2"}
    w = medusa(lm=False)
    return Dialect("medusa-v2", "medusa", config, w, w, "medusa_lm_head.safetensors", ids=None, exports=())


def medusa_2() -> Dialect:
    w = medusa()
    base = {name: value for name, value in target().state_dict().items()}
    config = {**target().config.to_dict(), "medusa_num_heads": 3, "medusa_num_layers": 1}
    stored = base | {f"medusa_head.{name}": value for name, value in w.items()}
    return Dialect("medusa-2", "medusa", config, stored, w, ids=None, exports=("vllm",), warns=True)


def medusa_vllm() -> Dialect:
    w = medusa(rows=DRAFT)
    order = torch.randperm(DRAFT, generator=torch.Generator().manual_seed(2))
    stored: dict[str, torch.Tensor] = {"token_map": IDS[order]}
    for name, value in w.items():
        head, rest = name.split(".", 1)
        if rest == "1.weight":
            stored[f"lm_heads.{head}.weight"] = value[order]
        else:
            stored[f"blocks.{head}.layers.0.{rest.rsplit('.', 1)[1]}"] = value
    config = {
        "model_type": "medusa",
        "num_heads": 3,
        "num_hidden_layers": 1,
        "hidden_size": D,
        "vocab_size": VOCAB,
        "truncated_vocab_size": DRAFT,
        "medusa_fc_bias": True,
    }
    return Dialect("medusa-vllm", "medusa", config, stored, w, exports=("vllm",))


def medusa_modelopt() -> Dialect:
    w = medusa()
    config = {**LLAMA, "num_hidden_layers": LAYERS, "medusa": {"num_medusa_heads": 3, "num_medusa_layers": 1}}
    stored = {f"medusa_heads.{name}": value for name, value in w.items()}
    return Dialect("medusa-modelopt", "medusa", config, stored, w, ids=None, exports=("vllm",))


# --- EAGLE


def eagle(bias: bool = True, embed: bool = True, qkv_bias: bool = False) -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (D, 2 * D)}
    shapes |= layer("layers.0.", D, ("post_attention_layernorm",))
    if bias:
        shapes["fc.bias"] = (D,)
    if qkv_bias:
        counts = {"q": HEADS, "k": KV, "v": KV}
        shapes |= {f"layers.0.self_attn.{name}_proj.bias": (size * SIZE,) for name, size in counts.items()}
    w = random(shapes, 2)
    return {"embed_tokens.weight": embeddings(), **w} if embed else w


def eagle_llama2() -> Dialect:
    w = eagle()
    stored = {**w, "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(SIZE // 2)}
    return Dialect("eagle", "eagle2", LLAMA, stored, w, "pytorch_model.bin", ids=None, exports=("vllm",), warns=True)


def eagle_llama3() -> Dialect:
    w = eagle(bias=False, embed=False)
    config = {**LLAMA, "bias": False, "rope_theta": 500000.0}
    return Dialect("eagle", "eagle", config, w, w, ids=None, theta=500000.0, exports=("vllm",))


def eagle_qwen2() -> Dialect:
    w = eagle(qkv_bias=True)
    config = {**LLAMA, "model_type": "qwen2", "qkv_bias": True, "bias": True}
    return Dialect("eagle", "eagle", config, w, w, ids=None, exports=("vllm",))


def eagle_early_vllm() -> Dialect:
    w = eagle(bias=False)
    config = {"model_type": "eagle", "eagle_fc_bias": False, "truncated_vocab_size": VOCAB, "model": LLAMA}
    return Dialect("eagle-speculators", "eagle", config, w, w, ids=None, exports=("vllm",))


def eagle_speculators() -> Dialect:
    w = eagle(bias=False, embed=False)
    stored = renamed(renamed(w, "fc.", "fusion_fc."), "layers.0.", "transformer.")
    config = {
        "speculators_model_type": "eagle",
        "layernorms": False,
        "fusion_bias": False,
        "transformer_layer_config": LLAMA,
        "speculators_config": {"verifier": {"name_or_path": "org/base"}},
    }
    return Dialect("eagle-speculators", "eagle", config, stored, w, ids=None, exports=("vllm",))


# --- EAGLE-3


def eagle3(taps: int = 3, rows: int = DRAFT, layers: int = 1, **extra: tuple[int, ...]) -> dict[str, torch.Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (D, taps * D),
        **layer("midlayer.", 2 * D, ("hidden_norm", "input_layernorm", "post_attention_layernorm")),
        "norm.weight": (D,),
        "lm_head.weight": (rows, D),
    }
    for number in range(1, layers):
        shapes |= layer(f"layers.{number}.", D, ("input_layernorm", "post_attention_layernorm"))
    return random({**shapes, **extra}, 3)


def maps() -> dict[str, torch.Tensor]:
    return {"d2t": IDS - torch.arange(DRAFT), "t2d": MEMBERS}


def safeailab() -> Dialect:
    w = eagle3()
    config = {**LLAMA, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": DRAFT, "num_hidden_layers": 40}
    return Dialect("eagle3", "eagle3", config, w | maps(), w, "pytorch_model.bin", warns=True)


def specforge() -> Dialect:
    w = eagle3() | {"embed_tokens.weight": embeddings()}
    config = {
        **LLAMA,
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT,
        "norm_output": True,  # in SpecForge's sense: there is a norm before the LM head
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
    }
    return Dialect("eagle3", "eagle3", config, w | maps(), w, warns=True)


def specforge_without_norm() -> Dialect:
    w = eagle3()
    del w["norm.weight"]
    config = {**specforge().config, "norm_output": False}
    return Dialect("eagle3", "eagle3", config, w | maps(), w, final_norm=False, exports=("vllm",), warns=True)


def norm_output_at_its_default() -> Dialect:
    """As servers read it: the norm that is there stands before the LM head, and its output is not carried on."""
    w = eagle3()
    return Dialect("eagle3", "eagle3", {**specforge().config, "norm_output": False}, w | maps(), w, warns=True)


def norm_carried_on() -> Dialect:
    """EAGLE-3.1 without speculators' layout: beside `fc_norm` the flag means what servers mean."""
    w = eagle3() | {f"fc_norm.{at}.weight": 1 + torch.rand(D) for at in range(3)}
    config = {**specforge().config, "norm_output": True, "fc_norm": True}
    return Dialect("eagle3", "eagle3", config, w | maps(), w, norm_output=True, exports=("speculators",))


def angelslim() -> Dialect:
    w = eagle3()
    config = {
        **LLAMA,
        "architectures": ["Eagle3LlamaForCausalLM"],
        "draft_vocab_size": DRAFT,
        "aux_hidden_states_layer_ids": [1, 4, 5],
        "eagle_aux_hidden_state_layer_ids": [2, 5, 6],
    }
    stored = renamed(w | {**maps(), "t2d": MEMBERS.int()}, "midlayer.", "layers.0.")
    return Dialect("eagle3", "eagle3", config, stored, w, boundaries=(2, 5, 6))


def vllm_names() -> Dialect:
    w = eagle3()
    named = renamed(w, "midlayer.", "layers.0.")
    fused: dict[str, torch.Tensor] = {}
    for name, value in named.items():
        fused[name if name.startswith("lm_head") else f"model.{name}"] = value
    at = "model.layers.0."
    fused[f"{at}self_attn.qkv_proj.weight"] = torch.cat([fused.pop(f"{at}self_attn.{x}_proj.weight") for x in "qkv"])
    both = [fused.pop(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")]
    fused[f"{at}mlp.gate_up_proj.weight"] = torch.cat(both)
    fused["draft_id_to_target_id"] = maps()["d2t"]
    config = {**LLAMA, "architectures": ["Eagle3LlamaForCausalLM"], "eagle_aux_hidden_state_layer_ids": [3, 0, 8]}
    return Dialect("eagle3", "eagle3", config, fused, w, boundaries=(3, 0, 8))


def nebius() -> Dialect:
    w = eagle3(**{"input_norm.weight": (3 * D,)})
    config = {
        **LLAMA,
        "architectures": ["LlamaForCausalLM"],
        "truncated_vocab_size": DRAFT,
        "rope_theta": 150000.0,
        "norm_before_residual": True,
        "norm_before_fc": True,
    }
    return Dialect(
        "eagle3", "eagle3", config, w | maps(), w, before_residual=True, theta=150000.0, warns=True
    )  # fmt: skip


def modelopt() -> Dialect:
    w = eagle3(layers=2)
    stored = renamed(w, "midlayer.", "layers.0.") | {"d2t": maps()["d2t"]}
    config = {
        **LLAMA,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 2,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5], "use_last_layernorm": True},
    }
    return Dialect("eagle3", "eagle3", config, stored, w, boundaries=(2, 4, 6))


def deepspec() -> Dialect:
    norms = {f"midlayer.self_attn.{name}_norm.weight": (SIZE,) for name in "qk"}
    w = eagle3(taps=5, rows=VOCAB, **norms) | {"embed_tokens.weight": embeddings()}
    config = {
        **LLAMA,
        "model_type": "qwen3",
        "architectures": ["Qwen3Eagle3Model"],
        "head_dim": SIZE,
        "target_layer_ids": [1, 2, 3, 5, 7],
        "num_target_layers": LAYERS,
        "ttt_length": 7,
    }
    stored = renamed(w, "midlayer.", "layers.0.")
    return Dialect("eagle3-deepspec", "eagle3", config, stored, w, boundaries=(2, 3, 4, 6, 8), ids=None)


def speculators() -> Dialect:
    w = eagle3(**{f"fc_norm.{number}.weight": (D,) for number in range(3)}) | {"embed_tokens.weight": embeddings()}
    stored = renamed(w | maps(), "midlayer.", "layers.0.")
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "org/base"}},
        "transformer_layer_config": LLAMA,
        "draft_vocab_size": DRAFT,
        "fc_norm": True,
        "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [1, 4, 7],
    }
    return Dialect(
        "eagle3-speculators",
        "eagle3",
        config,
        stored,
        w,
        boundaries=(1, 4, 7),
        before_residual=True,  # which is what a missing flag means there
        norm_output=True,
        exports=("speculators",),
    )


DIALECTS: dict[str, Callable[[], Dialect]] = {
    each.__name__: each
    for each in (
        medusa_1,
        medusa_v2,
        medusa_2,
        medusa_vllm,
        medusa_modelopt,
        eagle_llama2,
        eagle_llama3,
        eagle_qwen2,
        eagle_early_vllm,
        eagle_speculators,
        safeailab,
        specforge,
        specforge_without_norm,
        norm_output_at_its_default,
        norm_carried_on,
        angelslim,
        vllm_names,
        nebius,
        modelopt,
        deepspec,
        speculators,
    )
}
