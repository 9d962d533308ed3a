"""Rows that come and go: whatever the model and the way it is run, the logits are those of a plain pass."""

from __future__ import annotations

import pytest
import torch

from specdec.core.errors import UnsupportedModelError
from specdec.heads.packed import Chunk, PackedRows
from specdec.heads.padded import PaddedRows
from specdec.heads.rows import fastest_rows
from tests.heads import chatty
from tests.targets import zoo

WINDOW = {"sliding_window": 16}
PACKED, PLAIN = {"llama", "qwen2"}, {"qwen2-window", "gemma2", "gpt-oss"}  # of the others it depends on transformers


@pytest.mark.parametrize("family", zoo.CONFIGS)
@torch.inference_mode()
def test_passes_of_every_family(family):
    model = zoo.make(family)
    chance = torch.Generator().manual_seed(1)
    texts = [torch.randint(2, zoo.VOCAB, (26,), generator=chance).tolist() for _ in range(3)]
    texts[2][:9] = texts[0][:9]
    whole = [model(torch.tensor([text]), use_cache=False).logits[0] for text in texts]
    rows = fastest_rows(model, 40)
    assert isinstance(rows, PackedRows) or family not in PACKED
    assert isinstance(rows, PaddedRows) or family not in PLAIN
    passes = [
        [(0, 0, 0, 12, -1), (35, 1, 0, 3, -1)],
        [(0, 0, 12, 1, -1), (35, 1, 3, 1, -1), (7, 2, 9, 4, 0)],
        [(0, 0, 13, 1, -1), (35, 1, 4, 20, -1), (7, 2, 13, 1, -1)],
        [(7, 2, 14, 1, -1), (35, 1, 24, 1, -1)],
    ]
    for parts in passes:
        chunks = [
            Chunk(row, texts[t][past : past + new], past, base, 9 if base >= 0 else 0)
            for row, t, past, new, base in parts
        ]
        expected = torch.stack([whole[t][past + new - 1] for _, t, past, new, _ in parts])
        torch.testing.assert_close(rows.run(chunks), expected, rtol=1e-4, atol=1e-3)


def test_which_models_are_run_packed():
    assert isinstance(fastest_rows(chatty.target(), 4), PackedRows)
    windowed = chatty.target(**WINDOW)
    own = windowed.config._attn_implementation
    assert isinstance(fastest_rows(windowed, 4), PaddedRows)
    assert windowed.config._attn_implementation == own


def test_a_model_whose_attention_does_more_is_run_padded():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, sliding_window=4096, attn_logit_softcapping=0.5,
        layer_types=["full_attention", "full_attention"],
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    own = model.config._attn_implementation
    assert isinstance(fastest_rows(model, 2), PaddedRows)
    assert model.config._attn_implementation == own


def test_a_model_with_a_recurrent_state_is_refused():
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, state_size=4)
    with pytest.raises(UnsupportedModelError, match="Mamba"):
        fastest_rows(MambaForCausalLM(config), 2)


@pytest.mark.parametrize("options", [{}, WINDOW], ids=["packed", "padded"])
@torch.inference_mode()
def test_passes_are_those_of_the_model(options):
    """Rows in any order, copied beginnings, rows that begin anew where a longer one was."""
    model = chatty.target(**options)
    texts = [torch.randint(2, 200, (60,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(4)]
    texts[3][:20] = texts[0][:20]
    whole = [model(torch.tensor([text])).logits[0] for text in texts]
    rows = fastest_rows(model, 70)
    assert isinstance(rows, PaddedRows if options else PackedRows)

    def check(*parts):
        """Each part: row, text, tokens run before, tokens now, and the row whose beginning is copied."""
        chunks = [
            Chunk(row, texts[text][past : past + new], past, base, past if base >= 0 else 0)
            for row, text, past, new, base in parts
        ]
        logits = rows.run(chunks)
        expected = torch.stack([whole[text][past + new - 1] for _, text, past, new, _ in parts])
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-4)

    check((69, 0, 0, 30, -1), (3, 1, 0, 1, -1))
    check((3, 1, 1, 1, -1), (69, 0, 30, 1, -1), (40, 2, 0, 9, -1))
    check((40, 2, 9, 5, -1), (2, 3, 20, 1, 69), (3, 1, 2, 57, -1))
    check((40, 2, 14, 1, -1), (69, 0, 31, 2, -1), (2, 3, 21, 1, -1))
    rows.release(3)
    rows.release(69)
    check((3, 2, 0, 4, -1), (2, 3, 22, 1, -1))
    check((3, 2, 4, 1, -1), (2, 3, 23, 30, -1))
