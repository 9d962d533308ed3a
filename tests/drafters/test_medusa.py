"""Medusa: what it drafts on which tree, that text is the target's whatever the heads say, and what training brings."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from specdec import Decoder
from specdec.core.draft import Draft, Kind
from specdec.core.errors import CheckpointError, ConfigError
from specdec.core.rng import TorchRng
from specdec.core.sampling import Sampling
from specdec.core.state import Budget, Context, Outcome, Row, Scores
from specdec.drafters import Medusa, NoDraft
from specdec.drafters.medusa_config import MedusaConfig
from specdec.heads import MedusaHead
from specdec.heads.trees import PUBLISHED, StaticTree, cartesian, search
from specdec.schedulers import Fixed
from specdec.testing import DrafterSuite
from tests.frontdoor.models import PROMPT, RAGGED, RAGGED_MASK, VOCAB, cyclic, encode, plain, target

CHAIN = cartesian([1, 1, 1, 1])
BATCH = {"attention_mask": RAGGED_MASK, "pad_token_id": 0}


class TestMedusa(DrafterSuite):
    def make(self, vocab_size):
        from specdec.drafters.medusa import example

        return example(vocab_size)


def heads(model=None, spread=0.4, **options):
    """Heads that guess something, and mostly wrongly."""
    head = MedusaHead.for_target(target() if model is None else model, **{"heads": 4, **options})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        for weights in (head.weight, head.bias):
            weights.normal_(std=spread)
    return head


def gpt2():
    config = GPT2Config(vocab_size=VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return GPT2LMHeadModel(config).eval()


MODELS = {"llama": target, "gpt2": gpt2}
TREES = {"chain": CHAIN, "tree": "mc_sim_7b_63"}


# --- what is drafted


def context(rows, states):
    scores = Scores(torch.zeros(len(rows), 1, VOCAB), {"final": states})
    shared = {"lm_head": target().get_output_embeddings()}
    return Context(rows, VOCAB, torch.device("cpu"), scores, shared)


def start(drafter, lengths=(3,)):
    rows = tuple(Row(i, list(range(1, n + 1)), Sampling(), 60, group=i) for i, n in enumerate(lengths))
    states = [torch.randn(n, 32) for n in lengths]
    session = drafter.begin(context(rows, states))
    scores = Scores(torch.zeros(len(rows), 1, VOCAB), {"final": states})
    outcomes = []
    for row in rows:
        row.tokens.commit(30)
        row.rounds = 1
        outcomes.append(Outcome(row, Draft.empty(), (), (), (30,), scores, row.index))
    session.observe(outcomes)
    return session, rows, states


def propose(session, rows, *budgets):
    return session.propose(rows, [Budget(*b) if isinstance(b, tuple) else b for b in budgets], TorchRng(0))


def expected_tokens(head, state, paths):
    """By hand: the guess of every head at the rank of every node."""
    with torch.no_grad():
        order = head.logits(head(state)).argsort(-1, descending=True)  # [heads, vocab]
        return [int(head.to_target(order[len(path) - 1, path[-1]])) for path in paths]


@pytest.mark.core
@pytest.mark.parametrize("draft_ids", [None, range(0, VOCAB, 2)], ids=["all", "trimmed"])
def test_every_node_is_its_heads_guess_of_its_rank(draft_ids):
    head = heads(draft_ids=draft_ids)
    drafter = Medusa(head, tree="mc_sim_7b_63")
    session, rows, states = start(drafter, (3, 5))
    whole, part = propose(session, rows, (9, 63), (3, 20))
    for draft, state, tree in [
        (whole, states[0][-1], drafter.tree),
        (part, states[1][-1], drafter.tree.cut(3, 20)),
    ]:
        assert draft.tokens.tolist() == expected_tokens(head, state, tree.paths)
        assert draft.parents == tree.parents and set(draft.kinds) == {Kind.POINT} and draft.q is None
    assert len(whole) == 63 and len(part) == 20


def test_the_state_is_that_of_the_accepted_leaf():
    head = heads()
    session, rows, _ = start(Medusa(head, tree="eagle1_25"), (3, 4))
    drafts = propose(session, rows, (4, 12), (4, 12))
    final = torch.randn(2, 13, 32)
    scores = Scores(torch.zeros(2, 13, VOCAB), {"final": final})
    paths = [(1, 5), ()]
    outcomes = []
    for at in (1, 0):  # rows may stand anywhere in the pass
        row, path = rows[at], paths[at]
        ids = drafts[at].tokens.tolist()
        emitted = (*(ids[node - 1] for node in path), 7)
        for token in emitted:
            row.tokens.commit(token)
        outcomes.append(Outcome(row, drafts[at], tuple(ids), path, emitted, scores, index=1 - at))
    session.observe(outcomes)
    again = propose(session, rows, (4, 12), (4, 12))
    tree = PUBLISHED["eagle1_25"].cut(4, 12)
    assert again[0].tokens.tolist() == expected_tokens(head, final[1, 5], tree.paths)
    assert again[1].tokens.tolist() == expected_tokens(head, final[0, 0], tree.paths)


def test_a_row_that_stood_still_drafts_the_same_again():
    session, rows, _ = start(Medusa(heads(), tree=CHAIN))
    (first,) = propose(session, rows, (4, 4))
    scores = Scores(torch.zeros(1, 5, VOCAB), {"final": torch.randn(1, 5, 32)})
    session.observe([Outcome(rows[0], first, tuple(first.tokens.tolist()), (), (), scores, 0)])
    (again,) = propose(session, rows, (4, 4))
    assert torch.equal(first.tokens, again.tokens)


def test_a_row_that_goes_on_from_another_drafts_what_that_one_would():
    session, rows, _ = start(Medusa(heads(), tree=CHAIN), (3, 4, 5))
    first, second, third = (draft.tokens.tolist() for draft in propose(session, rows, *[(4, 4)] * 3))
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    session.follow({0: 1, 1: 0, 2: 1})
    assert [draft.tokens.tolist() for draft in propose(session, rows, *[(4, 4)] * 3)] == [second, first, second]


def test_confidences_are_products_of_the_heads_probabilities():
    head = heads(draft_ids=range(30))
    drafter = Medusa(head, tree="eagle1_25")
    session, rows, states = start(drafter, (3, 4))
    assert session.confidences(rows[0]) is None
    propose(session, rows, (4, 12), (0, 0))
    found = session.confidences(rows[0])
    assert session.confidences(rows[1]) is None
    with torch.no_grad():
        law = head.logits(head(states[0][-1])).softmax(-1).sort(-1, descending=True).values  # [heads, vocab]
    for chance, path in zip(found.tolist(), PUBLISHED["eagle1_25"].cut(4, 12).paths, strict=True):
        expected = 1.0
        for depth, rank in enumerate(path):
            expected *= float(law[depth, rank])
        assert chance == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("depth", "nodes", "count"), [(0, 0, 0), (3, 0, 0), (0, 3, 0), (1, 63, 10), (2, 7, 7)])
def test_budgets(depth, nodes, count):
    session, rows, _ = start(Medusa(heads()))
    (draft,) = propose(session, rows, (depth, nodes))
    assert len(draft) == count and draft.topology.depth <= depth


def test_only_what_pays_is_drafted_where_values_were_measured():
    tree = search([[0.5, 0.3], [0.4, 0.1], [0.2]], 9)  # values .5 .3 .2 .12 .05 .04 ...
    session, rows, _ = start(Medusa(heads(), tree=tree))

    def size(cost, rate, nodes=9):
        (draft,) = propose(session, rows, Budget(4, nodes, cost, rate))
        return len(draft)

    assert size(lambda n: 1.0 + 0.15 * n, 1.0) == 3
    assert size(lambda n: 1.0 + 0.15 * n, 0.5) == sum(value > 0.075 for value in tree.values)
    assert size(lambda n: 1.0 + 0.15 * n, 1.0, nodes=2) == 2
    assert size(lambda n: 1.0 + n, 1.0) == 1  # that there is a draft is decided already
    assert size(lambda n: 1.0, 1.0) == len(tree)  # free
    # Neither a step that only many nodes together pay nor a dear one behind it is missed.
    assert size(lambda n: 1.0 + 0.6 * (n > 0) + 0.5 * (n > 4), 1.0) == 4
    (draft,) = propose(session, rows, Budget(4, 9))
    assert len(draft) == len(tree)  # nothing is known of costs


def test_a_row_in_which_the_values_prove_too_high_drafts_less():
    tree = search([[0.5, 0.3], [0.4, 0.1], [0.2]], 9)
    session, rows, _ = start(Medusa(heads(), tree=tree))
    budget = Budget(4, 9, lambda n: 1.0 + 0.1 * n, 1.0)
    sizes = []
    for _ in range(12):
        (draft,) = propose(session, rows, budget)
        sizes.append(len(draft))
        scores = Scores(torch.zeros(1, 9, VOCAB), {"final": torch.randn(1, 9, 32)})
        rows[0].tokens.commit(1)
        session.observe([Outcome(rows[0], draft, tuple(draft.tokens.tolist()), (), (1,), scores, 0)])
    assert sizes[0] == 4 and sizes[-1] < 3 and sizes == sorted(sizes, reverse=True)


# --- trees


def test_trees_by_name_file_list_and_checkpoint(tmp_path):
    head = heads()
    assert Medusa(head).tree == PUBLISHED["mc_sim_7b_63"]
    assert Medusa(heads(heads=2)).tree == PUBLISHED["mc_sim_7b_63"].cut(2, 63)
    assert Medusa(head, tree="eagle1_25").tree == PUBLISHED["eagle1_25"].cut(4, 25)
    assert Medusa(head, tree=[[0], [0, 1]]).tree.paths == ((0,), (0, 1))
    assert Medusa(head, tree=CHAIN).tree == CHAIN
    head.tree = search([[0.5, 0.2], [0.3, 0.1]], 5)
    assert Medusa(head).tree == head.tree
    head.save(tmp_path)
    assert Medusa(tmp_path).tree == head.tree
    assert Medusa(tmp_path, tree=str(tmp_path / "tree.json")).tree == head.tree
    assert Medusa(tmp_path, tree="eagle1_25").tree == PUBLISHED["eagle1_25"].cut(4, 25)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ("nothing", "there is no tree 'nothing'; expected mc_sim_7b_63"),
        ([[0, 1]], "tree: path"),
        ([[9]], "no path fits"),
    ],
)
def test_trees_that_are_none(tree, said):
    with pytest.raises(ConfigError, match=said):
        Medusa(heads(draft_ids=[1, 2, 3]), tree=tree)


def test_what_a_drafter_declares_follows_from_head_and_tree():
    assert Medusa(heads()).branching and not Medusa(heads(), tree=CHAIN).branching
    assert Medusa(heads()).needs.shared == ("lm_head",) and Medusa(heads(own_lm_head=True)).needs.shared == ()
    assert Medusa(heads()).needs.features == ("final",)


def test_configs_build_what_they_say(tmp_path):
    heads().save(tmp_path)
    for config in [
        MedusaConfig(checkpoint=str(tmp_path)),
        MedusaConfig(checkpoint=str(tmp_path), tree="eagle1_25"),
        MedusaConfig(checkpoint=str(tmp_path), tree=((0,), (0, 0), (1,))),
    ]:
        made = Medusa.from_config(config)
        assert made.config == config and MedusaConfig.model_validate_json(config.model_dump_json()) == config
    assert Medusa(tmp_path, tree=CHAIN).config == MedusaConfig(checkpoint=str(tmp_path), tree=CHAIN.paths)
    whole = Decoder.from_config({"drafter": {"type": "medusa", "checkpoint": str(tmp_path)}}, target=target())
    assert torch.equal(whole.generate(PROMPT, max_new_tokens=9, do_sample=False), plain(max_new_tokens=9))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Medusa(tmp_path.parent)


# --- the text is the target's


def prompts(batch):
    return (RAGGED, BATCH) if batch else (PROMPT, {})


@pytest.mark.core
@pytest.mark.parametrize("batch", [False, True], ids=["one", "ragged"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("model", MODELS)
def test_greedy_text_is_that_of_generate(model, tree, batch):
    made = MODELS[model]()
    ids, options = prompts(batch)
    expected = made.generate(ids, max_new_tokens=24, do_sample=False, **options)
    for head in (heads(made), MedusaHead.for_target(made, own_lm_head=True), heads(made, draft_ids=range(40))):
        speculating = Decoder(made, Medusa(head, tree=TREES[tree]), scheduler=Fixed(4, 40))
        assert torch.equal(speculating.generate(ids, max_new_tokens=24, do_sample=False, **options), expected)
    adaptive = Decoder(made, Medusa(heads(made), tree=TREES[tree]))
    assert torch.equal(adaptive.generate(ids, max_new_tokens=24, do_sample=False, **options), expected)


@pytest.mark.parametrize("batch", [False, True], ids=["one", "ragged"])
@pytest.mark.parametrize("model", MODELS)
def test_sampled_text_is_that_of_the_seed_without_drafts(model, batch):
    made = MODELS[model]()
    ids, options = prompts(batch)
    given = {"do_sample": True, "temperature": 0.8, "top_k": 12, "max_new_tokens": 20, **options}
    for seed in (1, 2):
        expected = Decoder(made, NoDraft()).generate(ids, seed=seed, **given)
        for tree in TREES.values():
            out = Decoder(made, Medusa(heads(made), tree=tree), scheduler=Fixed(4, 40)).generate(
                ids, seed=seed, **given
            )
            assert torch.equal(out, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 0.0])
@pytest.mark.parametrize("own", [False, True])
def test_garbage_heads_change_speed_only(value, own):
    head = heads(own_lm_head=own)
    with torch.no_grad():
        (head.lm_head if own else head.weight).fill_(value)
    speculating = Decoder(target(), Medusa(head), scheduler=Fixed(4, 40))
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=20, do_sample=False), plain(max_new_tokens=20))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_head_of_another_dtype_than_the_target_serves_it(dtype):
    head = heads().to(dtype)
    speculating = Decoder(target(), Medusa(head), scheduler=Fixed(4, 40))
    assert torch.equal(speculating.generate(PROMPT, max_new_tokens=20, do_sample=False), plain(max_new_tokens=20))
    assert head.dtype == dtype


def test_bits_of_fixed_width():
    given = {"max_new_tokens": 30, "do_sample": False}
    expected = Decoder(target(), NoDraft(), exactness="fixed-width").generate(PROMPT, **given)
    out = Decoder(target(), Medusa(learned(target())), exactness="fixed-width", scheduler=Fixed(4, 15)).generate(
        PROMPT, **given
    )
    assert torch.equal(out, expected)


# --- what training brings


def learned(model, ids=PROMPT, new=40, steps=150, **options):
    """Heads that have learnt the target's greedy text after one prompt."""
    text = model.generate(ids, max_new_tokens=new, do_sample=False)
    head = MedusaHead.for_target(model, heads=4, **options)
    with torch.no_grad():
        states = model(text, output_hidden_states=True).hidden_states[-1][0]
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(steps):
        logits = head.logits(head(states))  # [positions, heads, vocab]
        loss = sum(
            torch.nn.functional.cross_entropy(logits[: -2 - k, k], text[0, 2 + k :]) for k in range(head.config.heads)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.zero_grad()  # other tests share the model, and its LM head was on the way
    return head


@pytest.mark.parametrize("own", [False, True])
def test_trained_on_a_text_it_knows_it_accepts(own):
    model = target()
    given = {"max_new_tokens": 40, "do_sample": False, "return_dict_in_generate": True}
    chain = {"tree": CHAIN}
    fresh = Decoder(model, Medusa(heads(spread=0.0), **chain), scheduler=Fixed(4)).generate(PROMPT, **given)
    out = Decoder(model, Medusa(learned(model, own_lm_head=own), **chain), scheduler=Fixed(4)).generate(PROMPT, **given)
    assert torch.equal(out.sequences, fresh.sequences)
    assert out.stats.tokens_per_pass > 4.0 > 2.0 > fresh.stats.tokens_per_pass


def test_a_tree_finds_what_a_chain_misses():
    # The second head is right at its second guess always: a tree keeps two tokens, a chain one.
    model = cyclic()
    size = model.config.vocab_size
    head = MedusaHead.for_target(model, heads=2, own_lm_head=True)
    ahead = torch.eye(size)
    with torch.no_grad():
        # The state of letter i is a one-hot of i: head k should say i + 2 + k.
        first = torch.zeros(size, size)
        second = torch.zeros(size, size)
        for i in range(12):
            first[(i + 2) % 12] += ahead[i]
            second[(i + 5) % 12] += 2 * ahead[i]
            second[(i + 3) % 12] += ahead[i]
        head.lm_head.copy_(torch.stack([first, second]))
    given = {"max_new_tokens": 31, "do_sample": False, "return_dict_in_generate": True}
    runs = {}
    for name, tree in [("chain", [[0], [0, 0]]), ("tree", [[0], [0, 0], [0, 1]])]:
        out = Decoder(model, Medusa(head, tree=tree), scheduler=Fixed(2, 8)).generate(encode("abc"), **given)
        runs[name] = (out.sequences.tolist(), out.stats.accepted_by_depth)
    assert runs["chain"][0] == runs["tree"][0]
    assert runs["chain"][1][1:] in ((), (0,)) and runs["tree"][1][1] == runs["tree"][1][0] > 8


def test_values_survive_a_tree_given_as_an_object():
    tree = StaticTree(((0,), (0, 0)), (0.5, 0.25))
    assert Medusa(heads(), tree=tree).tree.values == (0.5, 0.25)
