"""Features by name equal those of a plain pass, for the prompt and for every node; no hook is left behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from specdec.core.contracts import Needs
from specdec.core.draft import Draft
from specdec.core.forest import Forest
from specdec.core.interfaces import DraftSession
from specdec.core.sampling import Sampling
from specdec.core.state import Context, Row
from specdec.decoder import Decoder
from specdec.drafters.none import NoDraft
from specdec.targets.cached_lm import CachedLM
from specdec.targets.hf import HFTarget
from specdec.targets.taps import Taps, decoder_layers
from tests.targets import zoo

TEXTS = ((3, 5, 7, 11, 13, 2, 9, 17, 40), (9, 8, 7))
NODES, PARENTS = (21, 22, 23, 24), (-1, -1, 0, 1)  # below the anchor
PATHS = ((), (21,), (22,), (21, 23), (22, 24))
FAMILIES = [
    pytest.param(name, marks=pytest.mark.core if name in ("llama", "gpt2") else ())
    for name in ("llama", "gemma3", "mistral", "gpt2", "gpt-neox", "opt", "falcon", "phi", "qwen3-moe", "llama4")
]


def names_of(model: nn.Module) -> tuple[str, ...]:
    return ("embed", *(f"layer:{i}" for i in range(model.config.num_hidden_layers)), "final")


def plain(model: nn.Module, tokens: tuple[int, ...]) -> dict[str, Tensor]:
    """`[tokens, size]` by name, from hooks on every layer of a plain pass, and `logits`."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            found[name] = (output[0] if isinstance(output, tuple) else output)[0]

        return hook

    layers = decoder_layers(model)
    handles = [layer.register_forward_hook(keep(f"layer:{i}")) for i, layer in enumerate(layers)]
    try:
        with torch.no_grad():
            out = model(input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    found["embed"], found["final"] = out.hidden_states[0][0], out.hidden_states[-1][0]
    return {**found, "logits": out.logits[0]}


def own_hooks(model: nn.Module) -> list[Any]:
    """Hooks of specdec anywhere in the model; transformers leaves capturing hooks of its own in place."""
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values()]
    return [hook for hook in hooks if hook.__module__.startswith("specdec")]


def rows_of(texts: tuple[tuple[int, ...], ...]) -> list[Row]:
    return [Row(i, list(text), Sampling(), len(text) + 20, group=i) for i, text in enumerate(texts)]


@pytest.mark.parametrize("name", FAMILIES)
def test_features_of_prompt_and_nodes_are_those_of_a_plain_pass(name: str) -> None:
    model = zoo.shared(name)
    target, names = HFTarget(model), names_of(zoo.shared(name))
    assert target.features(names) == names
    rows = rows_of(TEXTS)
    with torch.inference_mode():
        session = target.begin(rows, Needs(features=names))
        prompt = session.prefill()
        # The prompt is in the cache, last token included: begin one token earlier to score the anchor again.
        shorter = rows_of(tuple(text[:-1] for text in TEXTS))
        session = target.begin(shorter, Needs(features=names))
        session.prefill()
        draft = Draft.point(NODES, PARENTS)
        scores = session.score(Forest.pack(rows, [draft, draft], target.device))
    for row, text in enumerate(TEXTS):
        want = plain(model, text)
        for feature in names:
            got = prompt.features[feature][row]
            assert got.shape[0] == len(text)
            torch.testing.assert_close(got, want[feature], atol=1e-4, rtol=1e-4)
        for node, path in enumerate(PATHS):
            want = plain(model, text + path)
            for feature in names:
                torch.testing.assert_close(scores.features[feature][row, node], want[feature][-1], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(scores.logits[row, node], want["logits"][-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "mistral", "qwen3-moe"])
def test_the_head_turns_final_into_the_logits(name: str) -> None:
    """Families that scale or cap their logits do more after the head; these do not."""
    model = zoo.shared(name)
    target = HFTarget(model)
    with torch.inference_mode():
        prompt = target.begin(rows_of(TEXTS), Needs(features=("final",))).prefill()
        head = target.shared("lm_head")
        assert head is model.get_output_embeddings()
        for row in range(len(TEXTS)):
            torch.testing.assert_close(
                head(prompt.features["final"][row][-1]), prompt.logits[row, 0], atol=1e-5, rtol=1e-5
            )
        embed = target.shared("embed_tokens")
        assert embed is model.get_input_embeddings()
    assert target.shared("norm") is None


def test_the_last_layer_is_raw_and_not_the_normalised_state() -> None:
    model = zoo.shared("llama")
    taps = Taps(("layer:2", "final"))
    with torch.no_grad():
        _, features = taps.run(model, input_ids=torch.tensor([[3, 5, 7]]), use_cache=False)
        torch.testing.assert_close(model.model.norm(features["layer:2"]), features["final"])
    assert not torch.allclose(features["layer:2"], features["final"])


def test_features_arrive_in_chunks_too() -> None:
    model = zoo.shared("gemma3")
    lm, taps = CachedLM(model), Taps(names_of(model))
    with torch.inference_mode():
        _, whole = lm.open(TEXTS).prefill(taps)
        _, pieces = lm.open(TEXTS).prefill(taps, chunk=4)
    for name, rows in whole.items():
        for got, want in zip(pieces[name], rows, strict=True):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_unknown_features_are_not_offered() -> None:
    target = HFTarget(zoo.shared("llama"))
    assert target.features(("layer:3", "layer:-1", "attention", "final", "layer:2", "layer:x")) == ("final", "layer:2")


def test_no_hook_is_left_behind_by_an_exception() -> None:
    model = zoo.make("llama")
    assert not own_hooks(model)

    def fail(*_: Any) -> None:
        raise RuntimeError("stopped half-way")

    handle = model.lm_head.register_forward_pre_hook(fail)
    taps = Taps(("layer:2", "final"))
    with pytest.raises(RuntimeError, match="half-way"):
        taps.run(model, input_ids=torch.tensor([[3, 5, 7]]), use_cache=False)
    handle.remove()
    assert not own_hooks(model)
    taps.run(model, input_ids=torch.tensor([[3, 5, 7]]), use_cache=False)
    assert not own_hooks(model)


def test_two_threads_do_not_mix_their_features() -> None:
    names = ("embed", "layer:0", "layer:2", "final")
    model, taps = zoo.make("llama"), Taps(names)
    texts = [torch.tensor([list(range(start, start + 12))]) for start in range(1, 9)]
    with torch.no_grad():
        want = [taps.run(zoo.shared("llama"), input_ids=ids, use_cache=False)[1] for ids in texts]
    wrong: list[int] = []
    errors: list[BaseException] = []
    gate = threading.Barrier(4)

    def work(mine: int) -> None:
        try:
            gate.wait()
            with torch.no_grad():
                for turn in range(40):
                    at = (mine * 2 + turn) % len(texts)
                    got = taps.run(model, input_ids=texts[at], use_cache=False)[1]
                    wrong.extend(at for name in names if not torch.allclose(got[name], want[at][name], atol=1e-5))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not wrong
    assert not own_hooks(model)


def test_a_drafter_reaches_the_modules_it_asked_for_and_no_others() -> None:
    model = zoo.shared("llama")
    seen: dict[str, nn.Module] = {}

    class Asks(NoDraft):
        needs = Needs(shared=("lm_head",))

        def begin(self, context: Context) -> DraftSession:
            seen.update(context.shared)
            return super().begin(context)

    Decoder(model, drafter=Asks()).generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2)
    assert seen == {"lm_head": model.get_output_embeddings()}
