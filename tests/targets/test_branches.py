"""Trees grown level by level: each node is scored as if its path were the text, wherever it lies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specdec.targets.branches import Branches
from specdec.targets.cached_lm import CachedLM
from tests.targets.zoo import shared

PROMPTS = {
    "one": ([(1, 2, 3, 4)], [0]),
    "even": ([(1, 2, 3), (4, 5, 6)], [0, 1]),
    "ragged": ([(1, 2, 3), (4,), (7, 8, 9, 10, 11, 12)], [0, 1, 2]),
    "copies": ([(1, 2, 3), (1, 2, 3), (5, 6)], [0, 0, 1]),
}


def after(model: nn.Module, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


class Tree:
    """The nodes of one row's branches as paths of tokens, and what each sees."""

    def __init__(self, chance: torch.Generator) -> None:
        self.chance = chance
        self.levels: list[list[tuple[int, ...]]] = []

    def level(self, width: int) -> tuple[list[int], list[list[bool]]]:
        above = self.levels[-1] if self.levels else [()]
        pick = torch.randint(0, len(above), (width,), generator=self.chance).tolist()
        tokens = torch.randint(1, 30, (width,), generator=self.chance).tolist()
        # A path twice would be one node seen twice: the token tells them apart.
        paths = [(*above[at], token + 31 * place) for place, (at, token) in enumerate(zip(pick, tokens, strict=True))]
        self.levels.append(paths)
        every = [path for level in self.levels for path in level]
        return [path[-1] for path in paths], [[node == path[: len(node)] for node in every] for path in paths]


@pytest.mark.core
@pytest.mark.parametrize("widths", [(1, 1, 1), (3, 2, 4), (2,)], ids=str)
@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma3"])
@torch.no_grad()
def test_every_node_is_scored_after_its_own_path(name, prompts, widths):
    model = shared(name)
    texts, groups = [list(prompt) for prompt in PROMPTS[prompts][0]], PROMPTS[prompts][1]
    vocab = model.config.get_text_config().vocab_size
    session = CachedLM(model).open(texts, groups, 64)
    session.prefill()
    chance = torch.Generator().manual_seed(len(texts))
    for turn in range(3):
        rows = [row for row in range(len(texts)) if turn != 1 or row != 0 or len(texts) == 1]  # one rests in turn 1
        trees = {row: Tree(chance) for row in rows}
        branches = Branches(session, rows, (*widths, 5))  # a level more than is run
        for width in widths:
            made = [trees[row].level(width) for row in rows]
            tokens = torch.tensor([[token % vocab for token in tokens] for tokens, _ in made])
            out = branches.step(tokens, torch.tensor([seen for _, seen in made]))
            for place, row in enumerate(rows):
                for node, path in enumerate(trees[row].levels[-1]):
                    want = after(model, [*texts[row], *(token % vocab for token in path)])
                    assert torch.allclose(out[place, node], want, atol=1e-4), (turn, row, path)
        for row in rows:
            if turn == 0:
                session.commit(row, ())  # a draft head's way: nothing of the tree is kept
                continue
            # A draft model's way: a path is kept, where it lies.
            every = [path for level in trees[row].levels for path in level]
            leaf = trees[row].levels[-1][0]
            session.commit(row, [every.index(leaf[: depth + 1]) for depth in range(len(leaf))])
            texts[row] += [token % vocab for token in leaf]
    rows = list(range(len(texts)))
    out, _ = session.extend(rows, torch.tensor([[1], [2], [3]][: len(rows)]), [(-1,)] * len(rows))
    for row in rows:
        assert torch.allclose(out[row, 0], after(model, [*texts[row], row + 1]), atol=1e-4)


def test_rows_with_pending_nodes_do_not_branch():
    session = CachedLM(shared("llama")).open([[1, 2]])
    with torch.no_grad():
        session.prefill()
        session.extend([0], torch.tensor([[3]]), [(-1,)])
    with pytest.raises(ValueError, match="has pending nodes"):
        Branches(session, [0], (2,))
