"""What a model can do is measured: a kernel that does not honour a mask loses trees and batches, never silently."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specdec.core.contracts import Exactness, problems
from specdec.core.errors import UnsupportedModelError
from specdec.drafters.none import NoDraft
from specdec.targets.cached_lm import CachedLM
from specdec.targets.hf import HFTarget
from specdec.targets.probe import probe
from specdec.verifiers.greedy import Greedy
from tests.targets import zoo
from tests.targets.scripted import PROMPTS, Scripted, run

pytestmark = pytest.mark.core
MASKS_SEEN: list[Any] = []


def attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, visible: Tensor | None
) -> tuple[Tensor, None]:
    """`[batch, heads, queries, size]` and `[batch, kv_heads, keys, size]`, in the layout that transformers expects."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


def in_slot_order(query: Tensor, key: Tensor, window: int | None = None) -> Tensor:
    """What a flash kernel does: the last query sees all slots, each one before it one less."""
    queries, keys = query.shape[2], key.shape[2]
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    return (distance >= 0) & (distance < (window or keys + 1))


def ignores_mask(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    return attend(query, key, value, scaling, in_slot_order(query, key))


def sees_everything(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    return attend(query, key, value, scaling, None)


def flash(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None = None,
    sliding_window: int | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    MASKS_SEEN.append(mask)
    return attend(query, key, value, scaling, in_slot_order(query, key, sliding_window))


AttentionInterface.register("ignores_mask", ignores_mask)
AttentionInterface.register("sees_everything", sees_everything)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], nn.Module]:
    """Models by family and kernel; flash attention under its own name, run by the stand-in above."""
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flash_attention_2", flash)
    MASKS_SEEN.clear()

    def build(name: str, kernel: str) -> nn.Module:
        if kernel != "flash_attention_2":
            return zoo.make(name, attention=kernel)
        model = zoo.make(name, attention="eager")
        model.config._attn_implementation = kernel  # past the check for the package
        return model

    return build


# Mistral's window is known to flash kernels, while the other kernel here would drop it from plain decoding too.
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("llama", "ignores_mask"), ("gpt2", "ignores_mask"), ("llama", "flash_attention_2"),
        ("gpt2", "flash_attention_2"), ("mistral", "flash_attention_2"),
    ],
)  # fmt: skip
def test_a_kernel_without_masks_keeps_chains_of_one_row(
    name: str, kernel: str, make: Callable[[str, str], nn.Module]
) -> None:
    model = make(name, kernel)
    target = HFTarget(model)
    assert not target.caps.trees
    assert not target.caps.batches
    assert kernel in target.caps.why
    prompt = PROMPTS[0]
    texts = {prompt: prompt + zoo.greedy(model, prompt, 30)}
    # Plain decoding with this kernel is the model's own text: a chain must keep it.
    assert texts[prompt] == prompt + zoo.greedy(zoo.shared(name), prompt, 30)
    got, generation = run(model, Scripted(texts, branching=False), [prompt], 30)
    assert got == [texts[prompt][len(prompt) :]]
    assert generation.session.lm.passes < 30


def test_what_it_lost_is_refused_with_the_cause() -> None:
    model = zoo.make("llama", attention="ignores_mask")
    target = HFTarget(model)
    with pytest.raises(UnsupportedModelError, match=r"ignores_mask.*Decode one at a time"):
        run(model, NoDraft(), PROMPTS, 4)
    found = problems(target, Scripted({}, branching=True), Greedy(), Exactness.EXACT_GREEDY)
    assert any("ignores_mask" in problem for problem in found)


def test_a_kernel_that_is_not_causal_is_refused() -> None:
    target = HFTarget(zoo.make("llama", attention="sees_everything"))
    with pytest.raises(UnsupportedModelError, match="it is not causal"):
        target.probe  # noqa: B018 - asking is the test


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_flash_names_never_get_a_mask_of_ours(name: str, make: Callable[[str, str], nn.Module]) -> None:
    lm = CachedLM(make(name, "flash_attention_2"))
    assert not lm.spec.takes_mask
    session = lm.open([PROMPTS[0]])
    MASKS_SEEN.clear()
    with torch.inference_mode():
        session.prefill(chunk=4)
        for _ in range(3):
            session.extend([0], torch.tensor([[4, 5, 6]]), [(-1, 0, 1)])
            session.commit(0, (0, 1))
        session.extend([0], torch.tensor([[7]]), [(-1,)])
    assert MASKS_SEEN
    assert all(mask is None for mask in MASKS_SEEN)


@pytest.mark.parametrize(
    "kernel", ["flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2", "paged|sdpa", "paged|eager"]
)
def test_names_of_kernels_without_masks_are_known(kernel: str) -> None:
    model = zoo.make("llama")
    model.config._attn_implementation = kernel  # no such kernel is installed here: only the name counts
    assert not CachedLM(model).spec.takes_mask


def test_the_probe_runs_once_a_model_and_again_for_another_kernel() -> None:
    model = zoo.make("llama")
    passes: list[int] = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    assert HFTarget(model).caps == HFTarget(model).caps
    once = len(passes)
    assert 0 < once < 20
    HFTarget(model).probe  # noqa: B018
    assert len(passes) == once
    model.set_attn_implementation("ignores_mask")
    assert not HFTarget(model).caps.trees
    assert len(passes) > once


def test_logits_that_are_not_numbers_are_refused() -> None:
    model = zoo.make("llama")
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("nan")
    with pytest.raises(UnsupportedModelError, match="NaN"):
        probe(CachedLM(model))


def test_dropout_in_training_mode_is_refused_and_the_mode_is_left_as_it_was() -> None:
    model = zoo.make("gpt2", resid_pdrop=0.5).train()
    with pytest.raises(UnsupportedModelError, match="training mode"):
        HFTarget(model).probe  # noqa: B018
    assert model.training
    assert HFTarget(model.eval()).caps.trees


def test_a_memory_that_forgets_positions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that counts positions by itself, whatever it is told, scores siblings one behind the other."""
    model = zoo.make("llama")
    forward = model.forward

    def counting(input_ids: Tensor, position_ids: Any = None, **kwargs: Any) -> Any:
        return forward(input_ids=input_ids, position_ids=None if position_ids is None else position_ids * 0, **kwargs)

    counting.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(model, "forward", counting)
    with pytest.raises(UnsupportedModelError, match="differently from plain decoding"):
        HFTarget(model).probe  # noqa: B018


def test_a_model_that_cannot_run_at_all_says_why() -> None:
    model = zoo.make("llama")

    def fail(*_: Any) -> None:
        raise RuntimeError("no kernel image")

    handle = model.lm_head.register_forward_pre_hook(fail)
    with pytest.raises(UnsupportedModelError, match="no kernel image"):
        HFTarget(model).probe  # noqa: B018
    handle.remove()
    assert HFTarget(model).caps.trees  # a failure is not remembered


def test_nothing_but_a_language_model_is_taken() -> None:
    with pytest.raises(UnsupportedModelError, match="without a config"):
        HFTarget(nn.Linear(2, 2))
