"""Charts as data: axes and marks, without a pixel. `draw` puts one on a canvas, SVG or PNG.

Whoever makes a chart says everything in it: title, a description for those who do not see it,
what each mark is called, and in `notes` what is not drawn and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from liveedge.bench.report.scale import Scale, Tick

Shape: TypeAlias = Literal["none", "dot", "square", "diamond", "up", "down", "cross", "plus"]
Dash: TypeAlias = Literal["solid", "dashed", "dotted", "dashdot"]
DASHES: tuple[Dash, ...] = ("solid", "dashed", "dotted", "dashdot")
HATCHES = 5  # 0 is plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a mark looks; `colour` is a role of the palette."""

    colour: str = "c0"
    dash: Dash = "solid"
    shape: Shape = "none"
    width: float = 1.8  # px
    size: float = 3.2  # half of a shape, px
    hatch: int = 0
    strength: float = 1.0  # opacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction."""

    label: str
    scale: Scale
    ticks: Sequence[Tick]
    grid: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points, joined or not. A point without `y` is a gap in the line."""

    label: str  # empty: not in the key
    points: Sequence[tuple[float, float | None]]
    style: Style = field(default_factory=Style)
    joined: bool = True
    stairs: bool = False  # keeps its value until the next point
    intervals: Sequence[tuple[float, float] | None] = ()  # by point: whiskers, along y
    across: bool = False  # intervals lie along x
    hollow: frozenset[int] = frozenset()  # numbers of points that carry less
    dodge: float = 0.0  # px to the right, so that whiskers at one x can be told apart
    tips: Sequence[str] = ()  # by point: what a reader hears or sees on it


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a stack, in values."""

    x0: float
    x1: float
    y0: float
    y1: float
    tip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """The boxes of one kind in all stacks."""

    label: str
    boxes: Sequence[Box]
    style: Style = field(default_factory=Style)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line through the whole plot, with its name on it."""

    at: float
    along: Literal["x", "y"] = "x"  # "x": horizontal, at a value of y
    label: str = ""
    style: Style = field(default_factory=lambda: Style(colour="muted", dash="dashed", width=1.2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """A part of the x axis that is different: an invalid step, a warm-up."""

    x0: float
    x1: float
    label: str = ""  # in the key
    style: Style = field(default_factory=lambda: Style(colour="shade"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A row above the plot for what has no value of y: a text or a shape at some x."""

    caption: str
    items: Sequence[tuple[float, str]]  # an empty text: the shape
    style: Style = field(default_factory=lambda: Style(colour="bad"))
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLabel:
    """A text in the right margin beside a value of y."""

    y: float
    text: str
    colour: str = "ink"


Mark: TypeAlias = Series | Bars | Rule | Shade | Strip | EndLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One plot."""

    title: str
    about: str  # what it shows, in a sentence, for those who do not see it
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    notes: Sequence[str] = ()
    wide: bool = False  # time runs along x: as wide as the page

    def named(self) -> Iterator[Series | Bars | Shade | Strip]:
        """Marks for the key, in their order."""
        for mark in self.marks:
            if isinstance(mark, (Series, Bars, Shade, Strip)) and mark.label:
                yield mark


def thinned(
    points: Sequence[tuple[float, float]], *, most: int
) -> tuple[Sequence[tuple[float, float]], int]:
    """At most `most` points, evenly taken, and how many were left out."""
    if len(points) <= most:
        return points, 0
    stride = len(points) / most
    kept = [points[int(number * stride)] for number in range(most)]
    return kept, len(points) - len(kept)
