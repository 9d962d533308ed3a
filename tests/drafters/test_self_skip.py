"""Self-skip: the target's own layers draft over its own cache, and nothing on the model is changed."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from transformers import DynamicCache

from specdec import Decoder
from specdec.core.draft import Kind
from specdec.core.errors import ConfigError, IncompatibleError, UnsupportedModelError
from specdec.drafters import NoDraft, SelfSkip
from specdec.schedulers import Fixed
from specdec.targets.layers import with_layers
from specdec.testing.tabular import TabularTarget
from specdec.verifiers import SMC, Block
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, VOCAB, llama
from tests.targets import zoo

WAYS = {
    "exit after 1": {"exit_layer": 1},
    "exit after 3": {"exit_layer": 3},
    "without the middle": {"skip": (1, 2)},
    "exit and skip": {"exit_layer": 3, "skip": (1,)},
    "half": {},
}
SAMPLE = {"do_sample": True, "max_new_tokens": 20, "temperature": 0.8, "seed": 7}
BATCH = {"attention_mask": RAGGED_MASK, "pad_token_id": 0}


@pytest.fixture(scope="module")
def model():
    return llama(3, layers=4, spread=0.15)


def decoder(model, depth=4, **options):
    return Decoder(model, SelfSkip(**options), scheduler=Fixed(depth))


# --- the text -------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("way", WAYS)
def test_greedy_text_is_that_of_generate(model, way):
    made = decoder(model, **WAYS[way])
    want = model.generate(PROMPT, do_sample=False, max_new_tokens=40)
    assert torch.equal(made.generate(PROMPT, do_sample=False, max_new_tokens=40), want)
    want = model.generate(RAGGED, do_sample=False, max_new_tokens=25, **BATCH)
    assert torch.equal(made.generate(RAGGED, do_sample=False, max_new_tokens=25, **BATCH), want)


@pytest.mark.core
@pytest.mark.parametrize("way", WAYS)
def test_sampled_text_is_that_of_the_seed(model, way):
    plain = Decoder(model, NoDraft())
    made = decoder(model, **WAYS[way])
    assert torch.equal(made.generate(PROMPT, **SAMPLE), plain.generate(PROMPT, **SAMPLE))
    assert torch.equal(made.generate(RAGGED, **SAMPLE, **BATCH), plain.generate(RAGGED, **SAMPLE, **BATCH))
    several = {**SAMPLE, "num_return_sequences": 3}
    assert torch.equal(made.generate(PROMPT, **several), plain.generate(PROMPT, **several))


def test_drawn_guesses_are_the_same_alone_or_in_a_batch(model):
    made = decoder(model, exit_layer=2, draw=True)
    batch = made.generate(RAGGED, **SAMPLE, **BATCH)
    for row in range(5):
        alone = made.generate(
            RAGGED[row : row + 1], attention_mask=RAGGED_MASK[row : row + 1], pad_token_id=0, **SAMPLE
        )
        assert torch.equal(alone[0], batch[row])


@pytest.mark.parametrize("family", sorted({*zoo.CONFIGS} - {"deepseek-v3"}))
def test_families(family):
    model = zoo.make(family)
    prompt = torch.tensor([[(7 * place) % 90 + 2 for place in range(11)]])
    want = model.generate(prompt, do_sample=False, max_new_tokens=16)
    for way in ({"exit_layer": 1}, {"skip": (1,)}):
        out = decoder(model, 3, **way).generate(prompt, do_sample=False, max_new_tokens=16)
        assert torch.equal(out, want), way


@pytest.mark.parametrize("mode", ["fixed-width", "fixed-width:8"])
def test_fixed_width_keeps_its_bits(model, mode):
    options = {"do_sample": False, "max_new_tokens": 30, "return_dict_in_generate": True, "output_logits": True}
    plain = Decoder(model, NoDraft(), exactness=mode).generate(PROMPT, **options)
    out = Decoder(model, SelfSkip(exit_layer=3), scheduler=Fixed(4), exactness=mode).generate(PROMPT, **options)
    assert out.stats.judged and torch.equal(out.sequences, plain.sequences)
    assert all(torch.equal(one, other) for one, other in zip(out.logits, plain.logits, strict=True))


def test_it_proposes_for_particles(model):
    made = Decoder(model, SelfSkip(exit_layer=2, draw=True), SMC(4, threshold=0.9), Fixed(3), allow="consistent")
    out = made.generate(PROMPT, return_dict_in_generate=True, top_k=0, **SAMPLE)
    assert any(out.particles[0].resampled) and out.stats.acceptance_rate == 1.0


# --- the guesses ----------------------------------------------------------------------------------------


def drafts_of(model, prompt=PROMPT, tokens=30, depth=4, call=None, **options):
    """Text, guesses and draft of every round of a generation."""
    seen = []

    class Watched(SelfSkip):
        def begin(self, context):
            session = super().begin(context)
            inner = session.propose

            def propose(rows, budgets, rng):
                (draft,) = inner(rows, budgets, rng)
                seen.append((list(rows[0].tokens), [int(token) for token in draft.tokens], draft))
                return [draft]

            session.propose = propose
            return session

    made = Decoder(model, Watched(**options), scheduler=Fixed(depth))
    made.generate(prompt, **(call or {"do_sample": False}), max_new_tokens=tokens)
    return [entry for entry in seen if entry[1]]


def cut(model, kept):
    """A model of its own that has the layers `kept` of `model`."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(kept)
    other = type(model)(config).eval()
    weights = model.state_dict()
    renamed = {}
    for name, value in weights.items():
        parts = name.split(".")
        if parts[:2] == ["model", "layers"]:
            if int(parts[2]) not in kept:
                continue
            parts[2] = str(kept.index(int(parts[2])))
        renamed[".".join(parts)] = value
    other.load_state_dict(renamed)
    return other


@pytest.mark.core
def test_an_early_exit_guesses_as_a_model_of_its_first_layers_would(model):
    for layers in (1, 2, 3):
        other = cut(model, list(range(layers)))
        found = drafts_of(model, exit_layer=layers)
        assert len(found) > 5
        for text, guess, _ in found:
            want = other.generate(torch.tensor([text]), do_sample=False, max_new_tokens=len(guess))
            assert guess == want[0, len(text) :].tolist()


@pytest.mark.core
@pytest.mark.parametrize("skip", [(1,), (0, 2), (1, 2)])
def test_skipping_guesses_over_the_keys_of_the_whole_model(model, skip):
    kept = [layer for layer in range(4) if layer not in skip]
    other = cut(model, kept)
    for text, guess, _ in drafts_of(model, skip=skip, tokens=20):
        ids = torch.tensor([text])
        with torch.no_grad():
            whole = model(ids[:, :-1], use_cache=True)
            past = getattr(whole, "past_key_values", None) or whole.cache
            cache = DynamicCache()
            for place, layer in enumerate(kept):
                cache.update(past.layers[layer].keys, past.layers[layer].values, place)
            token, want = ids[:, -1:], []
            for _ in guess:
                at = torch.tensor([[cache.get_seq_length()]])
                token = other(token, past_key_values=cache, position_ids=at).logits[:, -1:].argmax(-1)
                want.append(int(token))
        assert guess == want


def test_q_is_the_law_of_the_early_exit(model):
    other = cut(model, [0, 1])
    call = {"do_sample": True, "seed": 3, "temperature": 0.7, "top_k": 9}
    for text, guess, draft in drafts_of(model, exit_layer=2, draw=True, call=call, tokens=15):
        assert set(draft.kinds) == {Kind.IID}
        for node in range(len(guess)):
            with torch.no_grad():
                logits = other(torch.tensor([[*text, *guess[:node]]])).logits[0, -1].double() / 0.7
            logits[logits < logits.topk(9).values[-1]] = -torch.inf
            assert torch.allclose(draft.q[node], logits.softmax(-1), atol=1e-5)


def test_a_layer_that_does_nothing_can_be_left_out():
    model = llama(3, layers=4, spread=0.15)
    with torch.no_grad():
        for layer in (model.model.layers[1], model.model.layers[3]):
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    for options in ({"exit_layer": 3}, {"skip": (1,)}, {"skip": (1, 3)}):
        out = decoder(model, **options).generate(
            PROMPT, do_sample=False, max_new_tokens=40, return_dict_in_generate=True
        )
        assert out.stats.acceptance_rate == 1.0


def test_it_stays_within_the_context(model):
    short = llama(3, layers=2, max_position_embeddings=24)
    out = decoder(short, 8, exit_layer=1).generate(PROMPT, do_sample=False, max_new_tokens=16)
    assert torch.equal(out, short.generate(PROMPT, do_sample=False, max_new_tokens=16))


def test_confidences_are_the_early_exits_own():
    model = llama(3, layers=4, spread=0.15)
    other, found, sessions = cut(model, [0, 1]), 0, []

    class Kept(SelfSkip):
        def begin(self, context):
            sessions.append(super().begin(context))
            return sessions[0]

    made = Decoder(model, Kept(exit_layer=2), scheduler=Fixed(4))
    stream = made.stream(PROMPT, do_sample=False, max_new_tokens=20)
    before: list[int] = []
    for event in stream:
        (outcome,) = event.rows
        if outcome.drafted:
            given = sessions[0].confidences(outcome.row)
            with torch.no_grad():
                law = other(torch.tensor([[*before, *outcome.drafted]])).logits[0].double().softmax(-1)
            own = [law[len(before) - 1 + at, token] for at, token in enumerate(outcome.drafted)]
            assert torch.allclose(given, torch.stack(own).cumprod(0), atol=1e-5)
            found += 1
        before = list(outcome.row.tokens)
    assert found > 3


# --- the cache ------------------------------------------------------------------------------------------


def test_no_prompt_is_run_twice_and_nothing_is_stored_twice(model):
    widths = []
    handle = model.model.layers[0].register_forward_hook(lambda module, args, output: widths.append(args[0].shape[1]))
    try:
        prompt = torch.randint(1, VOCAB, (1, 60), generator=torch.Generator().manual_seed(1))
        sizes = {}
        for name, drafter in (("plain", NoDraft()), ("skip", SelfSkip(exit_layer=2))):
            widths.clear()
            stream = Decoder(model, drafter, scheduler=Fixed(4)).stream(prompt, do_sample=False, max_new_tokens=20)
            for _ in stream:
                pass
            assert widths[0] == 60 and max(widths[1:]) <= 5
            session = stream._generation.session.lm
            assert not any(row.pending for row in session.map.rows)
            sizes[name] = session.nbytes
        assert sizes["skip"] <= sizes["plain"] * 1.1
    finally:
        handle.remove()


def test_the_cache_is_that_of_the_text_alone(model):
    stream = decoder(model, skip=(2,)).stream(PROMPT, do_sample=False, max_new_tokens=24)
    for event in stream:
        (row,) = stream._generation.rows
        if row.done or event.number % 3:
            continue
        cache = stream._generation.session.lm.export(0)
        with torch.no_grad():
            fresh = model(torch.tensor([row.tokens[:-1]]), use_cache=True)
        past = getattr(fresh, "past_key_values", None) or fresh.cache
        for mine, theirs in zip(cache.layers, past.layers, strict=True):
            assert torch.allclose(mine.keys, theirs.keys, atol=1e-5)
            assert torch.allclose(mine.values, theirs.values, atol=1e-5)


# --- the model is left as it was ------------------------------------------------------------------------


def state_of(model):
    """Everything that a draft could change."""
    modules = {
        name: (
            id(module), module.training, sorted(map(id, module._modules.values())), len(module._forward_hooks),
            len(module._forward_pre_hooks), sorted(vars(module)), type(module).forward,
        )
        for name, module in model.named_modules()
    }  # fmt: skip
    weights = {name: (value.data_ptr(), value._version) for name, value in model.state_dict().items()}
    return modules, weights, model.config.to_json_string(), model.generation_config.to_json_string()


@pytest.mark.core
def test_nothing_on_the_model_is_changed(model):
    before = state_of(model)
    for options in (*WAYS.values(), {"exit_layer": 2, "draw": True}):
        decoder(model, **options).generate(PROMPT, max_new_tokens=8, do_sample="draw" in options)
        assert state_of(model) == before
    stream = decoder(model, exit_layer=1).stream(PROMPT, do_sample=False, max_new_tokens=20)
    for _ in range(3):
        next(stream)
        assert state_of(model) == before
    stream.close()
    assert state_of(model) == before


@pytest.mark.core
@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["exception", "interrupt"])
@pytest.mark.parametrize("calls", [2, 3, 5, 8])
def test_interrupted_inside_a_layer(model, error, calls):
    made = decoder(model, exit_layer=2)
    want = model.generate(PROMPT, do_sample=False, max_new_tokens=20)
    before, count = state_of(model), 0

    def interrupt(module, args, output):
        nonlocal count
        count += 1
        if count == calls:
            raise error

    handle = model.model.layers[1].register_forward_hook(interrupt)
    try:
        with pytest.raises(type(error)):
            made.generate(PROMPT, do_sample=False, max_new_tokens=20)
    finally:
        handle.remove()
    assert state_of(model) == before
    assert torch.equal(made.generate(PROMPT, do_sample=False, max_new_tokens=20), want)
    assert torch.equal(model.generate(PROMPT, do_sample=False, max_new_tokens=20), want)


@pytest.mark.core
def test_two_threads(model):
    made = decoder(model, skip=(1,))
    prompts = [PROMPT, PROMPT.flip(1), PROMPT[:, 2:], PROMPT + 3]
    want = [model.generate(prompt, do_sample=False, max_new_tokens=15) for prompt in prompts]
    found: dict[int, torch.Tensor] = {}

    def work(place):
        for _ in range(2):
            found[place] = made.generate(prompts[place], do_sample=False, max_new_tokens=15)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[place], want[place]) for place in range(4))


def test_a_view_shares_everything_and_follows_the_model(model):
    view = with_layers(model, (0, 3))
    assert with_layers(model, (0, 3)) is view
    assert {id(weight) for weight in view.model.parameters()} < {id(weight) for weight in model.parameters()}
    assert view.model.model.layers[1] is model.model.layers[3]
    assert len(model.model.layers) == 4 and model.config.num_hidden_layers == 4
    other = llama(9, layers=3)
    first = with_layers(other, (0,))
    other.lm_head = torch.nn.Linear(32, VOCAB, bias=False)
    assert with_layers(other, (0,)) is not first
    assert with_layers(other, (0,)).model.lm_head is other.lm_head


def test_a_wrapped_model(model):
    peft = pytest.importorskip("peft")
    base = llama(3, layers=4, spread=0.15)
    wrapped = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    wrapped.eval()
    want = wrapped.generate(input_ids=PROMPT, do_sample=False, max_new_tokens=25)
    out = decoder(wrapped, exit_layer=3).generate(PROMPT, do_sample=False, max_new_tokens=25)
    assert torch.equal(out, want)


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"exit_layer": 9}, "exit_layer=9: the target has 4 layers; expected 1 to 3"),
        ({"exit_layer": 4}, "4 of the target's 4 layers are left; expected 1 to 3"),
        ({"skip": (2, 7)}, r"skip=\[7\]: the target has 4 layers; expected layers 0 to 3"),
        ({"exit_layer": 2, "skip": (0, 1)}, "0 of the target's 4 layers are left"),
    ],
    ids=str,
)
def test_layers_that_are_not_there(model, options, text):
    with pytest.raises(IncompatibleError, match=f"drafter 'self-skip': .*{text}"):
        Decoder(model, SelfSkip(**options))


def test_a_target_without_layers():
    target = TabularTarget(lambda prefix: (1, 1), 2)
    with pytest.raises(IncompatibleError, match="drafter 'self-skip' needs the target's layers"):
        Decoder(target, SelfSkip(exit_layer=1), Block())


def test_a_model_whose_forward_was_replaced():
    other = llama(4, layers=2)
    other.forward = other.forward
    with pytest.raises(UnsupportedModelError, match=r"forward of LlamaForCausalLM was replaced.*device map"):
        decoder(other, exit_layer=1).generate(PROMPT, do_sample=False, max_new_tokens=5)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"exit_layer": 0}, r"drafter\.exit_layer: .*greater than or equal to 1"),
        ({"skip": [-1]}, r"drafter\.skip\[0\]: .*greater than or equal to 0"),
        ({"skip": [1, 1]}, "skip names a layer twice"),
        ({"temperature": 0.5}, "temperature: these are about drawn guesses; add draw=True"),
    ],
    ids=str,
)
def test_options_out_of_range(model, options, where):
    with pytest.raises(ConfigError, match=where):
        Decoder.from_config({"drafter": {"type": "self-skip", **options}}, target=model)


def test_a_config_comes_back(model):
    made = decoder(model, exit_layer=3, skip=(1,), draw=True, temperature=0.5)
    config = made.config
    assert config.drafter.model_dump() == {
        "type": "self-skip", "exit_layer": 3, "skip": (1,), "draw": True, "temperature": 0.5, "top_k": None,
        "top_p": None,
    }  # fmt: skip
    again = Decoder.from_config(config.model_dump(mode="json"), target=model)
    assert again.config.drafter == config.drafter
