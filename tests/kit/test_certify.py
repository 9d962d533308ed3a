"""Certificates: honest decoders are identical or near-tie, a pass that depends on its width is found out."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from typer.testing import CliRunner

from specdec import Decoder
from specdec.cli.main import build_app
from specdec.drafters import DraftModel, PromptLookup
from specdec.testing.certify import Certificate, certify
from tests.frontdoor.models import llama

PROMPTS = [
    torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7]]),
    torch.tensor([[3, 4, 3]]),
    torch.tensor([[11, 12, 13, 14, 11, 12]]),
]


@pytest.mark.parametrize("drafter", ["prompt-lookup", "draft-model"])
def test_float32_is_identical(drafter):
    model = llama(0)
    part = PromptLookup() if drafter == "prompt-lookup" else DraftModel(llama(0))
    certificate = certify(model, part, PROMPTS, max_new_tokens=20)
    assert certificate.level == "identical" and certificate.ok
    assert certificate.positions == 60 and certificate.near_ties == 0
    sampled = certificate.findings[1]
    assert (sampled.asked, bool(sampled.note)) == ((3, False) if drafter == "prompt-lookup" else (0, True))
    assert "level of claim: identical" in str(certificate)
    assert json.loads(certificate.to_json())["ok"] is True


def test_passes_that_depend_on_their_width_fail(monkeypatch):
    """A model that favours one token in passes of several tokens: plain decoding never writes it."""
    model = llama(0)
    honest = certify(model, PromptLookup(), PROMPTS, max_new_tokens=20)
    forward = type(model).forward

    def crooked(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if kwargs["input_ids"].shape[1] > 1 and cache is not None and cache.get_seq_length() > 10:
            out.logits[..., 17] += 50.0
        return out

    crooked.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(type(model), "forward", crooked)
    certificate = certify(model, PromptLookup(), PROMPTS, max_new_tokens=20)
    assert honest.ok and not certificate.ok
    assert certificate.level == "failed" and certificate.deficit > 1.0


def test_the_command_reports_and_reads_prompts(tmp_path, monkeypatch):
    made = Certificate("m", "float32", "prompt-lookup", "algorithmic", "failed", (), 0.1, 3.0, 0.2, 4, 20, 1.5)
    seen = {}

    def run(network, drafter, prompts, **options):
        seen.update(count=len(prompts), drafter=drafter.name, **options)
        return made

    class Tokenizer:
        chat_template = None

        def __call__(self, text, return_tensors):
            return {"input_ids": torch.tensor([[1, 2, len(text)]])}

    monkeypatch.setattr("specdec.targets.load.load_model", lambda *a, **k: (llama(0), Tokenizer()))
    monkeypatch.setattr("specdec.load_model", lambda *a, **k: (llama(0), Tokenizer()), raising=False)
    monkeypatch.setattr("specdec.testing.certify.certify", run)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["one"]}\n{"prompt": "two"}\n')
    report = tmp_path / "report.json"
    arguments = ["certify", "some/model", "--prompts", str(prompts), "--out", str(report)]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 1 and "failed" in result.output
    assert seen["count"] == 2 and seen["drafter"] == "prompt-lookup" and seen["name"] == "some/model"
    assert json.loads(report.read_text())["level"] == "failed"
    prompts.write_text('{"turns": []}\n')
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 1 and "line 1" in result.output


@pytest.mark.parametrize("which", ["_sampled", "_batched", "greedy"])
def test_texts_that_differ_by_more_than_rounding_fail_whatever_else_is_right(which, monkeypatch):
    model = llama(0)
    if which == "greedy":  # only ends earlier
        generate = Decoder.generate

        def shorter(self, *args, **kwargs):
            return generate(self, *args, **{**kwargs, "max_new_tokens": kwargs["max_new_tokens"] - 1})

        monkeypatch.setattr(Decoder, "generate", shorter)
    elif which == "_batched":
        generate = Decoder.generate

        def wrong(self, *args, **kwargs):
            out = generate(self, *args, **kwargs)
            if kwargs["input_ids"].shape[0] > 1:
                out[:, -3] = (out[:, -3] + 9) % 64
            return out

        monkeypatch.setattr(Decoder, "generate", wrong)
    else:
        generate = Decoder.generate

        def reseeded(self, *args, **kwargs):
            if kwargs.get("do_sample") and isinstance(self.drafter, PromptLookup):
                kwargs["seed"] += 1
            return generate(self, *args, **kwargs)

        monkeypatch.setattr(Decoder, "generate", reseeded)
    certificate = certify(model, PromptLookup(), PROMPTS, max_new_tokens=20)
    assert certificate.level == "failed" and sum(finding.unexplained for finding in certificate.findings)
    assert "differ by more than rounding" in str(certificate)
