"""Compiled passes: the same text, a closed set of shapes, nothing compiled twice, nothing left on the model."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from specdec import Decoder
from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.errors import UnsupportedOptionError
from specdec.core.interfaces import StatelessDrafter
from specdec.drafters import DraftModel, Eagle2, NoDraft, PromptLookup
from specdec.schedulers import Fixed
from specdec.targets import backend, compiled
from specdec.targets.compiled import WIDTHS
from specdec.testing.tabular import TabularTarget
from tests.drafters.eagles import fresh
from tests.exactness.parts import Mixed
from tests.targets import zoo

PROMPTS = torch.tensor([[3, 5, 7, 3, 5, 7, 3, 5]])


@pytest.fixture(autouse=True)
def without_inductor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the last step of compiling, which takes seconds a shape; one test does it all."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    if not {"inductor", "compiler"} & set(request.node.name.split("_")):
        monkeypatch.setattr(backend, "_inductor", torch._dynamo.lookup_backend("aot_eager"))


def llama(seed: int = 0, **options: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, num_key_value_heads=1, max_position_embeddings=1024, eos_token_id=None, **sizes)
    config._attn_implementation = options.pop("attention", "sdpa")
    return LlamaForCausalLM(config).eval()


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def hooks(model: nn.Module) -> list[int]:
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]


def text(decoder: Decoder, prompts: torch.Tensor = PROMPTS, tokens: int = 24, **options: Any) -> list[list[int]]:
    out = decoder.generate(prompts, max_new_tokens=tokens, do_sample=False, pad_token_id=0, **options)
    assert isinstance(out, torch.Tensor)
    return out.tolist()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_chains_and_trees_say_what_generate_says(attention: str) -> None:
    model = llama(attention=attention)
    want = model.generate(PROMPTS, max_new_tokens=24, do_sample=False, pad_token_id=0).tolist()
    for drafter in (NoDraft(), PromptLookup(), Mixed(want, branching=True), DraftModel(llama(1))):
        assert text(Decoder(model, drafter, scheduler=Fixed(5, nodes=12), compile=True)) == want, drafter.name


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.CONFIGS)
def test_every_family_says_what_generate_says_and_is_compiled_once(name: str) -> None:
    model = zoo.shared(name)
    want = model.generate(PROMPTS, max_new_tokens=16, do_sample=False, pad_token_id=0).tolist()
    decoder = Decoder(model, Mixed(want, branching=True), scheduler=Fixed(3, nodes=6), compile=True)
    assert text(decoder, tokens=16) == want
    assert text(Decoder(model, NoDraft(), compile=True), tokens=5) == [want[0][: PROMPTS.shape[1] + 5]]
    known = graphs()
    assert 0 < known <= 2 and text(decoder, tokens=16) == want and graphs() == known


def test_a_ragged_batch_says_what_its_rows_say() -> None:
    model = llama()
    padded = torch.tensor([[0, 0, 0, 9, 11], [3, 5, 7, 3, 5]])
    mask = torch.tensor([[0, 0, 0, 1, 1], [1] * 5])
    alone = [
        model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)[0].tolist()
        for ids in (padded[:1, 3:], padded[1:])
    ]
    decoder = Decoder(model, Mixed(alone, branching=True), scheduler=Fixed(3, nodes=7), compile=True)
    both = text(decoder, padded, attention_mask=mask)
    assert [both[0][3:], both[1]] == alone


def test_nothing_is_compiled_after_the_first_calls() -> None:
    model = llama()
    decoder = Decoder(model, PromptLookup(), scheduler=Fixed(6), compile=True)
    text(decoder)
    text(Decoder(model, NoDraft(), compile=True), tokens=4)
    known = graphs()
    assert 0 < known <= 2  # widths 1 and 8
    for length in (1, 5, 9, 30):
        text(decoder, torch.arange(1, length + 1)[None], tokens=40)
    text(Decoder(model, PromptLookup(), scheduler=Fixed(3), compile=True))  # another decoder of the model
    assert graphs() == known


@pytest.mark.parametrize("name", ["gemma3", "qwen2-window", "mistral"])
def test_a_text_that_outgrows_a_window_compiles_nothing_anew(name: str) -> None:
    model, prompt = zoo.shared(name), PROMPTS[:, :2]
    want = model.generate(prompt, max_new_tokens=16, do_sample=False, pad_token_id=0).tolist()
    assert prompt.shape[1] < zoo.WINDOW < len(want[0])
    assert text(Decoder(model, NoDraft(), compile=True), prompt, tokens=16) == want and graphs() == 1


def test_a_heads_passes_are_compiled_once_for_all_calls() -> None:
    model = llama()
    decoder = Decoder(model, Eagle2(fresh("eagle", model), depth=3), scheduler=Fixed(3, nodes=12), compile=True)
    want = model.generate(PROMPTS, max_new_tokens=24, do_sample=False, pad_token_id=0).tolist()
    assert text(decoder) == want
    known = graphs()
    assert text(decoder) == want and graphs() == known


def test_every_shape_is_compiled_once_also_where_features_are_read() -> None:
    model, before = llama(), {id(passes) for passes in compiled._PASSES.values()}
    decoder = Decoder(model, Eagle2(fresh("eagle", model), depth=3), scheduler=Fixed(3, nodes=12), compile=True)
    for _ in range(3):
        text(decoder)
    made = [passes for passes in compiled._PASSES.values() if id(passes) not in before]
    assert any(shape.features for passes in made for shape in passes.made)
    assert graphs() == sum(len(passes.made) for passes in made)
    assert not any(found for passes in made for _, found in passes.hooks.values())


def test_shapes_outside_the_set_run_as_they_are() -> None:
    model = llama()
    wide = WIDTHS[-1] + 1

    class Wide(StatelessDrafter):
        name = "wide"
        branching = True

        def propose(self, row: Any, budget: Any, rng: Any, context: Any) -> Draft:
            count = min(budget.nodes, wide)
            return Draft.point([(row.anchor + i) % 64 for i in range(count)], [-1] * count)

    decoder = Decoder(model, Wide(), scheduler=Fixed(2, nodes=wide), compile=True)
    want = model.generate(PROMPTS, max_new_tokens=8, do_sample=False, pad_token_id=0).tolist()
    assert text(decoder, tokens=8) == want
    assert graphs() <= 1  # at most the last round's, which has no room for drafts


class Features(StatelessDrafter):
    """Keeps the features of every round, and drafts what is probably wrong."""

    name = "features"
    needs = Needs(features=("embed", "layer:0", "layer:1", "final"))

    def __init__(self) -> None:
        self.seen: list[dict[str, torch.Tensor]] = []

    def begin(self, context: Any) -> Any:
        session = super().begin(context)
        session.observe = lambda outcomes: self.seen.extend(  # type: ignore[method-assign]
            {name: outcome.features(name) for name in self.needs.features} for outcome in outcomes
        )
        return session

    def propose(self, row: Any, budget: Any, rng: Any, context: Any) -> Draft:
        return Draft.point([1, 2, 3][: budget.depth]) if budget.depth else Draft.empty()


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_features_are_those_of_plain_passes_and_no_hook_is_left(name: str) -> None:
    model = zoo.shared(name)
    before = hooks(model)  # transformers leaves some of its own where hidden states were asked for
    plain, compiled = Features(), Features()
    options: dict[str, Any] = {"scheduler": Fixed(3)}
    want = text(Decoder(model, plain, **options), tokens=8)
    assert text(Decoder(model, compiled, compile=True, **options), tokens=8) == want
    assert len(plain.seen) == len(compiled.seen) > 3
    for one, other in zip(plain.seen, compiled.seen, strict=True):
        for feature in one:
            torch.testing.assert_close(one[feature], other[feature], rtol=1e-4, atol=1e-5)
    known = graphs()
    text(Decoder(model, Features(), compile=True, **options), tokens=8)
    assert graphs() == known
    assert hooks(model) == before


def test_fixed_width_holds_bit_for_bit_when_compiled() -> None:
    model = llama().to(torch.bfloat16)
    likely = model.generate(PROMPTS, max_new_tokens=20, do_sample=False, pad_token_id=0).tolist()
    texts = []
    for drafter in (NoDraft(), Mixed(likely, branching=True)):
        decoder = Decoder(model, drafter, scheduler=Fixed(3, nodes=7), exactness="fixed-width:8", compile=True)
        out = decoder.generate(
            PROMPTS, max_new_tokens=20, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
        texts.append(out)
    assert torch.equal(texts[0].sequences, texts[1].sequences)
    assert all(torch.equal(a, b) for a, b in zip(texts[0].logits, texts[1].logits, strict=True))


def test_inductor_compiles_a_pass() -> None:
    model = llama()
    want = model.generate(PROMPTS, max_new_tokens=6, do_sample=False, pad_token_id=0).tolist()
    assert text(Decoder(model, NoDraft(), compile=True), tokens=6) == want
    assert text(Decoder(model, NoDraft(), compile=True), tokens=6) == want
    assert graphs() == 1


def test_inductor_passes_follow_the_weights() -> None:
    """A compiled pass holds weights in a layout of its own; ours are made anew when the model's are written to."""
    model = llama()
    text(Decoder(model, NoDraft(), compile=True), tokens=6)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(-30.0)
        model.lm_head.weight.copy_(torch.randn_like(model.lm_head.weight))
    want = model.generate(PROMPTS, max_new_tokens=6, do_sample=False, pad_token_id=0).tolist()
    assert text(Decoder(model, NoDraft(), compile=True), tokens=6) == want


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_collection_pauses_while_a_pass_compiles(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def broken(graph: Any, inputs: Any) -> Any:
        seen.append(gc.isenabled())
        raise RuntimeError

    monkeypatch.setattr(backend, "_inductor", broken)
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(UnsupportedOptionError):
            text(Decoder(llama(), NoDraft(), compile=True))
        assert gc.isenabled() == collects and seen == [False]
    finally:
        (gc.enable if before else gc.disable)()


def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(backend, "_inductor", broken)
    with pytest.raises(UnsupportedOptionError, match=r"could not compile.*no compiler here.*g\+\+"):
        text(Decoder(llama(), NoDraft(), compile=True))


def test_only_a_models_passes_are_compiled() -> None:
    with pytest.raises(UnsupportedOptionError, match="only passes of a model"):
        Decoder(TabularTarget(lambda prefix: (0.5, 0.5), 2), NoDraft(), compile=True)


def test_a_model_that_goes_takes_its_passes_along() -> None:
    gc.collect()  # those of other tests
    model: nn.Module | None = llama()
    text(Decoder(model, NoDraft(), compile=True), tokens=4)
    assert len(compiled._PASSES) >= 1
    before = len(compiled._PASSES)
    torch._dynamo.reset()
    model = None
    gc.collect()
    assert len(compiled._PASSES) == before - 1
