"""Traces: what is written down is what happened, what the page computes is what the analysis says, text stays text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import unicodedata
from html import unescape
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec import Decoder, analysis
from specdec.core.errors import InvalidPromptError
from specdec.drafters import DraftModel, Lookahead, Merge, PromptLookup, TokenRecycling
from specdec.schedulers import Fixed
from specdec.trace import explorers, page, record
from specdec.trace.visible import visible
from specdec.verifiers import SMC
from tests.frontdoor.models import LETTERS, PROMPT, RAGGED, VOCAB, draft, plain, target, tokenizer

NEW = 24
INPUTS = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
EVIL = {
    3: "</script><script>document.title='owned'</script>",
    4: "a\u202eb\u2066\u200f",
    5: "\x00\x1b[31m",
    6: "<b>&amp;",
}


class Words:
    """A tokenizer whose tokens are what no page should be given as it is."""

    def decode(self, ids):
        return EVIL.get(ids[0], f" word{ids[0]}\n")


def letters():
    return tokenizer(extra=VOCAB - len(LETTERS))


def trace_of(drafter, verifier=None, inputs=INPUTS, words=None, **call):
    decoder = Decoder(target(), drafter, verifier, Fixed(4, 24), allow="consistent" if verifier else None)
    call = {"do_sample": False, **call}
    return record(decoder, words or letters(), inputs, max_new_tokens=NEW, **call)


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
    moved = 0
    for one in found["rounds"]:
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


# In a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
POKE = """
const seen = [], key = (name) => document.body.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true}));
const note = () => seen.push([document.body.dataset.page, document.body.dataset.round, document.body.dataset.row,
  document.getElementById('said').textContent, document.documentElement.dataset.theme]);
note();
const arrows = ['ArrowRight', 'ArrowRight', 'End', 'ArrowRight', 'ArrowLeft', 'Home'];
for (const name of [...arrows, 't', 'ArrowDown', 'e', 'ArrowRight', 'd']) { key(name); note(); }
document.getElementById('alpha').value = 0;
document.getElementById('alpha').dispatchEvent(new Event('input'));
document.getElementById('round').value = 3;
document.getElementById('round').dispatchEvent(new Event('input', {bubbles: true}));
note();
const boxes = document.querySelectorAll('#tree g').length, table = document.querySelectorAll('#nodes tr').length;
document.body.dataset.seen = JSON.stringify({seen, boxes, table, title: document.title,
  text: document.getElementById('text').textContent, speed: document.getElementById('said-speed').textContent});
"""


def opened(made, folder):
    """The page after its scripts have run, as a browser sees it."""
    file = folder / "page.html"
    file.write_text(made, encoding="utf-8")
    run = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
            f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    return run.stdout


def poked(made, folder):
    """What the page says of itself after some keys, by a script that a copy without the policy has at its end."""
    copy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", made)
    shown = opened(copy.replace("</body>", f"<script>{POKE}</script></body>"), folder)
    found = re.search(r'data-seen="([^"]*)"', shown)
    assert found, shown[-2000:]
    return json.loads(unescape(found[1]))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_runs_under_its_own_policy_and_nothing_else_does(numbers, tmp_path):
    made = page(trace_of(PromptLookup(), words=Words()), numbers, "tiny")
    shown = opened(made.replace("</body>", "<script>document.body.dataset.owned = 1</script></body>"), tmp_path)
    body = re.search(r"<body[^>]*>", shown)[0]
    assert 'data-round="0"' in body and "data-owned" not in body
    assert "<title>specdec trace: tiny</title>" in shown


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_in_a_browser(numbers, tmp_path):
    found = trace_of(TokenRecycling(4, 20, 4), words=Words())
    last = len(found["rounds"]) - 1
    got = poked(page(found, numbers, "tiny"), tmp_path)
    steps = [(name, int(at)) for name, at, *_ in got["seen"]]
    assert steps == [
        ("decode", 0), ("decode", 1), ("decode", 2), ("decode", last), ("decode", last), ("decode", last - 1),
        ("decode", 0), ("decode", 0), ("decode", 0), ("explore", 0), ("explore", 0), ("decode", 0), ("decode", 3),
    ]  # fmt: skip
    themes = [theme for *_, theme in got["seen"]]
    assert themes[6] != themes[7]
    assert got["seen"][0][3].startswith("Round 0 is the pass over the prompt")
    (row,) = found["rounds"][3]["rows"]
    own = len(row["tokens"]) > row["kept"]
    assert got["boxes"] == 1 + len(row["nodes"]) + own and got["table"] == 1 + len(row["nodes"])
    tokens = [token for one in found["rounds"][:4] for token in one["rows"][0]["tokens"]]
    assert got["text"] == "".join(found["text"][str(token)] for token in (*found["prompt"], *tokens))
    assert got["title"] == "specdec trace: tiny"
    assert got["speed"].startswith("Drafting costs more than it brings")
