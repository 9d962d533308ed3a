"""The figures of the documentation, drawn from `specdec.analysis`; `write_docs.py` writes them to docs/figures."""

from __future__ import annotations

import torch

from docs_svg import COLOURS, GREY, Picture, Series, plot
from specdec.analysis import (
    Machine,
    ModelSize,
    acceptance_rate,
    best_gamma,
    expected_accepted_tokens,
    path_values,
    residual_distribution,
    roofline_speedup,
    sibling_acceptance,
    smc_error_bound,
    speculative_speedup,
    value_mass,
)
from specdec.core.draft import Draft
from specdec.heads.trees import search
from specdec.trace import explorers

_NEAR = (0.40, 0.25, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02)
_FAR = (0.125,) * 8


def figures() -> dict[str, str]:
    """File name to SVG text."""
    return {
        "round.svg": _round(),
        "residual.svg": _residual(),
        "tokens.svg": _tokens(),
        "speed.svg": _speed(),
        "batch.svg": _batch(),
        "chain_or_tree.svg": _chain_or_tree(),
        "dynamic_or_fixed.svg": _dynamic_or_fixed(),
        "siblings.svg": _siblings(),
        "particles.svg": _particles(),
    }


def _tokens() -> str:
    gamma = list(range(13))
    series = [
        Series(f"acceptance {alpha:g}", gamma, expected_accepted_tokens(alpha, gamma).tolist(), dots=True)
        for alpha in (0.9, 0.8, 0.7, 0.5)
    ]
    title = "Tokens a pass by the number of drafted tokens, for several acceptance rates"
    return plot(title, "drafted tokens", "tokens a pass", series, x_ticks=gamma[::2], y_ticks=range(9))


def _speed() -> str:
    alpha, gamma = 0.8, list(range(13))
    series = []
    for cost in (0.0, 0.05, 0.15, 0.4):
        speed = speculative_speedup(alpha, gamma, cost).tolist()
        best = int(best_gamma(alpha, cost, most=12))
        series.append(Series(f"cost {cost:g}", gamma, speed, dots=True, marked=best))
    title = "Speed at acceptance 0.8 by the number of drafted tokens, for several costs of a drafted token"
    return plot(title, "drafted tokens", "speed, plain = 1", series, x_ticks=gamma[::2], y_ticks=range(6))


def _batch() -> str:
    target, machine = ModelSize(7e9, 2.0), Machine(1e15, 3e12)
    rows = list(range(1, 97))
    series = [
        Series(
            f"{nodes} nodes, {tokens:g} tokens",
            rows,
            roofline_speedup(tokens, nodes, target, machine, rows=rows).tolist(),
        )
        for nodes, tokens in ((64, 3.6), (16, 3.0), (4, 2.2))
    ]
    title = "Speed by rows of the batch, for drafts of several sizes, on a roofline"
    ticks = [1, 16, 32, 48, 64, 80, 96]
    return plot(title, "rows", "speed, plain = 1", series, x_ticks=ticks, y_ticks=range(5))


def _chain_or_tree() -> str:
    ranks, most = (0.6, 0.15, 0.08, 0.04), 64
    tree = search([ranks] * 16, most)
    values = path_values([ranks[path[-1]] for path in tree.paths], tree.parents)
    nodes = list(range(most + 1))
    series = [
        Series("best tree", nodes, [float(1.0 + value_mass(values, count)) for count in nodes]),
        Series("chain", nodes, expected_accepted_tokens(ranks[0], nodes).tolist()),
    ]
    title = "Tokens a pass of chains and of the best trees, by nodes"
    return plot(title, "nodes", "tokens a pass", series, x_ticks=range(0, 65, 8), y_ticks=(1, 2, 3, 4))


def _dynamic_or_fixed() -> str:
    found = explorers()["trees"]
    series = []
    for spread in (0.9, 0.4):
        at = min(range(len(found["spread"])), key=lambda place: abs(found["spread"][place] - spread))
        for kind in ("dynamic", "fixed"):
            label = f"{kind}, spread {found['spread'][at]:g}"
            series.append(Series(label, [0, *found["budget"]], [0.0, *found[kind][at]]))
    title = "Drafted tokens kept by the best dynamic and the best fixed tree, by nodes"
    top = max(max(one.y) for one in series)
    ticks = [0.5 * step for step in range(int(2 * top) + 2)]
    return plot(title, "nodes", "drafted tokens kept", series, x_ticks=range(0, 41, 8), y_ticks=ticks)


def _siblings() -> str:
    near, far = torch.tensor(_NEAR), torch.tensor(_FAR)
    count = list(range(1, 9))
    series = []
    for share in (0.1, 0.3, 0.6, 1.0):
        q = (1.0 - share) * near + share * far
        label = f"1 - TV = {float(acceptance_rate(near, q)):.2f}"
        series.append(Series(label, count, sibling_acceptance(near, q, count).tolist(), dots=True))
    title = "Chance that one of several siblings drawn from q is kept, for laws that differ more and more from p"
    ticks = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    return plot(title, "siblings", "chance that one is kept", series, x_ticks=count, y_ticks=ticks)


def _particles() -> str:
    near = torch.tensor(_NEAR, dtype=torch.float64)
    q = 0.7 * near + 0.3 * torch.tensor(_FAR, dtype=torch.float64)
    powers = list(range(9))
    particles = [2**power for power in powers]
    series = []
    for block in (4, 2, 1):
        whole_p, whole_q = _power(near, block), _power(q, block)
        bound = smc_error_bound(whole_p, whole_q, particles).tolist()
        series.append(Series(f"{block} tokens" if block > 1 else "1 token", powers, bound, dots=True))
    title = "Bound on the distance of one block's law from the target's, by particles and tokens of a block"
    names = [str(count) for count in particles]
    top = max(max(one.y) for one in series)
    ticks = [0.1 * step for step in range(int(10 * top) + 2)]
    return plot(title, "particles", "total variation, at most", series, x_ticks=powers, y_ticks=ticks, x_names=names)


def _power(law: torch.Tensor, block: int) -> torch.Tensor:
    whole = law
    for _ in range(block - 1):
        whole = (whole[:, None] * law).flatten()
    return whole


def _residual() -> str:
    words, p, q = ("A", "B", "C", "D", "E"), (0.35, 0.25, 0.2, 0.15, 0.05), (0.15, 0.30, 0.1, 0.15, 0.30)
    alpha, residual = float(acceptance_rate(p, q)), residual_distribution(p, q).tolist()
    picture = Picture("p, q, what is kept and what is drawn in its place")
    bottom, scale, wide = 300.0, 640.0, 46.0
    for place, word in enumerate(words):
        left = 40.0 + place * 104.0
        kept, drawn = min(p[place], q[place]), (1.0 - alpha) * residual[place]
        picture.box(left, bottom - scale * kept, wide, scale * kept, COLOURS[0])
        picture.box(left, bottom - scale * (kept + drawn), wide, scale * drawn, COLOURS[0], 0.35)
        picture.box(left + wide + 4, bottom - scale * q[place], wide / 2, scale * q[place], COLOURS[1], 0.8)
        picture.text(left + wide * 0.8, bottom + 20, word)
    picture.line(30, bottom, 560, bottom)
    for row, (colour, opacity, label) in enumerate(
        (
            (COLOURS[0], 1.0, "kept: min(p, q)"),
            (COLOURS[0], 0.35, "drawn in its place"),
            (COLOURS[1], 0.8, "q, the draft's law"),
        )
    ):
        picture.box(566, 60 + 26 * row, 14, 14, colour, opacity)
        picture.text(588, 72 + 26 * row, label, "start")
    picture.text(566, 160, "dark and light: p", "start")
    picture.text(566, 186, f"kept in all: {alpha:.2f}", "start")
    return str(picture)


def _round() -> str:
    words, kept = ("through", "the", "valley", "a", "down", "to"), {1, 2}
    shape = Draft.point(range(len(words)), parents=[-1, 0, 1, 0, -1, 4]).topology
    heights = (118.0, 82.0, 58.0, 30.0, 126.0, 174.0, 174.0)  # of the anchor and the nodes
    picture = Picture("A draft under its anchor, the path that was kept and the bonus token", height=250)

    def place(node: int) -> tuple[float, float]:
        return 76.0 + 150.0 * shape.depths[node], heights[node]

    def word(place: tuple[float, float], text: str, colour: str, fill: bool = False, dashed: bool = False) -> None:
        picture.frame(place[0] - 44, place[1] - 15, 88, 30, colour, fill, dashed)
        picture.text(place[0], place[1] + 4, text, colour=colour)

    def edge(above: tuple[float, float], below: tuple[float, float], colour: str, width: float) -> None:
        picture.line(above[0] + 44, above[1], below[0] - 44, below[1], colour, width)

    for node, parent in enumerate(shape.parents, start=1):
        colour, width = (COLOURS[2], 2.0) if node in kept else (GREY, 1.0)
        edge(place(parent + 1), place(node), colour, width)
    word(place(0), "runs", COLOURS[0], fill=True)
    for node, text in enumerate(words, start=1):
        word(place(node), text, COLOURS[2] if node in kept else GREY, fill=node in kept)
    bonus = (place(3)[0], 84.0)
    edge(place(2), bonus, COLOURS[1], 2.0)
    word(bonus, "forest", COLOURS[1], dashed=True)
    legend = (
        (COLOURS[0], "anchor: the last token of the text"),
        (COLOURS[2], "kept: the target goes on like this"),
        (COLOURS[1], "bonus: the target's own next token"),
        (GREY, "rejected, or not reached"),
    )
    for number, (colour, text) in enumerate(legend):
        picture.text(32 + 340 * (number % 2), 220 + 20 * (number // 2), text, "start", colour)
    return str(picture)
