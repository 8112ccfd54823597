"""Line charts of a soak as inline SVG. Colours come from the page's style, so that light and dark hold."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias, TypeVar

WIDTH, HEIGHT = 760, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 26
SPARK_WIDTH, SPARK_HEIGHT = 150, 28
N_TICKS = 4
MOST_POINTS = 700  # of a line: more are not seen
MOST_DOTS = 160
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

T = TypeVar("T")
Point: TypeAlias = tuple[float, float, Hashable]  # at s, value, group


@dataclass(frozen=True, slots=True)
class Drawn:
    """A line; it is broken where the group changes."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the run that a chart shows, such as a kill."""

    at_s: float
    name: str


@dataclass(frozen=True, slots=True)
class _Axes:
    end_s: float
    low: float
    high: float

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / max(self.end_s, 1.0)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def chart(
    title: str, unit: str, drawn: Sequence[Drawn], *, end_s: float, marks: Sequence[Mark]
) -> str:
    """A chart with axes and a legend; empty where there is nothing to draw."""
    lines = [line for line in drawn if line.points]
    if not lines:
        return ""
    values = [value for line in lines for _, value, _ in line.points]
    ticks = nice_ticks(
        min(0.0, *values) if min(values) < max(values) / 3 else min(values), max(values)
    )
    axes = _Axes(end_s, ticks[0], ticks[-1])
    parts = [*_grid(axes, ticks), *_hours(axes), *_marked(axes, marks)]
    for number, line in enumerate(lines):
        parts += [
            f'<path class="line c{number}" d="{path}"><title>{escape(line.name)}</title></path>'
            for path in _paths(axes, line.points)
        ]
    keys = "".join(
        f'<span><i class="c{number}"></i>{escape(line.name)}</span>'
        for number, line in enumerate(lines)
    )
    return (
        f"<figure><figcaption>{escape(title)}, {escape(unit)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg><div class='keys'>{keys}</div></figure>"
    )


def spark(settling: Sequence[Point], points: Sequence[Point], *, end_s: float) -> str:
    """A small line without axes; what is not judged is pale."""
    values = [value for _, value, _ in [*settling, *points]]
    if not values:
        return ""
    low, high = min(values), max(values)
    height = (high - low) or 1.0

    def dots(kind: str, some: Sequence[Point]) -> str:
        path = "".join(
            f"M{SPARK_WIDTH * at_s / max(end_s, 1.0):.0f}"
            f" {SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * (value - low) / height:.1f}h0"
            for at_s, value, _ in _thin(some, MOST_DOTS)
        )
        return f'<path class="{kind}" d="{path}"/>' if path else ""

    return (
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" aria-hidden="true">'
        f"{dots('pale', settling)}{dots('dot', points)}</svg>"
    )


def nice_ticks(low: float, high: float) -> list[float]:
    """Round values from below `low` to above `high`, evenly spaced."""
    span = (high - low) or abs(high) or 1.0
    rough = span / N_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in STEPS if power * nice >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, max(last, first + 1) + 1)]


def _grid(axes: _Axes, ticks: Sequence[float]) -> Iterator[str]:
    for value in ticks:
        y = axes.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'


def _hours(axes: _Axes) -> Iterator[str]:
    ticks = nice_ticks(0.0, axes.end_s / 3600)
    for hours in ticks:
        if hours * 3600 <= axes.end_s * 1.001:
            x = axes.x(hours * 3600)
            yield (
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{hours:g} h'
                "</text>"
            )


def _marked(axes: _Axes, marks: Sequence[Mark]) -> Iterator[str]:
    for mark in marks:
        x = axes.x(mark.at_s)
        yield (
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{escape(mark.name)}</title></line>"
        )


def _paths(axes: _Axes, points: Sequence[Point]) -> Iterator[str]:
    """One path per group."""
    groups: dict[Hashable, list[Point]] = {}
    for point in _thin(points, MOST_POINTS):
        groups.setdefault(point[2], []).append(point)
    for group in groups.values():
        steps = [f"{axes.x(at_s):.1f} {axes.y(value):.1f}" for at_s, value, _ in group]
        yield "M" + "L".join(steps) + ("h0.1" if len(steps) == 1 else "")


def _thin(points: Sequence[T], most: int) -> Sequence[T]:
    return points[:: max(1, len(points) // most)]
