"""Lookahead: the window against an oracle, the pool against a list, golden pass counts of the simple form."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specdec import Decoder
from specdec.core.draft import Draft
from specdec.core.errors import WindowNarrowedWarning
from specdec.core.sampling import Sampling
from specdec.drafters import Lookahead, NoDraft
from specdec.drafters.ngram_pool import NGramPool, trie
from specdec.drafters.window import Window
from specdec.schedulers import Fixed
from specdec.testing.harness import Spy, first_rounds, generation_of
from specdec.testing.tabular import TabularTarget
from specdec.testing.tiny import TinyTarget
from specdec.verifiers import Greedy
from tests.drafters.lookahead_oracle import lookahead
from tests.drafters.passes import passes
from tests.frontdoor.models import RAGGED, RAGGED_MASK, llama, plain, target

pytestmark = pytest.mark.core

GREEDY = Sampling(greedy=True)
WIDE = Fixed(64, 4096)


# The simple form


@pytest.mark.parametrize(("block", "count"), [(1, 30), (2, 17), (3, 12), (4, 10), (5, 10)])
def test_golden_passes_on_a_cycle_of_three(block, count):
    cycle = {3: 1, 1: 2, 2: 3}
    drafter = Lookahead(form="simple", ngram=3, block_size=block)
    assert passes(lambda text: cycle.get(text[-1], 3), [3], 30, drafter) == count


@pytest.mark.parametrize("other", [0, 2, 5, 7])
def test_golden_passes_on_a_period_of_four(other):
    after = {(5, 8): 2, (8, 2): 8, (2, 8): 5, (8, 5): 8}

    def say(text):
        # What is said after pairs that the text never holds is of no consequence.
        return after.get(tuple(text[-2:]), {5: 8, 2: 8}.get(text[-1], other))

    assert passes(say, [5, 8], 24, NoDraft()) == 24
    assert passes(say, [5, 8], 24, Lookahead(form="simple", ngram=4, block_size=5)) == 8


def test_golden_passes_with_a_model_that_learnt_the_period():
    period = [5, 8, 2, 8]
    ids = torch.tensor([(period * 16)[:60]])
    model = llama(0, vocab=16)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(40):
            loss = model(ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    counts = {}
    for drafter in (NoDraft(), Lookahead(form="simple", ngram=4, block_size=5)):
        out = Decoder(model, drafter, scheduler=Fixed(9)).generate(
            torch.tensor([[5, 8]]), max_new_tokens=24, do_sample=False, return_dict_in_generate=True
        )
        assert out.sequences[0].tolist() == ([5, 8] + [2, 8, 5, 8] * 6)
        counts[drafter.name] = out.stats.target_passes
    assert counts == {"none": 24, "lookahead": 8}


def simple(say, prompt, new, block, ngram):
    """Passes of the simple form, written from its description."""
    text, carry, count = [*prompt, say(prompt)], [], 1
    while len(text) - len(prompt) < new:
        pool = {}
        for at in range(len(text) - ngram + 1):
            pool[text[at]] = text[at + 1 : at + ngram]
        guess = (carry + [text[-1]] * block)[: block - 1]
        known = pool.get(text[-1], [])[: block - 1]
        guess[: len(known)] = known
        run = guess[: new - (len(text) - len(prompt)) - 1]
        refined = [say([*text, *run[:at]]) for at in range(len(run) + 1)]
        right = next((at for at, token in enumerate(run) if token != refined[at]), len(run))
        text += [*run[:right], refined[right]]
        carry = refined[right + 1 :]
        count += 1
    return count


@settings(max_examples=60)
@given(
    entries=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    reach=st.integers(0, 2),
    block=st.integers(1, 6),
    ngram=st.integers(2, 5),
    new=st.integers(1, 25),
)
def test_passes_of_the_simple_form_are_those_of_its_description(entries, reach, block, ngram, new):
    say = rule_of(entries, reach)
    drafter = Lookahead(form="simple", ngram=ngram, block_size=block)
    assert passes(say, [1, 3, 1], new, drafter) == simple(say, [1, 3, 1], new, block, ngram)


def rule_of(entries, reach):
    """A text rule that looks at the last `reach` tokens."""

    def say(text):
        return entries[sum((at + 1) * token for at, token in enumerate(text[len(text) - reach :])) % len(entries)]

    return say


# The window


def drafts_of(say, prompt, rounds, drafter, vocab=10):
    """Text and drafts of so many rounds after the prompt's pass."""

    def table(prefix):
        law = [0.0] * vocab
        law[say(list(prefix))] = 1.0
        return law

    spy = Spy(drafter, lenient=False)
    generation = generation_of(
        TabularTarget(table, vocab), spy, Greedy(), WIDE, [tuple(prompt)], 10_000, sampling=GREEDY
    )
    first_rounds(generation, rounds)
    return list(generation.rows[0].tokens), [call.returned[0] for call in spy.calls]


def split(draft, height):
    """The guesses of a draft as paths, and the rows of its window."""
    shape, tokens = draft.topology, draft.tokens
    judged = [node for node in range(len(tokens)) if node not in draft.scratch]
    inner = {draft.parents[node] for node in judged}
    guesses = [tuple(tokens[at - 1] for at in shape.paths[node + 1]) for node in judged if node not in inner]
    window = [tokens[node] for node in sorted(draft.scratch)]
    columns = (len(window) + 1) // height
    rows = [window[: columns - 1], *(window[at : at + columns] for at in range(columns - 1, len(window), columns))]
    return guesses, rows


@settings(max_examples=60)
@given(
    entries=st.lists(st.integers(0, 5), min_size=11, max_size=11),
    reach=st.integers(0, 3),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    width=st.integers(1, 6),
    ngram=st.integers(2, 5),
    guesses=st.integers(1, 4),
    from_prompt=st.booleans(),
)
def test_window_and_guesses_are_those_of_the_oracle(entries, reach, prompt, width, ngram, guesses, from_prompt):
    say, rounds = rule_of(entries, reach), 14
    fill = prompt[0]
    text, log = lookahead(say, prompt, rounds, width, ngram, guesses, fill, from_prompt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specdec.drafters.lookahead.filling", lambda kind, row: lambda count: [fill] * count)
        drafter = Lookahead(width, ngram, guesses, prompt=from_prompt)
        got, drafts = drafts_of(say, prompt, rounds, drafter)
    assert got == text
    assert len(drafts) == rounds
    for draft, (tried, rows) in zip(drafts, log, strict=True):
        found, window = split(draft, len(rows))
        assert window == rows
        assert set(found) == set(tried)
        assert found[:1] == tried[:1]  # the latest stands first, as a chain


@pytest.mark.parametrize(("width", "ngram", "guesses"), [(1, 2, 1), (5, 3, 4), (7, 5, 7), (3, 6, 2)])
def test_every_node_sees_the_text_and_its_own_history_only(width, ngram, guesses):
    tiny = TinyTarget(9)
    spy = Spy(Lookahead(width, ngram, guesses, prompt=True), lenient=False)
    prompt = (1, 2, 3, 1, 2, 4, 1, 2, 3)
    generation = generation_of(tiny, spy, Greedy(), WIDE, [prompt], 60, sampling=GREEDY)
    checked = 0
    for event in generation.rounds():
        (outcome,) = event.rows
        before = generation.rows[0].tokens[: len(generation.rows[0].tokens) - len(outcome.tokens)]
        for node, path in enumerate(outcome.draft.topology.paths):
            history = (*before, *(outcome.drafted[at - 1] for at in path))
            want = tiny.logits(history)
            assert torch.allclose(outcome.scores.logits[0, node], want, atol=1e-9)
            checked += node > 0
        if event.number == ngram + 3:
            break
    assert checked >= width * (ngram - 2)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True, "seed": 4, "temperature": 0.8}], ids=str)
def test_a_poisoned_window_changes_no_output(monkeypatch, options):
    call = {"attention_mask": RAGGED_MASK, "max_new_tokens": 40, **options}
    want = Decoder(target(), NoDraft()).generate(RAGGED, **call)
    generator = torch.Generator().manual_seed(0)
    clean, ran = Window.forest, []

    def poisoned(self, anchor, columns, first, fill):
        self.rows = [[int(torch.randint(64, (), generator=generator)) for _ in row] for row in self.rows]
        tokens, parents = clean(self, anchor, columns, first, fill)
        ran.append(len(tokens))
        return tokens, parents

    monkeypatch.setattr(Window, "forest", poisoned)
    got = Decoder(target(), Lookahead(6, 4, 5), scheduler=Fixed(6)).generate(RAGGED, **call)
    assert torch.equal(got, want)
    assert max(ran) >= 6 * 3 - 1


def test_the_window_finds_n_grams_that_the_text_has_not_held():
    # Digits count up, so within ten of them nothing repeats; but the window begins with 7, 5 and 3 of the prompt, and
    # what it says after them is known when the text comes there.
    counts = [passes(lambda text: (text[-1] + 1) % 10, [7, 5, 3, 0], 9, Lookahead(width, 3, 4)) for width in (1, 8)]
    assert counts[1] < counts[0] <= 9


@pytest.mark.parametrize("nodes", [1, 2, 5, 9, 16, 40])
@pytest.mark.parametrize("depth", [1, 2, 4, 9])
def test_any_budget_is_kept_and_small_ones_leave_room_for_window_and_guesses(depth, nodes):
    drafter = Lookahead(6, 4, 5, prompt=True)
    spy = Spy(drafter, lenient=False)
    say = rule_of([1, 2, 0, 3, 2], 2)
    generation = generation_of(
        TabularTarget(lambda prefix: [float(token == say(list(prefix))) for token in range(4)], 4),
        spy, Greedy(), Fixed(depth, nodes), [(0, 1, 2, 3, 0, 1, 2)], 40, sampling=GREEDY,
    )  # fmt: skip
    first_rounds(generation, 30)
    drafts = [call.returned[0] for call in spy.calls]
    assert all(len(draft) <= nodes and draft.topology.judged_depth <= depth for draft in drafts)
    if nodes >= 9:
        assert any(draft.scratch and len(draft.scratch) < len(draft) for draft in drafts)


def test_rows_near_the_end_of_the_context_are_said_once_to_have_a_narrower_window():
    model = llama(3, max_position_embeddings=40)
    ids = (torch.arange(20)[None] * 7) % 50
    drafter = Lookahead(7, 5, 3)
    with pytest.warns(
        WindowNarrowedWarning, match=r"window=7 and ngram=5 look \d+ tokens ahead.*context of 40"
    ) as told:
        for _ in range(2):
            out = Decoder(model, drafter, scheduler=Fixed(6)).generate(ids, max_length=40, do_sample=False)
            assert torch.equal(out, plain(ids, model, max_length=40))
    assert len([one for one in told if issubclass(one.category, WindowNarrowedWarning)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", WindowNarrowedWarning)
        Decoder(model, Lookahead(7, 5, 3), scheduler=Fixed(6)).generate(ids, max_new_tokens=4, do_sample=False)


def test_a_learned_table_of_positions_is_never_read_past_its_end():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=None,
        initializer_range=0.3, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).eval()
    ids = torch.tensor([[5, 6, 7]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WindowNarrowedWarning)
        out = Decoder(model, Lookahead(12, 5, 3), scheduler=Fixed(8)).generate(ids, max_length=32, do_sample=False)
    assert torch.equal(out, plain(ids, model, max_length=32))


def test_ends_are_no_guesses():
    window = Window(4, 3)
    fill = lambda count: [9] * count  # noqa: E731
    window.forest(1, window.columns, 0, fill)
    window.step([5, 2, 6, 7, 5], 1, frozenset({2}))
    tokens, _ = window.forest(1, 4, 0, fill)
    assert 2 not in tokens and len(tokens) == 7


def test_options_out_of_range_name_the_field_and_the_range():
    for field, value, limit in (
        ("window", 0, 1), ("ngram", 1, 2), ("guesses", 0, 1), ("block_size", 0, 1), ("window", 257, 256),
        ("ngram", 65, 64), ("guesses", 300, 256),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"{field}[\s\S]*than or equal to {limit}"):
            Lookahead(**{field: value})
    with pytest.raises(ValueError, match="form"):
        Lookahead(form="wide")


# Pool and trie


class PoolMachine(RuleBasedStateMachine):
    """The pool beside plain lists, the least recently added going first."""

    def __init__(self):
        super().__init__()
        self.pool, self.lists = NGramPool(2, 3), {}

    @rule(key=st.integers(0, 2), value=st.tuples(st.integers(0, 2), st.integers(0, 2)))
    def add(self, key, value):
        self.pool.add(key, list(value))
        held = [entry for entry in self.lists.get(key, []) if entry != value]
        self.lists[key] = [*held, value][-3:]

    @invariant()
    def same(self):
        for key in range(3):
            assert self.pool.get(key) == self.lists.get(key, [])[::-1]
        assert len(self.pool) == sum(map(len, self.lists.values()))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=30, stateful_step_count=30)


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(1, 5), max_size=10), st.integers(0, 4))
def test_a_growing_text_is_read_once_and_whole(text, cuts, start):
    pool, whole, end = NGramPool(2, 100), {}, 0
    for cut in [*cuts, len(text)]:
        end = min(len(text), end + cut)
        pool.read(text[:end], start)
    for at in range(start, len(text) - 2):
        whole.setdefault(text[at], {}).pop(value := tuple(text[at + 1 : at + 3]), None)
        whole[text[at]][value] = None
    assert all(pool.get(key) == list(whole.get(key, {}))[::-1] for key in range(3))


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=6), st.integers(0, 5), st.integers(0, 12))
def test_a_trie_holds_every_chain_that_fits_once(chains, depth, nodes):
    tokens, parents = trie(chains, depth, nodes)
    shape = Draft.point(tokens, parents).topology
    paths = {tuple(tokens[at - 1] for at in path) for path in shape.paths[1:]}
    wanted = {tuple(chain[: at + 1]) for chain in chains for at in range(min(depth, len(chain)))}
    assert len(paths) == len(tokens) <= nodes and paths <= wanted
    assert len(tokens) == min(nodes, len(wanted)) or nodes < len(wanted)
    if chains:
        first = chains[0][: min(depth, nodes)]
        assert tokens[: len(first)] == first and parents[: len(first)] == list(range(-1, len(first) - 1))
