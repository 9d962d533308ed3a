"""Models as people have them: adapters, quantised, offloaded, spread over devices; and none of them is changed."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import peft
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.errors import UnsupportedModelError
from specdec.drafters.none import NoDraft
from specdec.targets.hf import HFTarget
from tests.targets import zoo
from tests.targets.scripted import PROMPTS, Scripted, run, start

NEW = 24


def check(model: nn.Module, texts: dict[tuple[int, ...], tuple[int, ...]] | None = None) -> dict[tuple[int, ...], Any]:
    """Chains and trees, alone and in a batch, give the text of the model's own `generate`; returns the texts."""
    if texts is None:
        texts = {prompt: prompt + zoo.greedy(model, prompt, NEW) for prompt in PROMPTS}
    want = [text[len(prompt) :] for prompt, text in texts.items()]
    assert len(set(want[0])) >= 8
    assert run(model, NoDraft(), PROMPTS[:1], NEW)[0] == want[:1]
    for branching in (False, True):
        assert run(model, Scripted(texts, branching), PROMPTS[:1], NEW)[0] == want[:1]
        assert run(model, Scripted(texts, branching), PROMPTS, NEW)[0] == want
    return texts


def texts_of(name: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {prompt: prompt + zoo.greedy(zoo.shared(name), prompt, NEW) for prompt in PROMPTS}


def lora(name: str, targets: list[str]) -> nn.Module:
    torch.manual_seed(7)
    model = peft.get_peft_model(
        zoo.make(name), peft.LoraConfig(r=4, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM")
    ).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "lora_B" in key:  # zero at first, so that the adapter would do nothing
                weight.normal_(0, 0.3)
    return model


@pytest.mark.parametrize(
    ("name", "targets"), [("llama", ["q_proj", "v_proj", "down_proj"]), ("gemma3", ["q_proj", "v_proj"])]
)
def test_lora_wrapped(name: str, targets: list[str]) -> None:
    model = lora(name, targets)
    texts = check(model)
    assert texts != texts_of(name)
    with model.disable_adapter():
        assert run(model, NoDraft(), PROMPTS, NEW)[0] == [text[len(p) :] for p, text in texts_of(name).items()]


def test_features_and_modules_of_a_lora_wrapped_model() -> None:
    model = lora("llama", ["q_proj", "v_proj"])
    target = HFTarget(model)
    names = ("embed", "layer:0", "layer:2", "final")
    assert target.features(names) == names
    generation = start(model, NoDraft(), PROMPTS[:2], 4)
    with torch.inference_mode():
        scores = target.begin(generation.rows, Needs(features=names)).prefill()
        want = model(input_ids=torch.tensor([PROMPTS[0]]), output_hidden_states=True).hidden_states
    for name, state in zip(("embed", "layer:0", "final"), (want[0], want[1], want[-1]), strict=True):
        torch.testing.assert_close(scores.features[name][0], state[0], atol=1e-4, rtol=1e-4)
    assert target.shared("lm_head") is model.get_base_model().lm_head


def test_peft_prompts_are_refused() -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(zoo.make("llama"), config).eval()
    with pytest.raises(UnsupportedModelError, match="virtual tokens"):
        HFTarget(model)


class Int8Linear(nn.Module):
    """Weights in int8 with one scale a row, as weight-only schemes keep them: no float parameter of its own."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (linear.weight / scale).round().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale).T


def weight_only() -> nn.Module:
    model = zoo.make("llama").requires_grad_(False)
    for module in list(model.modules()):
        for key, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, key, Int8Linear(child))
    return model


def dynamic(dtype: torch.dtype) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch wants its users at torchao
        return torch.ao.quantization.quantize_dynamic(zoo.make("llama"), {nn.Linear}, dtype=dtype)


@pytest.mark.parametrize("quantised", [weight_only, lambda: dynamic(torch.float16)], ids=["int8", "float16"])
def test_weights_that_are_quantised(quantised: Callable[[], nn.Module]) -> None:
    check(quantised())


def test_activations_quantised_over_the_whole_pass_are_refused() -> None:
    """One scale a pass: the other tokens of a pass change a token's logits, also in plain decoding."""
    with pytest.raises(UnsupportedModelError, match="activations are quantised over the whole pass"):
        HFTarget(dynamic(torch.qint8)).probe  # noqa: B018


def test_offloaded_weights(tmp_path: Path) -> None:
    texts = texts_of("llama")
    for model in (
        accelerate.cpu_offload(zoo.make("llama"), execution_device="cpu"),
        accelerate.disk_offload(zoo.make("llama"), str(tmp_path / "disk"), execution_device="cpu"),
    ):
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
        assert HFTarget(model).device == torch.device("cpu")
        check(model, texts)


@pytest.mark.parametrize("first", ["cpu", "disk"])
def test_layers_in_several_places(first: str, tmp_path: Path) -> None:
    places = {
        "model.embed_tokens": first, "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu",
        "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk",
    }  # fmt: skip
    zoo.make("llama").save_pretrained(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved", device_map=places, offload_folder=str(tmp_path / "offloaded"), dtype=torch.float32
    ).eval()
    model.generation_config.pad_token_id = 0
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu", "meta"}
    check(model, texts_of("llama"))


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that a call could change."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks")
    return {
        "config": copy.deepcopy(model.config.to_dict()),
        "generation": copy.deepcopy(model.generation_config.to_dict()),
        "kernel": model.config._attn_implementation,
        "weights": {key: (value.data_ptr(), value.clone()) for key, value in model.state_dict().items()},
        "training": [module.training for module in model.modules()],
        "hooks": [[list(getattr(module, kind).values()) for kind in hooks] for module in model.modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "methods": [module.forward.__func__ for module in model.modules() if hasattr(module.forward, "__func__")],
        "grad": [parameter.requires_grad for parameter in model.parameters()],
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    weights, later = before.pop("weights"), after.pop("weights")
    assert before == after
    assert weights.keys() == later.keys()
    for key, (place, value) in weights.items():
        assert later[key][0] == place
        assert torch.equal(later[key][1], value)


class Failing(Scripted):
    """Raises in round 3."""

    def propose(self, row: Any, budget: Any, rng: Any, context: Any) -> Draft:
        if row.rounds == 3:
            raise KeyError("drafter")
        return super().propose(row, budget, rng, context)


@pytest.mark.core
@pytest.mark.parametrize("ending", ["normal", "target", "drafter", "interrupt", "closed"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_nothing_on_the_model_is_changed(name: str, ending: str) -> None:
    model = zoo.make(name)
    texts = texts_of(name)
    armed: list[BaseException] = []
    calls: list[int] = []

    def trip(*_: Any) -> None:
        calls.append(1)
        if armed and len(calls) == 4:
            raise armed[0]

    model.get_output_embeddings().register_forward_pre_hook(trip)
    HFTarget(model).probe  # noqa: B018
    calls.clear()
    before = snapshot(model)
    drafter = (Failing if ending == "drafter" else Scripted)(texts, branching=True)
    drafter.needs = Needs(features=("layer:0", "layer:2", "final"))
    generation = start(model, drafter, PROMPTS, NEW)
    if ending == "closed":
        rounds = generation.rounds()
        next(rounds), next(rounds)
        rounds.close()
    elif ending == "normal":
        for _ in generation.rounds():
            pass
    else:
        if ending != "drafter":
            armed.append(RuntimeError("target") if ending == "target" else KeyboardInterrupt())
        with pytest.raises(KeyError if ending == "drafter" else type(armed[0])):
            for _ in generation.rounds():
                pass
    armed.clear()
    assert_same(before, snapshot(model))
    # And the next call is right.
    want = [text[len(prompt) :] for prompt, text in texts.items()]
    assert run(model, Scripted(texts, branching=True), PROMPTS, NEW)[0] == want


def test_the_training_flag_and_gradients_are_left_alone() -> None:
    model = zoo.make("llama").train()  # without dropout, so its text is that of eval mode
    texts = texts_of("llama")
    assert run(model, Scripted(texts, branching=True), PROMPTS, NEW)[0] == [t[len(p) :] for p, t in texts.items()]
    assert model.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    model(input_ids=torch.tensor([PROMPTS[0]]), labels=torch.tensor([PROMPTS[0]])).loss.backward()
    assert model.lm_head.weight.grad is not None
