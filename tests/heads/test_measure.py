"""Measured accuracies: what is counted, where, and the tree that follows from it."""

from __future__ import annotations

import pytest
import torch

from specdec import Decoder
from specdec.core.errors import IncompatibleError
from specdec.drafters import Medusa
from specdec.heads import MedusaHead
from specdec.heads.measure import accuracies, best_tree, plant, ranks_of
from specdec.schedulers import Fixed
from tests.frontdoor.models import PROMPT, llama, target


def noisy_heads(model, draft_ids=None):
    head = MedusaHead.for_target(model, heads=3, draft_ids=draft_ids)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(4)
        head.weight.normal_(std=0.2)
    return head


def texts_of(model, lengths=(30, 9, 4)):
    prompts = [PROMPT, PROMPT[:, 2:], PROMPT[:, 4:]]
    out = [
        model.generate(p, max_new_tokens=n, do_sample=False)[0].tolist() for p, n in zip(prompts, lengths, strict=True)
    ]
    return [(text, [(len(p[0]), len(text))]) for text, p in zip(out, prompts, strict=True)]


@pytest.mark.parametrize("draft_ids", [None, range(30)], ids=["all", "trimmed"])
def test_ranks_by_hand(draft_ids):
    model = target()
    head = noisy_heads(model, draft_ids)
    texts = texts_of(model)
    found = ranks_of(model, head, texts, count=8)
    expected = []
    for ids, ((prompt, _),) in texts:
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
            order = head.to_target(head.logits(head(states)).argsort(-1, descending=True))  # [n, heads, vocab]
        # A draft below token a: head k guesses token a + 1 + k.
        for anchor in range(prompt, len(ids) - 3):
            row = []
            for k in range(3):
                guesses = order[anchor - 1, k, :8].tolist()
                token = ids[anchor + 1 + k]
                row.append(guesses.index(token) if token in guesses else -1)
            expected.append(row)
    assert found.tolist() == expected and len(expected) == 27 + 6 + 1
    assert (found < 0).any() and (found > 0).any()


def test_every_answer_of_a_dialogue_counts_and_nothing_between_them():
    model = target()
    head = noisy_heads(model)
    ((ids, ((start, end),)),) = texts_of(model)[:1]
    whole = ranks_of(model, head, [(ids, [(start, end)])])  # a row an anchor, from `start` on
    parts = ranks_of(
        model, head, [(torch.tensor(ids), [(start, start + 9), (start + 12, start + 14), (start + 20, end)])]
    )
    assert torch.equal(parts, torch.cat([whole[:6], whole[20:]]))
    assert ranks_of(model, head, [(ids, [(start, start + 3)])]).shape == (0, 3)
    assert len(ranks_of(model, head, [(ids, [(0, 8)])])) == 4  # the first state gave token 1


def test_accuracies_are_shares():
    ranks = torch.tensor([[0, 1], [0, -1], [2, 0], [-1, 0]])
    assert accuracies(ranks, 3) == [[0.5, 0.0, 0.25], [0.5, 0.25, 0.0]]
    with pytest.raises(ValueError, match="no positions"):
        accuracies(ranks[:0])


def test_a_tree_of_joint_shares_knows_what_heads_know_together():
    # The heads are right at equal ranks only: on the second level nothing but (0, 0) and (1, 1) is ever right.
    ranks = torch.tensor([[0, 0], [1, 1]] * 5)
    assert best_tree(ranks, 4, joint=True).paths == ((0,), (1,), (0, 0), (1, 1))
    assert best_tree(ranks, 4, joint=True).values == (0.5, 0.5, 0.5, 0.5)
    assert best_tree(ranks, 4, joint=False).values == (0.5, 0.5, 0.25, 0.25)
    assert best_tree(ranks, 4) == best_tree(ranks, 4, joint=False)  # so few positions say little of whole paths
    assert best_tree(ranks.repeat(200, 1), 4) == best_tree(ranks, 4, joint=True)


def test_the_searched_tree_keeps_what_was_promised_where_it_was_measured():
    model = target()
    head = noisy_heads(model)
    (text,) = texts_of(model, lengths=(200, 9, 9))[:1]
    ranks = ranks_of(model, head, [text])
    tree = best_tree(ranks, 12, joint=True)
    promised = float(sum(tree.values))
    hits = sum(tuple(row[: len(path)]) == path for row in ranks.tolist() for path in tree.paths)
    assert promised == pytest.approx(hits / len(ranks)) and promised > 0.1
    prompt = torch.tensor([text[0][: text[1][0][0]]])
    given = {"max_new_tokens": 200, "do_sample": False, "return_dict_in_generate": True}
    runs = {
        name: Decoder(model, Medusa(head, tree=shape), scheduler=Fixed(3, 12)).generate(prompt, **given)
        for name, shape in {"searched": tree, "published": "mc_sim_7b_63"}.items()
    }
    assert runs["searched"].sequences[0].tolist() == text[0] == runs["published"].sequences[0].tolist()
    assert runs["searched"].stats.tokens_per_pass > runs["published"].stats.tokens_per_pass


def test_a_tree_is_planted_beside_the_heads(tmp_path):
    model = target()
    noisy_heads(model).to(torch.bfloat16).save(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    assert plant(model, tmp_path, [([1, 2, 3], [(1, 3)])]) is None
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["config.json", "model.safetensors"]
    tree = plant(model, tmp_path, texts_of(model), nodes=20)
    assert len(tree) == 20 and Medusa(tmp_path).tree.paths == tree.paths
    assert (tmp_path / "model.safetensors").read_bytes() == before
    with pytest.raises(IncompatibleError):
        plant(llama(0, layers=3), tmp_path, texts_of(model))


def test_a_head_for_another_model_is_refused():
    with pytest.raises(IncompatibleError, match="layers of 2, but LlamaForCausalLM has 3"):
        ranks_of(llama(0, layers=3), noisy_heads(target()), [])
