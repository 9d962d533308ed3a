"""A width is part of a config, and comes back."""

from __future__ import annotations

from specdec import Decoder
from specdec.drafters import PromptLookup
from tests.frontdoor.models import llama


def test_a_width_comes_back_from_its_config():
    model = llama(0)
    decoder = Decoder(model, PromptLookup(), exactness="fixed-width:8")
    config = decoder.config
    assert config.exactness == "fixed-width:8"
    again = Decoder.from_config(config.model_dump(), target=model)
    assert again.config == config and again.exactness == "fixed-width:8"
