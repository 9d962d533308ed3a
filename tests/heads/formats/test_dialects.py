"""Every published dialect: told apart, read as its formula says, written and read again, and lossless."""

from __future__ import annotations

import warnings
from functools import lru_cache

import pytest
import torch
from torch.nn import functional as F

from specdec import Decoder, drafters
from specdec.core.errors import CheckpointWarning
from specdec.heads.base import facts_of
from specdec.heads.formats import Conventions, detect, read_published
from specdec.heads.formats.write import export_head
from specdec.heads.load import load_head
from specdec.schedulers import Fixed
from specdec.targets.taps import Taps
from tests.heads.formats import formulas
from tests.heads.formats.dialects import DIALECTS
from tests.heads.formats.target import PROMPT, final, states, target

pytestmark = [
    pytest.mark.parametrize("name", list(DIALECTS)),
    pytest.mark.filterwarnings("ignore::specdec.core.errors.CheckpointWarning"),
]


@lru_cache
def dialect(name):
    return DIALECTS[name]()


@lru_cache
def plain():
    return target().generate(PROMPT, max_new_tokens=3, do_sample=False)


def bound(head):
    return head.bind(target().get_input_embeddings(), target().get_output_embeddings())


def said(head):
    """The head's logits after each token of the prompt but the last, and the states that it carries on."""
    with torch.no_grad():
        _, found = Taps(head.features).run(target(), input_ids=PROMPT)
        features = torch.cat([found[name] for name in head.features], -1)
        if head.kind == "medusa":
            out = head(features)
            return head.logits(out), out
        out = head(PROMPT[:, 1:], head.fuse(features)[:, :-1])
        return head.logits(out), out


def formula(given):
    """The same from the tensors of the fixture."""
    w, lm_head = given.plain, target().lm_head.weight.detach()
    if given.drafter == "medusa":
        f, heads = final(), range(3)
        z = [f + F.silu(F.linear(f, w[f"{k}.0.linear.weight"], w[f"{k}.0.linear.bias"])) for k in heads]
        logits = [F.linear(z[k], w.get(f"{k}.1.weight", lm_head)) for k in heads]
        return torch.stack(logits, -2), torch.stack(z, -2)
    embedded = F.embedding(PROMPT[:, 1:], w.get("embed_tokens.weight", target().model.embed_tokens.weight.detach()))
    if given.drafter != "eagle3":
        out = formulas.eagle(w, embedded, final()[:, :-1], given.theta)
        return F.linear(out, lm_head), out
    taps = [states()[k][:, :-1] for k in given.boundaries]
    out = formulas.eagle3(w, embedded, taps, given.before_residual, given.theta)
    normed = formulas.rms(out, w["norm.weight"]) if given.final_norm else out
    logits = F.linear(normed, w["lm_head.weight"])
    return logits, normed if given.norm_output else out


def test_it_is_told_by_its_config_and_tensors(name):
    given = dialect(name)
    shapes = {key: tuple(value.shape) for key, value in given.tensors.items()}
    assert detect(given.config, shapes, [given.file]).name == given.form


def test_a_step_is_its_formula(name, tmp_path):
    given = dialect(name)
    head = bound(load_head(given.write(tmp_path), target=facts_of(target())))
    for ours, theirs in zip(said(head), formula(given), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-4, rtol=1e-4), (ours - theirs).abs().max()
    ids = head.draft_ids
    assert ids is None if given.ids is None else torch.equal(ids, given.ids)
    assert head.fit_problems(facts_of(target())) == []


def test_written_and_read_again_it_is_the_same(name, tmp_path):
    given = dialect(name)
    facts = facts_of(target())
    head = bound(load_head(given.write(tmp_path / "in"), target=facts))
    head.save(tmp_path / "own")
    again = load_head(tmp_path / "own")
    assert again.config == head.config
    for form in given.exports:
        export_head(head, tmp_path / form, form, verifier="org/base")
        back = load_head(tmp_path / form, target=facts)
        named = "org/base" if form == "speculators" else head.config.target
        assert back.config == head.config.model_copy(update={"target": named})
        ours, theirs = head.state_dict(), back.state_dict()
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_it_says_what_is_unusual(name, tmp_path):
    folder = dialect(name).write(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_head(folder, target=facts_of(target()))
    assert dialect(name).warns == any(issubclass(each.category, CheckpointWarning) for each in caught)


def test_its_text_is_the_targets(name, tmp_path):
    given = dialect(name)
    folder = given.write(tmp_path)
    makers = {"medusa": drafters.Medusa, "eagle": drafters.Eagle, "eagle2": drafters.Eagle2, "eagle3": drafters.Eagle3}
    drafter = makers[given.drafter](folder)
    decoder = Decoder(target(), drafter, scheduler=Fixed(2, 4))
    result = decoder.generate(PROMPT, max_new_tokens=3, do_sample=False, return_dict_in_generate=True)
    assert torch.equal(result.sequences, plain())
    assert result.stats.judged > 0
    assert decoder.drafter is not drafter and decoder.config.drafter.checkpoint == str(folder)


def test_another_reading_of_its_layers_says_something_else(name, tmp_path):
    given = dialect(name)
    folder = given.write(tmp_path)
    facts = facts_of(target())
    head = bound(load_head(folder, target=facts))
    if given.drafter != "eagle3":
        # There are no ids to misread: these read the state after the final norm, and not the one before it.
        shifted = states()[-1]
        out = head(shifted) if given.drafter == "medusa" else head(PROMPT[:, 1:], shifted[:, :-1])
        assert not torch.allclose(head.logits(out), said(head)[0], atol=1e-2)
        return
    ids = tuple(boundary - 1 for boundary in given.boundaries) if 0 not in given.boundaries else (2, 1, 7)
    other = bound(read_published(folder, conventions=Conventions("boundary", layer_ids=ids)).head(facts))
    assert other.features != head.features
    assert not torch.allclose(said(other)[0], said(head)[0], atol=1e-2)
