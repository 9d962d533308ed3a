"""What is drafted, and that the text stays the model's."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from specdec import Decoder
from specdec.core.draft import Kind
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Row, Scores
from specdec.drafters import NoDraft
from specdec.plugins.manager import PluginManager
from specdec.schedulers import Fixed

from specdec_suffix import plugin
from specdec_suffix.drafter import Suffix, example
from specdec_suffix.plugin import SuffixConfig
from specdec_suffix.store import TextStore

PROMPTS = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7], [0, 0, 3, 4, 3, 4, 3, 4], [11, 12, 13, 14, 15, 16, 17, 18]])
MASK = (PROMPTS != 0).long()


def row(tokens, index=0, eos=()):
    return Row(index, list(tokens), Sampling(greedy=True), len(tokens) + 32, eos=frozenset(eos))


def begin(drafter, *rows, vocab=32):
    return drafter.begin(Context(rows, vocab, torch.device("cpu"), Scores(torch.zeros(len(rows), 1, vocab))))


def drafted(drafter, tokens, depth=8, nodes=64, eos=(), vocab=32):
    one = row(tokens, eos=eos)
    (draft,) = begin(drafter, one, vocab=vocab).propose([one], [Budget(depth, nodes)], TorchRng(0))
    assert set(draft.kinds) <= {Kind.POINT} and draft.topology.is_chain
    return list(draft.tokens)


@pytest.mark.parametrize(
    ("tokens", "options", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], {}, [3, 4, 1, 2]),
        ([1, 2, 3, 4, 1, 2], {"max_tokens": 1}, [3]),
        ([1, 2, 3, 4, 1, 2], {"min_match": 3}, []),
        ([1, 2, 3, 4, 5], {"min_match": 1}, []),
        ([7], {"min_match": 1}, []),
        # The longer match decides: after 2 comes 9 more often, after 1, 2 comes 3.
        ([1, 2, 3, 0, 2, 9, 2, 9, 1, 2], {"max_tokens": 1}, [3]),
        # One half of the cases went on so; a share of more than that is not reached.
        ([1, 2, 3, 5, 1, 2, 4, 6, 1, 2], {"min_share": 0.5, "max_tokens": 1}, [4]),
        ([1, 2, 3, 5, 1, 2, 4, 6, 1, 2], {"min_share": 0.51}, []),
    ],
)
def test_what_is_drafted(tokens, options, expected):
    assert drafted(Suffix(**options), tokens) == expected


def test_budgets_and_ends():
    text = [1, 2, 3, 4, 5, 1, 2]
    assert drafted(Suffix(), text, depth=0, nodes=0) == []
    assert drafted(Suffix(), text, depth=2) == [3, 4]
    assert drafted(Suffix(), text, nodes=1) == [3]
    assert drafted(Suffix(), text, eos=[4]) == [3, 4]


def test_a_text_that_grows_is_read_on():
    drafter, one = Suffix(), row([1, 2, 3])
    session = begin(drafter, one)
    for token, expected in [(9, ()), (1, ()), (2, (3, 9, 1)), (3, (9, 1, 2))]:
        one.tokens.commit(token)
        (draft,) = session.propose([one], [Budget(3, 3)], TorchRng(0))
        assert draft.tokens == expected


def test_rows_and_sessions_share_nothing_without_a_store():
    drafter = Suffix()
    one, other = row([1, 2, 3, 1, 2], 0), row([1, 2], 1)
    session, again = begin(drafter, one, other), begin(drafter, other)
    assert [d.tokens for d in session.propose([one, other], [Budget(2, 2)] * 2, TorchRng(0))] == [(3, 1), ()]
    assert [d.tokens for d in session.propose([other], [Budget(2, 2)], TorchRng(0))] == [()]
    assert [d.tokens for d in again.propose([other], [Budget(2, 2)], TorchRng(0))] == [()]


def test_the_longer_match_is_followed_be_it_in_the_store_or_not():
    store = TextStore()
    store.add([4, 1, 2, 20, 21])
    assert drafted(Suffix(store=store), [1, 2]) == [20, 21]
    assert drafted(Suffix(store=store), [1, 2, 3, 1, 2], depth=1) == [3]  # equal matches: the row's own text
    assert drafted(Suffix(store=store), [1, 2, 3, 4, 1, 2], depth=1) == [20]
    assert drafted(Suffix(store=store, min_match=3), [1, 2]) == []


def test_nothing_is_drafted_across_the_end_of_a_stored_text():
    store = TextStore()
    store.add([1, 2, 3])
    store.add([4, 5])
    assert drafted(Suffix(store=store), [1, 2]) == [3]
    assert drafted(Suffix(store=store), [2, 3]) == []


def test_ids_that_the_model_does_not_have_are_not_drafted():
    store = TextStore()
    store.add([1, 2, 3, 500, 4])
    assert drafted(Suffix(store=store), [1, 2]) == [3]


# --- the text is the model's -----------------------------------------------------------------------------


def test_greedy_text_is_that_of_generate(model):
    options = {"attention_mask": MASK, "max_new_tokens": 60, "do_sample": False}
    plain = model.generate(PROMPTS, **options)
    assert len(set(plain[:, 8:].flatten().tolist())) > 5
    out = Decoder(model, Suffix(), scheduler=Fixed(6)).generate(PROMPTS, return_dict_in_generate=True, **options)
    assert torch.equal(out.sequences, plain)
    assert out.stats.accepted > 0 and out.stats.acceptance_rate < 1


@pytest.mark.parametrize("seed", range(4))
def test_sampled_text_of_a_seed_is_that_of_plain_decoding(model, seed):
    options = {"attention_mask": MASK, "max_new_tokens": 40, "do_sample": True, "temperature": 0.7, "seed": seed}
    plain = Decoder(model, NoDraft()).generate(PROMPTS, **options)
    drafter = Suffix(min_match=1, share=True)
    for _ in range(2):  # the second time with a store that holds the text
        out = Decoder(model, drafter, scheduler=Fixed(4)).generate(PROMPTS, return_dict_in_generate=True, **options)
        assert torch.equal(out.sequences, plain)
    assert out.stats.accepted > 40 and len(drafter.store.texts()) == 6


# --- the shared store ------------------------------------------------------------------------------------


def test_outputs_are_kept_when_rows_end_and_make_the_next_call_faster(model, tmp_path):
    path = tmp_path / "store.jsonl"
    decoder = Decoder(model, Suffix(store=path), scheduler=Fixed(6))
    options = {"attention_mask": MASK, "max_new_tokens": 40, "do_sample": False, "return_dict_in_generate": True}
    first = decoder.generate(PROMPTS, **options)
    assert {tuple(text) for text in decoder.drafter.store.texts()} == {tuple(t[8:]) for t in first.sequences.tolist()}
    second = Decoder(model, Suffix(store=path), scheduler=Fixed(6)).generate(PROMPTS, **options)
    assert torch.equal(first.sequences, second.sequences)
    assert second.stats.tokens_per_pass > 1.5 * first.stats.tokens_per_pass


def test_a_row_that_ends_before_the_others_is_kept_at_once():
    drafter = Suffix(share=True)
    one, other = row([1, 2], 0), row([3, 4], 1)
    session = begin(drafter, one, other)
    one.extend([5, 6], None, torch.device("cpu"))
    one.done = True
    session.propose([other], [Budget(2, 2)], TorchRng(0))
    assert drafter.store.texts() == ((5, 6),)
    other.extend([7], None, torch.device("cpu"))
    other.done = True
    del session
    assert drafter.store.texts() == ((5, 6), (7,))


def test_a_stream_that_is_closed_early_keeps_nothing(model):
    drafter = Suffix(share=True)
    stream = Decoder(model, drafter).stream(PROMPTS[:1], max_new_tokens=20, do_sample=False)
    next(stream)
    stream.close()
    del stream
    assert drafter.store.texts() == ()


def test_two_threads_use_one_decoder_and_one_store(model, tmp_path):
    drafter = Suffix(store=tmp_path / "store.jsonl", min_match=1)
    decoder = Decoder(model, drafter, scheduler=Fixed(4))
    options = {"max_new_tokens": 30, "do_sample": False}
    plain = {index: model.generate(PROMPTS[index : index + 1], **options) for index in (0, 2)}
    wrong = []

    def run(index):
        for _ in range(5):
            if not torch.equal(decoder.generate(PROMPTS[index : index + 1], **options), plain[index]):
                wrong.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in plain]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    kept = drafter.store.texts()
    assert len(kept) == 10 and set(kept) == {tuple(ids[0, 8:].tolist()) for ids in plain.values()}
    assert TextStore(tmp_path / "store.jsonl").texts() == kept


# --- the plugin ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"share": True}, {"store": "texts.jsonl", "min_match": 4}, {"max_tokens": 3, "min_share": 0.5}],
)
def test_configs_come_back(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = SuffixConfig(**options)
    drafter = PluginManager.from_modules([plugin]).create("drafter", config)
    assert drafter.config == config
    assert (drafter.store is not None) == bool({"share", "store"} & options.keys())
    assert not list(tmp_path.iterdir()), "making a drafter made a file"
    assert example(8).config.type == "suffix"


def test_listing_the_plugin_imports_no_torch():
    code = "import sys, specdec_suffix.plugin as p; p.specdec_strategies(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
