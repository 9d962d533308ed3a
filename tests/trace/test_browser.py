"""The page in a headless Chromium: it runs under its own policy, and shows what the trace says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from specdec.drafters import DraftModel, Lookahead, Merge, PromptLookup, TokenRecycling
from specdec.trace import explorers, page
from specdec.verifiers import SMC
from tests.frontdoor.models import draft
from tests.trace.samples import Words, trace_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
POKE = """
const seen = [], key = (name) => document.body.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true}));
const note = () => seen.push([document.body.dataset.page, document.body.dataset.round, document.body.dataset.row,
  document.getElementById('said').textContent, document.documentElement.dataset.theme]);
note();
const arrows = ['ArrowRight', 'ArrowRight', 'End', 'ArrowRight', 'ArrowLeft', 'Home'];
for (const name of [...arrows, 't', 'ArrowDown', 'e', 'ArrowRight', 'd', 'n', 'n', 'p', 'Home']) { key(name); note(); }
document.getElementById('alpha').value = 0;
document.getElementById('alpha').dispatchEvent(new Event('input'));
document.getElementById('round').value = 3;
document.getElementById('round').dispatchEvent(new Event('input', {bubbles: true}));
note();
const boxes = document.querySelectorAll('#tree g').length, table = document.querySelectorAll('#nodes tr').length;
document.body.dataset.seen = JSON.stringify({seen, boxes, table, title: document.title,
  charts: [...document.querySelectorAll('#page-explore svg')].map((one) => one.querySelectorAll('polyline').length),
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


@pytest.fixture(scope="module")
def numbers():
    return explorers()


def poked(made, folder, poke=POKE):
    """What the page says of itself after some keys, by a script that a copy without the policy has at its end."""
    copy = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", made)
    shown = opened(copy.replace("</body>", f"<script>{{ {poke} }}</script></body>"), folder)
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
        ("decode", 0), ("decode", 0), ("decode", 0), ("explore", 0), ("explore", 0), ("decode", 0),
        ("decode", 1), ("decode", 2), ("decode", 1), ("decode", 0), ("decode", 3),
    ]  # fmt: skip
    themes = [theme for *_, theme in got["seen"]]
    assert themes[6] != themes[7]
    assert got["seen"][0][3].startswith("Round 0 is the pass over the prompt")
    (row,) = found["rounds"][3]["rows"]
    own = len(row["tokens"]) > row["kept"]
    assert got["boxes"] == 1 + len(row["nodes"]) + own and got["table"] == 1 + len(row["nodes"])
    tokens = [token for one in found["rounds"][:4] for token in one["rows"][0]["tokens"]]
    whole = "".join(found["text"][str(token)] for token in (*found["prompt"], *tokens))
    assert got["text"] == whole.replace("⏎", "⏎\n")
    assert got["title"] == "specdec trace: tiny"
    assert got["charts"] == [3, 2, 2, 2, 2]
    assert got["speed"].startswith("Drafting costs more than it brings")


LOOK = """
const all = (names) => [...document.querySelectorAll(names)];
const texts = (names) => all(names).map((one) => one.textContent);
const key = (name, on) => on.dispatchEvent(new KeyboardEvent('keydown', {key: name, bubbles: true}));
const open = (round) => { document.getElementById('round').value = round;
  document.getElementById('round').dispatchEvent(new Event('input', {bubbles: true})); };
const tell = (found) => { document.body.dataset.seen = JSON.stringify(found); };
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_particles_in_a_browser(numbers, tmp_path):
    found = trace_of(DraftModel(draft("noisy")), SMC(4, threshold=0.9), do_sample=True, seed=3)
    thin = found["resampled"].index(True)
    got = poked(
        page(found, numbers, "tiny"),
        tmp_path,
        LOOK
        + f"""
    open({thin});
    const resampled = document.getElementById('ess').textContent;
    key('ArrowDown', document.body); key('ArrowDown', document.body); key('ArrowUp', document.body);
    const row = document.body.dataset.row;
    all('#weights button')[3].click();
    const pressed = all('#weights button').map((one) => one.getAttribute('aria-pressed'));
    const text = texts('#text')[0];
    open({len(found["rounds"]) - 1});
    tell({{resampled, row, pressed, text, end: document.getElementById('ess').textContent,
      dots: all('#lineage circle').length, line: all('#lineage circle.chosen').length,
      cuts: all('#lineage .resampled').length,
      mark: all('#gauge i')[0].style.left, fill: all('#gauge .meter div')[0].style.width,
      chosen: texts('tr.chosen button'), heads: texts('#weights th'), weights: texts('#weights td:nth-child(2)')}});
    """,
    )
    rounds = found["rounds"]
    assert got["resampled"].startswith(
        f"Effective sample size {rounds[thin]['ess']:.2f} of 4; below 3.60 all are resampled."
    )
    assert "Resampled after this round" in got["resampled"]
    assert (got["row"], got["pressed"]) == ("1", ["false", "false", "false", "true"])
    assert got["dots"] == 4 * len(rounds) and got["line"] == len(rounds) and got["cuts"] == sum(found["resampled"])
    assert got["mark"] == "90%" and float(got["fill"][:-1]) == pytest.approx(25 * rounds[-1]["ess"], abs=0.01)
    assert got["chosen"] == [str(found["chosen"])] and f"The text is particle {found['chosen']}" in got["end"]
    assert len(got["weights"]) == 4 and got["heads"] == ["particle", "weight", "", "text"]
    # The text of particle 3 as it was after that round: its own tokens and those that it took over.
    whole = {index: [] for index in range(4)}
    for one in rounds[: thin + 1]:
        whole |= {to: list(whole[source]) for to, source in {**dict(one["moves"])}.items()}
        for row in one["rows"]:
            whole[row["row"]] = whole[row["row"]] + row["pieces"]
    assert got["text"] == "".join([*found["pieces"], *whole[3]]).replace("⏎", "⏎\n")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_merged_drafters_window_and_pool_in_a_browser(numbers, tmp_path):
    found = trace_of(Merge(Lookahead(4, 3, 3, prompt=True), TokenRecycling(3, 12)))
    busy = max(range(len(found["rounds"])), key=lambda at: len(found["rounds"][at]["rows"][0]["by"]))
    got = poked(
        page(found, numbers, "tiny"),
        tmp_path,
        LOOK
        + f"""
    open({busy});
    const who = texts('#tree .who'), window = all('#window tr').length, pool = all('#pool tr').length;
    const byTable = texts('#nodes td:nth-child(5)');
    const tree = document.getElementById('tree'), before = document.body.dataset.round;
    tree.style.width = '100px';  // now it scrolls, and arrows are its own
    key('ArrowRight', tree);
    const scrolled = document.body.dataset.round;
    key('n', tree);
    const stepped = document.body.dataset.round;
    open({len(found["rounds"]) - 1});
    tell({{who, window, pool, byTable, before, scrolled, stepped, legend: texts('.legend li'),
      sources: all('#text .token').map((one) => [one.className.split(' ')[1], one.title])}});
    """,
    )
    (row,) = found["rounds"][busy]["rows"]
    names = list(dict.fromkeys(name for one in found["rounds"] for name, _ in one["rows"][0]["by"]))
    letters = {name: chr(65 + place) for place, name in enumerate(names)}
    owners = [[name for name, nodes in row["by"] if node in nodes] for node in range(1, len(row["nodes"]) + 1)]
    assert sorted(got["who"]) == sorted("".join(letters[name] for name in owner) for owner in owners)
    assert got["byTable"] == [" and ".join(owner) for owner in owners]
    assert got["window"] == 1 + len(row["window"]) and got["pool"] == 1 + len(row["pool"])
    assert got["before"] == got["scrolled"] == str(busy) != got["stepped"]
    assert any("A lookahead, B token-recycling" in text for text in got["legend"])
    kinds = {"prompt": len(found["prompt"])}
    for one in found["rounds"]:
        (row,) = one["rows"]
        kinds["drafted"] = kinds.get("drafted", 0) + row["kept"]
        kinds["target"] = kinds.get("target", 0) + len(row["tokens"]) - row["kept"]
    seen = [kind for kind, _ in got["sources"]]
    assert {kind: seen.count(kind) for kind in kinds} == kinds and kinds["drafted"]
    drafted = [hint for kind, hint in got["sources"] if kind == "drafted"]
    assert all(any(name in hint for name in names) for hint in drafted)
