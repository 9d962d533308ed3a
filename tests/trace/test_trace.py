"""Traces: what is written down is what happened, what the page computes is what the analysis says, text stays text."""

from __future__ import annotations

import json
import re
import unicodedata
from html.parser import HTMLParser
from importlib import resources

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec import analysis
from specdec.core.errors import InvalidPromptError
from specdec.drafters import DraftModel, Lookahead, Merge, PromptLookup, TokenRecycling
from specdec.trace import explorers, page
from specdec.trace.visible import visible
from specdec.verifiers import SMC
from tests.frontdoor.models import PROMPT, RAGGED, draft, plain, target
from tests.trace.samples import EVIL, NEW, Words, trace_of


@pytest.fixture(scope="module")
def recycling():
    return trace_of(TokenRecycling(4, 20, 4))


@pytest.fixture(scope="module")
def numbers():
    return explorers()


@pytest.mark.core
@pytest.mark.parametrize(
    "drafter", [PromptLookup(), TokenRecycling(4, 20, 4), Lookahead(4, 3, 3, prompt=True), DraftModel(draft("noisy"))]
)
def test_rounds_add_up_to_the_text(drafter):
    found = trace_of(drafter)
    assert json.loads(json.dumps(found)) == found
    tokens = [token for one in found["rounds"] for token in one["rows"][0]["tokens"]]
    assert found["prompt"] + tokens == plain(max_new_tokens=NEW)[0].tolist()
    assert found["rounds"][-1]["rows"][0]["end"] == "length"
    before = found["prompt"]
    for one in found["rounds"]:
        (row,) = one["rows"]
        assert row["anchor"] == before[-1]
        path = [node for node in row["nodes"] if node["f"] == "accepted"]
        assert [node["t"] for node in path] == row["tokens"][: row["kept"]]
        before = before + row["tokens"]
    assert set(found["text"]) == {
        str(token)
        for one in found["rounds"]
        for row in one["rows"]
        for token in (
            *found["prompt"], *row["tokens"], row["anchor"], *(node["t"] for node in row["nodes"]),
            *(token for line in row.get("window", ()) for token in line),
            *(token for key, entry in row.get("pool", ()) for token in (key, *entry)),
        )
    }  # fmt: skip


@pytest.mark.core
def test_values_are_the_targets_and_fates_the_verdicts(recycling):
    model, before, fates = target(), PROMPT[0].tolist(), set()
    for one in recycling["rounds"]:
        (row,) = one["rows"]
        nodes = row["nodes"]
        paths = []
        for node in nodes:
            above = paths[node["p"]] if node["p"] >= 0 else []
            paths.append([*above, node["t"]])
            with torch.no_grad():
                law = model(torch.tensor([before + above])).logits[0, -1].softmax(-1)
            assert node["c"] == pytest.approx(float(law[node["t"]]), abs=2e-4)
            parent = nodes[node["p"]]["f"] if node["p"] >= 0 else "accepted"
            assert (node["f"] == "pruned") == (parent != "accepted")
            fates.add(node["f"])
        if nodes:
            values = analysis.path_values([node["c"] for node in nodes], [node["p"] for node in nodes])
            assert [node["v"] for node in nodes] == pytest.approx(values.tolist(), abs=5e-4)
            assert all(0 <= node["s"] <= 1 for node in nodes)
        before = before + row["tokens"]
    assert fates == {"accepted", "rejected", "pruned"}


@pytest.mark.core
def test_drawn_nodes_have_the_chance_of_the_drafters_law():
    found = trace_of(DraftModel(draft("noisy"), tree=(3, 2, 1)), do_sample=True, top_k=0, seed=5)
    model, before, seen = draft("noisy"), PROMPT[0].tolist(), 0
    for one in found["rounds"]:
        (row,) = one["rows"]
        paths = []
        for node in row["nodes"]:
            above = paths[node["p"]] if node["p"] >= 0 else []
            paths.append([*above, node["t"]])
            with torch.no_grad():
                law = model(torch.tensor([before + above])).logits[0, -1].softmax(-1)
            assert node["k"] == "no-replace" and node["q"] == pytest.approx(float(law[node["t"]]), abs=1e-3)
            seen += node["q"] > 0.01
        before = before + row["tokens"]
    assert seen
    chosen = trace_of(PromptLookup())
    assert not any("q" in node for one in chosen["rounds"] for node in one["rows"][0]["nodes"])


@pytest.mark.core
def test_window_and_pool_of_lookahead():
    found = trace_of(Lookahead(4, 3, 3, prompt=True))
    seen = [row for one in found["rounds"] for row in one["rows"] if row.get("window")]
    assert seen
    for row in seen:
        assert row["window"][0][0] == row["anchor"]
        scratch = [node["t"] for node in row["nodes"] if node["f"] == "scratch"]
        assert [token for line in row["window"] for token in line][1:] == scratch
        assert all(len(entry) == 2 for _, entry in row["pool"]) and row["pooled"] >= len(row["pool"])
        tried = {tuple(entry) for key, entry in row["pool"] if key == row["anchor"]}
        first = [node["t"] for node in row["nodes"] if node["f"] != "scratch" and node["p"] < 0]
        assert {entry[0] for entry in tried} == set(first) or row["pooled"] > len(row["pool"])
        keys = [key == row["anchor"] for key, _ in row["pool"]]
        assert keys == sorted(keys, reverse=True), "what this draft may have used comes first"


@pytest.mark.core
def test_merge_says_who_drafted_what():
    found = trace_of(Merge(PromptLookup(), TokenRecycling(3, 12)))
    names = set()
    for one in found["rounds"]:
        for row in one["rows"]:
            covered = {node for name, nodes in row["by"] for node in nodes}
            assert covered == set(range(1, len(row["nodes"]) + 1)) or not row["by"]
            names |= {name for name, _ in row["by"]}
    assert names == {"prompt-lookup", "token-recycling"}


@pytest.mark.core
def test_particles_weights_and_resampling():
    found = trace_of(DraftModel(draft("noisy")), SMC(4, threshold=0.9), do_sample=True, seed=3)
    assert found["rows"] == 4 and 0 <= found["chosen"] < 4 and 1 <= found["survivors"] <= 4
    assert found["threshold"] == 0.9 and found["facts"]["particles"] == 4
    moved = 0
    assert len(found["resampled"]) == len(found["rounds"])
    for thin, one in zip([False, *found["resampled"]], found["rounds"], strict=False):
        assert thin or not one["moves"]
        assert sum(one["weights"]) == pytest.approx(1.0, abs=1e-3)
        assert one["ess"] == pytest.approx(float(analysis.effective_sample_size(one["weights"])), rel=2e-2)
        moved += bool(one["moves"])
    assert moved, "nothing was resampled"
    # Whoever went on from another's text did so where the sample was thin.
    for before, one in zip(found["rounds"], found["rounds"][1:], strict=False):
        assert not one["moves"] or before["ess"] < 0.9 * 4


def test_several_prompts_are_refused():
    with pytest.raises(InvalidPromptError, match="a trace shows one prompt, found 5"):
        trace_of(PromptLookup(), inputs={"input_ids": RAGGED})


# The explorers


@pytest.mark.core
def test_golden_values_in_the_explorers(numbers):
    speed, depth, particles = numbers["speed"], numbers["depth"], numbers["particles"]
    curve = speed["speedup"][speed["alpha"].index(0.85)][speed["c"].index(0.15)]
    assert [round(value, 2) for value in curve[1:11]] == [1.61, 1.98, 2.20, 2.32, 2.37, 2.38, 2.37, 2.33, 2.28, 2.22]
    tokens = speed["tokens"][speed["alpha"].index(0.85)]
    assert [round(value, 2) for value in tokens[1:6]] == [1.85, 2.57, 3.19, 3.71, 4.15]
    assert speed["best"][speed["alpha"].index(0.85)][speed["c"].index(0.15)] == 6
    for decay, expected in ((0.9, 3.72), (0.7, 2.19), (0.5, 1.64)):
        heads = depth["tokens"][depth["first"].index(decay)][depth["decay"].index(decay)]
        assert heads[4] == pytest.approx(expected, abs=0.006)
    assert particles["alpha"][-1] == pytest.approx(0.575)
    assert particles["chi_square"][0] == 0.0 and particles["fixed"] == [2, 3, 4, 5]


@pytest.mark.core
def test_the_explorers_say_what_the_analysis_says(numbers):
    speed = numbers["speed"]
    for a in (0, 7, 16, 20):
        for c in (0, 3, 10):
            for gamma in (0, 1, 5, 16):
                want = analysis.speculative_speedup(speed["alpha"][a], gamma, speed["c"][c])
                assert speed["speedup"][a][c][gamma] == pytest.approx(float(want), abs=1e-4)
            assert speed["best"][a][c] == int(analysis.best_gamma(speed["alpha"][a], speed["c"][c], 16))
    depth = numbers["depth"]
    for first, decay in ((0, 0), (4, 8), (10, 10)):
        chances = [depth["first"][first] * depth["decay"][decay] ** k for k in range(6)]
        assert depth["chances"][first][decay] == pytest.approx(chances, abs=1e-4)
        for heads in (1, 4, 6):
            want = float(analysis.expected_accepted_length(chances[:heads]))
            assert depth["tokens"][first][decay][heads - 1] == pytest.approx(want, abs=1e-4)
    trees = numbers["trees"]
    for dynamic, fixed, spread in zip(trees["dynamic"], trees["fixed"], trees["spread"], strict=True):
        assert all(one >= other - 1e-9 for one, other in zip(dynamic, fixed, strict=True))
        assert dynamic == sorted(dynamic) and (spread == 0 or dynamic[9] > fixed[9])
    assert trees["dynamic"][0] == pytest.approx(trees["fixed"][0])
    smc = numbers["particles"]
    for d in (0, 5, 20):
        assert smc["alpha"][d] == pytest.approx(float(analysis.acceptance_rate(smc["p"], smc["q"][d])), abs=1e-3)
        assert smc["chi_square"][d] == pytest.approx(float(analysis.chi_square(smc["p"], smc["q"][d])), abs=2e-3)
        for n, count in enumerate(smc["N"]):
            want = float(analysis.smc_error_bound(smc["p"], smc["q"][d], count))
            assert smc["bound"][d][0][n] == pytest.approx(want, abs=2e-3)
        for k, block in enumerate(smc["K"]):
            want = float(analysis.expected_accepted_tokens(smc["alpha"][d], block))
            assert smc["rejection"][d][k] == pytest.approx(want, abs=2e-3)
            whole = (1 + smc["chi_square"][d]) ** block - 1
            assert smc["block_chi_square"][d][k] == pytest.approx(whole, rel=5e-3, abs=1e-3)


# The page


class Parts(HTMLParser):
    """Elements of a page, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self.links, self._in = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action", "style")]
        self._in = tag == "script"
        if self._in:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in = False

    def handle_data(self, data):
        if self._in:
            self.scripts[-1] += data


@pytest.mark.core
def test_the_page_stands_alone_and_model_text_cannot_leave_its_place(numbers):
    found = trace_of(PromptLookup(), words=Words())
    assert any(EVIL[3] == visible(EVIL[3]) == text for text in found["text"].values())
    made = page(found, numbers, 'a "title" </title><script>1</script> %%SCRIPT%%')
    parts = Parts(made)
    assert len(parts.scripts) == 3 and parts.links == []
    assert {"ul", "dl", "details", "noscript"} <= set(parts.tags)
    assert json.loads(parts.scripts[0]) == json.loads(json.dumps(found))
    assert json.loads(parts.scripts[1]) == numbers
    assert "owned" not in parts.scripts[2] and made.count("<title>") == 1
    assert made.isascii() or not any(unicodedata.bidirectional(char) in ("RLO", "LRI") for char in made)
    assert set(re.findall(r"https?://[\w.]+", made)) == {"http://www.w3.org"}  # the name of SVG, which is not fetched
    assert "default-src &#x27;none&#x27;" in made and "innerHTML" not in made and "eval(" not in made


@pytest.mark.core
@given(st.text(max_size=8))
def test_visible_text_hides_nothing(text):
    shown = visible(text)
    hidden = {"Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.category(char) in hidden for char in shown)
    assert not shown or not unicodedata.combining(shown[0])
    assert text == "" or shown


@pytest.mark.core
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc", "a⏎b→c"), ("\u202eabc", "⟨U+202E⟩abc"), ("\x00\x7f", "\u2400␡"), ("\u0301e", "◌\u0301e"),
        ("x\u2028\ufeff", "x⟨U+2028⟩⟨U+FEFF⟩"), (" plain é 日", " plain é 日"),
    ],
)  # fmt: skip
def test_signs_of_what_would_be_invisible(text, shown):
    assert visible(text) == shown


def themes():
    """The colours of the page by name, in light and in dark."""
    style = (resources.files("specdec.trace") / "assets" / "shell.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): #([0-9a-f]+)", block))
        for block in re.findall(r":root[^{]*\{ color-scheme([^}]*)\}", style)
    )
    return {"light": light, "dark": dark}


def luminance(colour):
    whole = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    parts = [int(whole[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.core
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "paper", "least"),
    [
        *(("ink", paper, 7.0) for paper in ("page", "panel")),
        *(("ink", f"{name}-fill", 7.0) for name in ("accepted", "bonus", "second", "third")),
        *((ink, "panel", 4.5) for ink in ("soft", "prompt", "rejected", "pruned", "scratch", "second")),
        *((line, "panel", 3.0) for line in ("accepted", "bonus", "focus", "third")),
        ("soft", "page", 4.5), ("soft", "accepted-fill", 4.5), ("soft", "bonus-fill", 4.5), ("accepted", "here", 3.0),
        ("bonus", "here", 3.0),
    ],
)  # fmt: skip
def test_contrast(theme, ink, paper, least):
    """At least what the Web Content Accessibility Guidelines 2.2 ask of text (4.5) and of lines (3)."""
    colours = themes()[theme]
    bright, dim = sorted((luminance(colours[ink]), luminance(colours[paper])), reverse=True)
    assert (bright + 0.05) / (dim + 0.05) >= least
