"""Packed weights: the same products, one copy a weight, which follows the weight and goes with it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from specdec import Decoder
from specdec.core.errors import ConfigError, UnsupportedOptionError
from specdec.drafters import DraftModel, Eagle2, NoDraft, PromptLookup
from specdec.schedulers import Fixed
from specdec.targets import backend, prepacked
from specdec.targets.hf import HFTarget
from specdec.targets.prepacked import Prepacked
from tests.drafters.eagles import fresh
from tests.exactness.parts import Mixed
from tests.targets.test_compiled import PROMPTS, llama, text

DTYPES = sorted(prepacked._DTYPES, key=str)

pytestmark = pytest.mark.skipif(not DTYPES, reason="torch was built without oneDNN, so there are no packed weights")


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the weights by which `specdec::linear` multiplied."""
    seen: list[tuple[int, ...]] = []
    op = prepacked._product

    def counted(states: Any, copy: Any, *rest: Any) -> Any:
        seen.append(tuple(copy.shape))
        return op(states, copy, *rest)

    monkeypatch.setattr(prepacked, "_product", counted)
    return seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_plain_layers(dtype: torch.dtype, bias: bool, packed: list[tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(48, 40, bias=bias).to(dtype)
    for shape in ((1, 48), (1, 16, 48), (3, 33, 48), (48,)):
        states = torch.randn(shape, dtype=dtype)
        with torch.no_grad(), Prepacked():
            got = layer(states)
        with torch.no_grad():
            torch.testing.assert_close(got, layer(states))
    assert packed == [(40, 48)] * 4


@torch.no_grad()
def test_what_is_no_weight_of_the_model_stays_as_it_is(packed: list[tuple[int, ...]]) -> None:
    states, made = torch.randn(2, 8), torch.randn(4, 8)
    with Prepacked():
        functional.linear(states, made)  # made for this pass: packing it would take longer than multiplying
        functional.linear(states.double(), nn.Parameter(made.double()))  # no kernel
        functional.linear(states, weight=nn.Parameter(made))  # not as a layer calls it
    assert not packed


@torch.no_grad()
def test_the_copy_follows_its_weight_and_goes_with_it() -> None:
    layer: nn.Linear | None = nn.Linear(8, 8)
    assert layer is not None
    states, before = torch.randn(2, 8), len(prepacked._packed)
    with Prepacked():
        layer(states)
        assert len(prepacked._packed) == before + 1
        layer.weight.mul_(-2.0)
        got = layer(states)
        assert len(prepacked._packed) == before + 1
    torch.testing.assert_close(got, layer(states))
    layer = None
    gc.collect()
    assert len(prepacked._packed) == before


def test_decoders_with_packed_weights_say_what_generate_says(packed: list[tuple[int, ...]]) -> None:
    model = llama()
    want = model.generate(PROMPTS, max_new_tokens=24, do_sample=False, pad_token_id=0).tolist()
    assert not packed
    head = Eagle2(fresh("eagle", model), depth=3)
    for drafter in (NoDraft(), PromptLookup(), Mixed(want, branching=True), DraftModel(llama(1)), head):
        assert text(Decoder(model, drafter, scheduler=Fixed(5, nodes=12), compile="weights")) == want, drafter.name
    weights = {tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2}
    assert weights - {(64, 16)} <= set(packed) and (64, 16) in packed  # layers and LM head


def test_prompts_and_ragged_batches_are_packed_too(packed: list[tuple[int, ...]]) -> None:
    model = llama()
    padded, mask = torch.tensor([[0, 0, 0, 9, 11], [3, 5, 7, 3, 5]]), torch.tensor([[0, 0, 0, 1, 1], [1] * 5])
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    want = model.generate(padded, **options).tolist()
    decoder = Decoder(model, PromptLookup(), compile="weights")
    assert decoder.generate(padded, **{**options, "max_new_tokens": 1}).tolist() == [row[:6] for row in want]
    assert packed
    assert decoder.generate(padded, **options).tolist() == want


@pytest.mark.parametrize("compile", [True, "weights"])
def test_weights_that_are_brought_in_for_every_pass_are_not_packed(
    compile: bool | str, packed: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setattr(backend, "_inductor", torch._dynamo.lookup_backend("eager"))
    model = llama()
    want = text(Decoder(model, NoDraft()))
    accelerate.cpu_offload(model, execution_device="cpu")
    assert any(parameter.is_meta for parameter in model.parameters())
    assert text(Decoder(model, NoDraft(), compile=compile), tokens=24) == want
    assert not packed


def written(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(-1.5)


def merged(model: nn.Module) -> None:
    delta = torch.randn(16, 1) @ torch.randn(1, 16)
    for layer in model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.q_proj.weight.data += delta
        layer.self_attn.o_proj.weight.data -= delta


@pytest.mark.parametrize("change", [written, merged])
@pytest.mark.parametrize("inference", [False, True])
def test_writes_that_torch_does_not_count_are_seen_by_the_next_call(change: Any, inference: bool) -> None:
    with torch.inference_mode(inference):
        model = llama()
        decoder = Decoder(model, NoDraft(), compile="weights")
        before = text(decoder)
        change(model)
        want = model.generate(PROMPTS, max_new_tokens=24, do_sample=False, pad_token_id=0).tolist()
        assert before != want and text(decoder) == want
        assert text(Decoder(model, NoDraft(), compile="weights")) == want


def test_copies_of_another_number_type_are_given_up() -> None:
    gc.collect()
    before, model = len(prepacked._packed), llama()
    text(Decoder(model, NoDraft(), compile="weights"))
    assert len(prepacked._packed) > before
    model.double()
    decoder = Decoder(model, NoDraft(), compile="weights")
    want = model.generate(PROMPTS, max_new_tokens=24, do_sample=False, pad_token_id=0).tolist()
    assert text(decoder) == want
    assert len(prepacked._packed) == before


@torch.no_grad()
def test_a_bias_is_a_row_of_numbers_or_the_product_is_plain(packed: list[tuple[int, ...]]) -> None:
    states, weight = torch.randn(3, 48), nn.Parameter(torch.randn(40, 48))
    for bias in (torch.randn(80)[::2], torch.randn(()), torch.randn(1), torch.randn(3, 40)):
        with Prepacked():
            got = functional.linear(states, weight, bias)
        torch.testing.assert_close(got, functional.linear(states, weight, bias))
    assert not packed


class Wrapped(torch.Tensor):
    """A tensor of a type of its own, as quantised weights are."""


def test_other_types_of_tensors_gradients_and_autocast_stay_with_torch(packed: list[tuple[int, ...]]) -> None:
    states, weight = torch.randn(3, 8), torch.randn(4, 8)
    with torch.no_grad(), Prepacked():
        functional.linear(states, nn.Parameter(weight.as_subclass(Wrapped), requires_grad=False))
        functional.linear(states.as_subclass(Wrapped), nn.Parameter(weight))
        functional.linear(states[:, :0], nn.Parameter(weight[:, :0]))
    learnt = nn.Parameter(weight)
    with Prepacked():
        functional.linear(states, learnt).sum().backward()
    assert learnt.grad is not None and not packed
    model = llama()
    with torch.autocast("cpu", torch.bfloat16):
        want = model.generate(PROMPTS, max_new_tokens=6, do_sample=False, pad_token_id=0).tolist()
        assert text(Decoder(model, NoDraft(), compile="weights"), tokens=6) == want
    assert not packed


def test_a_target_that_runs_its_passes_otherwise_is_refused() -> None:
    for compile, other in ((True, "weights"), ("weights", True), ("weights", False)):
        with pytest.raises(UnsupportedOptionError, match=f"HFTarget\\(model, compile={compile!r}"):
            Decoder(HFTarget(llama(), compile=other), NoDraft(), compile=compile)


def test_configs_name_it_and_other_words_are_refused() -> None:
    decoder = Decoder.from_config({"drafter": "none", "compile": "weights"}, llama())
    assert decoder.compile == "weights" and decoder.config.compile == "weights"
    with pytest.raises(ConfigError, match="compile"):
        Decoder.from_config({"drafter": "none", "compile": "wheights"}, llama())
    with pytest.raises(UnsupportedOptionError, match="expected True, False or 'weights'"):
        Decoder(llama(), NoDraft(), compile="wheights")


@pytest.mark.parametrize("rows", [1024, 1536, 2048])
@pytest.mark.parametrize("columns", [64, 96, 128])
def test_samples_are_of_many_columns(rows: int, columns: int) -> None:
    where = torch.arange(columns, dtype=torch.float32).expand(rows, columns).contiguous()
    assert len(prepacked._sample(where).unique()) == columns


@torch.no_grad()
def test_products_that_adapters_join_leave_no_copy_behind() -> None:
    gc.collect()
    states, large, before = torch.randn(2, 8), nn.Parameter(torch.randn(16, 8)), len(prepacked._packed)
    adapters = [nn.Parameter(torch.randn(2, 8)) for _ in range(5)]
    for adapter in [*adapters, *adapters]:
        got = prepacked.linear(states, [large, adapter], None)
        torch.testing.assert_close(got, states @ torch.cat([large, adapter]).T)
        assert len(prepacked._packed) == before + 1
    del adapters, adapter
    gc.collect()
    assert len(prepacked._packed) == before and id(large) not in prepacked._part_of
