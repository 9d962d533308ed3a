"""What ids look like: spaces are kept, parts of characters wait for the rest, and no text is lost or said twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.trace.spelling import Spelling
from specdec.trace.visible import visible
from tests.heads import chatty


class Bytes:
    """One token a byte."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", errors="replace")


class Pieces:
    """Words that begin with a space, which is dropped at the beginning of a text, as sentencepiece models do."""

    words = ("▁the", "▁sea", "side", "▁", ".")

    def decode(self, ids):
        return "".join(self.words[one] for one in ids).replace("▁", " ").removeprefix(" ")


@pytest.mark.core
def test_spaces_at_the_beginning_of_a_token():
    spelling = Spelling(Pieces())
    assert [spelling.alone(token) for token in range(5)] == [" the", " sea", "side", " ", "."]
    assert spelling.added([0, 1, 2, 4, 0], 4) == [" sea", "side", ".", " the"]


@pytest.mark.core
def test_parts_of_a_character_wait_for_the_last():
    spelling, text = Spelling(Bytes()), list("aé日🙂".encode())
    assert spelling.added(text, len(text)) == ["a", "", "é", "", "", "日", "", "", "", "🙂"]
    # Also where a round ended within a character.
    assert spelling.added(text[:8], 2) == ["", ""]
    assert spelling.added(text, 2) == ["", "🙂"]
    assert spelling.alone(0xE6) == "⟨230⟩"


@pytest.mark.core
def test_bytes_that_never_become_a_character_are_shown_as_ids():
    spelling = Spelling(Bytes())
    assert spelling.added([0x80] * 8 + [0x61, 0x80, 0x62], 11) == ["⟨128⟩"] * 8 + ["a", "⟨128⟩", "b"]


@pytest.mark.core
@given(st.text(max_size=30).filter(lambda text: "\ufffd" not in text), st.data())
def test_pieces_add_up_to_the_text_however_it_is_cut(text, data):
    ids = list(text.encode(errors="ignore"))
    spelling, cut = Spelling(Bytes()), data.draw(st.integers(0, len(ids)))
    pieces = spelling.added(ids[:cut], cut) + spelling.added(ids, len(ids) - cut)
    # A combining mark gets a circle where it begins a piece.
    assert "".join(pieces).replace("◌", "") == visible(text.encode(errors="ignore").decode()).replace("◌", "")


def test_a_real_tokenizer():
    tokenizer = chatty.tokenizer()
    text = "one\n\n  two: 日本語, naïve 🙂"
    ids = tokenizer(text)["input_ids"]
    assert "".join(Spelling(tokenizer).added(ids, len(ids))) == visible(text)
