"""Nothing is changed on the user's models and configs, whatever happens; threads do not disturb each other."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch
from transformers import LogitsProcessorList

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.drafters import DraftModel, NoDraft, PromptLookup
from specdec.schedulers import Fixed
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, VOCAB, Saying, llama, noisy, plain


def snapshot(model):
    """Everything on a model that a call could leave changed."""
    hooks = [
        (name, kind, len(getattr(module, kind)))
        for name, module in model.named_modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    ]
    return {
        "config": copy.deepcopy(model.config.to_dict()),
        "generation": copy.deepcopy(model.generation_config.to_dict()),
        "modes": [module.training for module in model.modules()],
        "grads": [weights.requires_grad for weights in model.parameters()],
        "weights": [weights.sum().item() for weights in model.parameters()],
        "buffers": [buffer.double().sum().item() for buffer in model.buffers()],
        "attributes": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "forwards": [module.forward.__func__ for module in model.modules()],
        "hooks": hooks,
        "attention": model.config._attn_implementation,
    }


class Boom(Exception):
    pass


def once(after, error):
    """A function that raises at its `after`-th call."""
    calls = []

    def maybe(*args, **kwargs):
        calls.append(1)
        if len(calls) == after:
            raise error("on purpose")

    return maybe


@pytest.mark.core
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
@pytest.mark.parametrize(
    "where", ["nowhere", "drafter", "processor", "streamer", "criterion", "target", "draft model", "closed", "sampled"]
)
def test_models_are_left_as_they_were(where, error):
    model = llama(0)
    other = noisy(model)
    other.train()  # left in training mode: the draft model is the user's
    model.generation_config.update(repetition_penalty=1.1)
    drafting = DraftModel(other)
    before = snapshot(model), snapshot(other)
    call = {"max_new_tokens": 20, "do_sample": where == "sampled"}
    maybe = once(4, error)
    handle = None
    if where == "drafter":
        drafting = Saying(lambda row, budget: maybe() or Draft.empty())
    speculating = Decoder(model, drafting, scheduler=Fixed(3))
    before = snapshot(model), snapshot(other)
    if where == "processor":
        call["logits_processor"] = LogitsProcessorList([lambda ids, scores: maybe() or scores])
    elif where == "streamer":
        call["streamer"] = type("S", (), {"put": lambda self, value: maybe(), "end": lambda self: None})()
    elif where == "criterion":
        call["stopping_criteria"] = [lambda ids, scores, **kw: maybe() or False]
    elif where in ("target", "draft model"):
        handle = (model if where == "target" else other).lm_head.register_forward_hook(lambda *a: maybe())
    if where == "closed":
        stream = speculating.stream(PROMPT, **call)
        next(stream), next(stream), next(stream)
        stream.close()
    elif where in ("nowhere", "sampled"):
        speculating.generate(PROMPT, **call)
        speculating.generate(RAGGED, attention_mask=RAGGED_MASK, **call)
    else:
        with pytest.raises(error, match="on purpose"):
            speculating.generate(PROMPT, **call)
    if handle is not None:
        handle.remove()
    assert (snapshot(model), snapshot(other)) == before
    out = speculating.generate(PROMPT, max_new_tokens=20, do_sample=False)
    assert torch.equal(out, model.generate(PROMPT, max_new_tokens=20, do_sample=False))


@pytest.mark.parametrize("options", [{}, {"stop_strings": None}, {"cache_implementation": "static"}], ids=str)
def test_the_call_changes_none_of_its_arguments(options):
    model = llama(0)
    speculating = Decoder(model, PromptLookup())
    ids, mask, kwargs = RAGGED.clone(), RAGGED_MASK.clone(), dict(options)
    config = copy.deepcopy(model.generation_config)
    config.update(max_new_tokens=6, do_sample=False)
    before = config.to_dict()
    speculating.generate(ids, generation_config=config, attention_mask=mask, **kwargs)
    assert torch.equal(ids, RAGGED) and torch.equal(mask, RAGGED_MASK)
    assert config.to_dict() == before and kwargs == options
    assert model.generation_config.max_new_tokens is None


@pytest.mark.core
@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "draft-model"])
def test_threads_on_one_decoder(drafter):
    model = llama(0)
    made = {"none": NoDraft, "prompt-lookup": PromptLookup, "draft-model": lambda: DraftModel(noisy(model))}[drafter]()
    speculating = Decoder(model, made)
    prompts = [torch.tensor([[7 * i + j + 1 for j in range(3 + i)]]) % (VOCAB - 1) + 1 for i in range(4)]
    expected = [plain(ids, model, max_new_tokens=25) for ids in prompts]
    sampled = [
        Decoder(model, made, scheduler=Fixed(3)).generate(ids, max_new_tokens=15, do_sample=True, seed=i)
        for i, ids in enumerate(prompts)
    ]
    shared = Decoder(model, made, scheduler=Fixed(3))
    wrong, start = [], threading.Barrier(4)

    def work(index):
        torch.set_num_threads(1)
        start.wait()
        for _ in range(4):
            out = speculating.generate(prompts[index], max_new_tokens=25, do_sample=False)
            if not torch.equal(out, expected[index]):
                wrong.append((index, "greedy"))
            out = shared.generate(prompts[index], max_new_tokens=15, do_sample=True, seed=index)
            if not torch.equal(out, sampled[index]):
                wrong.append((index, "sampled"))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert wrong == []


def test_streams_of_one_decoder_may_be_interleaved():
    model = llama(0)
    for drafter in (PromptLookup(), DraftModel(noisy(model))):
        speculating = Decoder(model, drafter)
        prompts = [PROMPT, RAGGED[2:3], torch.tensor([[40, 41]])]
        streams = [speculating.stream(ids, max_new_tokens=20, do_sample=False) for ids in prompts]
        left = list(streams)
        while left:
            left = [stream for stream in left if next(stream, None) is not None]
        for ids, stream in zip(prompts, streams, strict=True):
            assert torch.equal(stream.result(), plain(ids, model, max_new_tokens=20))


def tensor_bytes():
    gc.collect()
    seen = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):  # not isinstance, which runs code of lazy modules
            storage = thing.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "draft-model"])
def test_twenty_calls_leave_no_growth(drafter):
    model = llama(0)
    made = {"none": NoDraft, "prompt-lookup": PromptLookup, "draft-model": lambda: DraftModel(noisy(model))}[drafter]()
    speculating = Decoder(model, made, scheduler=Fixed(3))

    def call(number):
        ids = torch.arange(1, 9 + number % 5)[None]
        speculating.generate(ids, max_new_tokens=15, do_sample=bool(number % 2), output_scores=True, seed=number)
        speculating.stream(ids, max_new_tokens=15).close()

    for number in range(10):
        call(number)
    first = tensor_bytes()
    for number in range(20):
        call(number)
    # Tables of forests seen before are kept for reuse, bounded by a count; they are small and do not grow here.
    assert tensor_bytes() <= first + 4096


def test_a_failed_call_leaves_no_tensors():
    model = llama(0)
    speculating = Decoder(model, Saying(lambda row, budget: 1 / (row.rounds - 3)))

    def call():
        with pytest.raises((ZeroDivisionError, TypeError)):
            speculating.generate(PROMPT, max_new_tokens=15)

    call()
    first = tensor_bytes()
    for _ in range(5):
        call()
    assert tensor_bytes() <= first + 4096
