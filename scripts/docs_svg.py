"""Plots as SVG text, for the figures of the documentation: the same numbers give the same bytes everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
GREY = "#808080"  # for text and axes; seen on light and on dark pages
WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 62, 170, 18, 52
LINE = 16  # between two labels that stand one under the other


@dataclass(frozen=True)
class Series:
    """One line. dots: mark each point. marked: index of a point that is marked larger."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False
    marked: int | None = None


@dataclass
class Picture:
    """An SVG picture in the making, in units of pixels from the upper left corner."""

    title: str
    width: float = WIDTH
    height: float = HEIGHT
    parts: list[str] = field(default_factory=list)

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str = GREY, width: float = 1.0) -> None:
        self.parts.append(
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" '
            f'stroke-width="{width:g}"/>'
        )

    def curve(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def dot(self, x: float, y: float, radius: float, colour: str, filled: bool = True) -> None:
        fill = colour if filled else "none"
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{colour}" stroke-width="1.5"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" '
            f'fill-opacity="{opacity:g}"/>'
        )

    def frame(self, x: float, y: float, width: float, height: float, colour: str, fill: bool, dashed: bool) -> None:
        """A rounded frame around a text."""
        opacity, dash = (0.18 if fill else 0.0), ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" fill="{colour}" '
            f'fill-opacity="{opacity:g}" stroke="{colour}" stroke-width="1.5"{dash}/>'
        )

    def text(self, x: float, y: float, text: str, anchor: str = "middle", colour: str = GREY, turned: bool = False):
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{turn}>{escape(text)}</text>'
        )

    def __str__(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'role="img" font-family="sans-serif" font-size="13">'
        )
        return "\n".join([head, f"<title>{escape(self.title)}</title>", *self.parts, "</svg>"]) + "\n"


def plot(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_names: Sequence[str] | None = None,
) -> str:
    """Lines over two linear axes, from the first to the last tick; each line's label stands at its end."""
    picture = Picture(title)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(x: float) -> float:
        return LEFT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (right - LEFT)

    def up(y: float) -> float:
        return bottom - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - TOP)

    for tick in y_ticks:
        picture.line(LEFT, up(tick), right, up(tick), width=0.4)
        picture.text(LEFT - 8, up(tick) + 4, f"{tick:g}", "end")
    for place, tick in enumerate(x_ticks):
        picture.line(across(tick), bottom, across(tick), bottom + 4)
        picture.text(across(tick), bottom + 19, x_names[place] if x_names else f"{tick:g}")
    picture.line(LEFT, bottom, right, bottom)
    picture.text((LEFT + right) / 2, HEIGHT - 12, x_label)
    picture.text(16, (TOP + bottom) / 2, y_label, turned=True)
    ends = [up(one.y[-1]) for one in series]
    for one, colour, height in zip(series, COLOURS, spread(ends, LINE, bottom), strict=False):
        points = [(across(x), up(y)) for x, y in zip(one.x, one.y, strict=True)]
        picture.curve(points, colour)
        for x, y in points if one.dots else ():
            picture.dot(x, y, 2.5, colour)
        if one.marked is not None:
            picture.dot(*points[one.marked], 6, colour, filled=False)
        picture.text(right + 10, height + 4, one.label, "start", colour)
    return str(picture)


def spread(wanted: Sequence[float], apart: float, most: float) -> list[float]:
    """Places near those that are wanted, none closer to another than `apart` and none beyond `most`."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    places, last = list(wanted), -math.inf
    for at in order:
        places[at] = last = max(places[at], last + apart)
    last = most + apart
    for at in reversed(order):
        places[at] = last = min(places[at], last - apart)
    return places
