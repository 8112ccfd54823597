"""Puts a chart on a canvas: margins, axes, marks. Knows nothing of SVG or PNG, and writes no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias, TypeVar

from liveedge.bench.report.chart import (
    Axis,
    Bars,
    Chart,
    EndLabel,
    Rule,
    Series,
    Shade,
    Strip,
    Style,
)
from liveedge.bench.report.scale import Tick

Anchor: TypeAlias = Literal["start", "middle", "end"]
XY: TypeAlias = tuple[float, float]
T = TypeVar("T")

FONT = 11.0  # px
SMALL = 10.0
CHAR = 0.61  # mean width of a character, in font sizes
ROW = 15.0  # px, of a strip
STRIP_GAP = 5.0  # between strips and plot
LABEL_ROW = 21.0  # the name of the y axis, above the plot
GAP = 8.0  # between texts that stand beside each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """How a text looks."""

    colour: str = "muted"
    size: float = FONT
    anchor: Anchor = "start"
    bold: bool = False


class Canvas(Protocol):
    """What a back end can draw. Pixels from the top left; colours are roles of the palette."""

    def rectangle(self, corner: XY, size: XY, style: Style, *, tip: str = "") -> None:
        """A filled one; a hatch keeps neighbours apart."""
        ...

    def line(self, points: Sequence[XY], style: Style) -> None:
        """Through all points."""
        ...

    def shapes(
        self, points: Sequence[XY], style: Style, *, hollow: bool = False, tips: Sequence[str] = ()
    ) -> None:
        """The shape of the style at each point."""
        ...

    def text(self, at: XY, text: str, letters: Letters) -> None:
        """On the base line `at`."""
        ...


@dataclass(frozen=True, slots=True)
class Plot:
    """The rectangle between the axes."""

    chart: Chart
    left: float
    top: float
    right: float
    bottom: float

    def x(self, value: float) -> float:
        return self.left + self.chart.x.scale.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.chart.y.scale.share(value) * (self.bottom - self.top)

    def at(self, value: XY) -> XY:
        return self.x(value[0]), self.y(value[1])


def text_width(text: str, size: float = FONT) -> float:
    """About: fonts differ from reader to reader."""
    return len(text) * size * CHAR


def draw(chart: Chart, canvas: Canvas, size: XY) -> Plot:
    """The whole chart without its title and key, which belong to the page."""
    plot = _plot(chart, size)
    for shade in _of(chart, Shade):
        _shade(plot, canvas, shade)
    _axes(plot, canvas)
    for bars in _of(chart, Bars):
        _bars(plot, canvas, bars)
    for rule in _of(chart, Rule):
        _rule(plot, canvas, rule)
    for series in _of(chart, Series):
        _series(plot, canvas, series)
    for row, strip in enumerate(_of(chart, Strip)):
        _strip(plot, canvas, strip, plot.top - ROW * (row + 0.5) - STRIP_GAP)
    _end_labels(plot, canvas, list(_of(chart, EndLabel)))
    return plot


def _of(chart: Chart, kind: type[T]) -> Iterator[T]:
    return (mark for mark in chart.marks if isinstance(mark, kind))


def _plot(chart: Chart, size: XY) -> Plot:
    """Margins that hold the texts around it."""
    strips = list(_of(chart, Strip))
    ends = list(_of(chart, EndLabel))
    written = [tick.text for tick in chart.y.ticks] + [strip.caption for strip in strips]
    last_x = chart.x.ticks[-1].text if chart.x.ticks else ""
    return Plot(
        chart,
        left=max((text_width(text) for text in written), default=0.0) + GAP,
        top=LABEL_ROW + (ROW * len(strips) + STRIP_GAP if strips else 0),
        right=size[0]
        - max(
            [text_width(last_x) / 2, GAP] + [text_width(label.text, SMALL) + GAP for label in ends]
        ),
        bottom=size[1] - FONT * 3.1,
    )


def _axes(plot: Plot, canvas: Canvas) -> None:
    x, y = plot.chart.x, plot.chart.y
    grid = Style(colour="grid", width=1)
    for tick in y.ticks:
        if y.grid:
            canvas.line([(plot.left, plot.y(tick.at)), (plot.right, plot.y(tick.at))], grid)
        beside = (plot.left - GAP * 0.75, plot.y(tick.at) + FONT * 0.35)
        canvas.text(beside, tick.text, Letters(anchor="end"))
    for tick in x.ticks:
        if x.grid:
            canvas.line([(plot.x(tick.at), plot.top), (plot.x(tick.at), plot.bottom)], grid)
    axis = Style(colour="axis", width=1)
    canvas.line([(plot.left, plot.bottom), (plot.right, plot.bottom)], axis)
    for tick, place in _with_room(x, plot):
        canvas.line([(place, plot.bottom), (place, plot.bottom + 4)], axis)
        canvas.text((place, plot.bottom + FONT + 5), tick.text, Letters(anchor="middle"))
    middle = (plot.left + plot.right) / 2
    canvas.text((middle, plot.bottom + FONT * 2 + 8), x.label, Letters(anchor="middle"))
    canvas.text((0, FONT), y.label, Letters())


def _with_room(axis: Axis, plot: Plot) -> Iterable[tuple[Tick, float]]:
    """Ticks whose texts do not touch; those at the ends of the row come first."""
    placed = [(tick, plot.x(tick.at)) for tick in axis.ticks if tick.text]
    kept: list[tuple[Tick, float]] = []
    for tick, place in placed[-1:] + placed[:-1]:
        half = text_width(tick.text) / 2
        if all(
            abs(place - other) >= half + text_width(known.text) / 2 + GAP * 0.75
            for known, other in kept
        ):
            kept.append((tick, place))
    return kept


def _shade(plot: Plot, canvas: Canvas, shade: Shade) -> None:
    left, right = plot.x(shade.x0), plot.x(shade.x1)
    canvas.rectangle((left, plot.top), (right - left, plot.bottom - plot.top), shade.style)


def _bars(plot: Plot, canvas: Canvas, bars: Bars) -> None:
    for box in bars.boxes:
        left, right = plot.x(box.x0), plot.x(box.x1)
        top, bottom = plot.y(box.y1), plot.y(box.y0)
        canvas.rectangle((left, top), (right - left, bottom - top), bars.style, tip=box.tip)


def _rule(plot: Plot, canvas: Canvas, rule: Rule) -> None:
    letters = Letters(colour=rule.style.colour, size=SMALL, anchor="end")
    if rule.along == "x":
        y = plot.y(rule.at)
        canvas.line([(plot.left, y), (plot.right, y)], rule.style)
        below = y - plot.top < SMALL * 1.5
        canvas.text((plot.right - 2, y + (SMALL + 2 if below else -4)), rule.label, letters)
        return
    x = plot.x(rule.at)
    canvas.line([(x, plot.top), (x, plot.bottom)], rule.style)
    if x - plot.left < text_width(rule.label, SMALL) + GAP:
        x, letters = x + 8, replace(letters, anchor="start")
    canvas.text((x - 4, plot.top + SMALL + 1), rule.label, letters)


def _series(plot: Plot, canvas: Canvas, series: Series) -> None:
    if series.joined:
        for run in _runs(series.points):
            path = [plot.at(point) for point in run]
            path = _stairs(path) if series.stairs else path
            canvas.line([(x + series.dodge, y) for x, y in path], series.style)
    _whiskers(plot, canvas, series)
    if series.style.shape == "none":
        return
    for hollow in (False, True):
        numbers = [
            number
            for number, (_, y) in enumerate(series.points)
            if y is not None and (number in series.hollow) == hollow
        ]
        if numbers:
            _shapes(plot, canvas, series, numbers)


def _shapes(plot: Plot, canvas: Canvas, series: Series, numbers: Sequence[int]) -> None:
    points = []
    for number in numbers:
        x, y = series.points[number]
        points.append((plot.x(x) + series.dodge, plot.y(y or 0.0)))
    tips = [series.tips[number] for number in numbers] if series.tips else []
    canvas.shapes(points, series.style, hollow=numbers[0] in series.hollow, tips=tips)


def _runs(points: Sequence[tuple[float, float | None]]) -> Iterator[list[XY]]:
    """Points in a row, broken where one has no value."""
    run: list[XY] = []
    for x, y in points:
        if y is None:
            if len(run) > 1:
                yield run
            run = []
        else:
            run.append((x, y))
    if len(run) > 1:
        yield run


def _stairs(path: Sequence[XY]) -> list[XY]:
    made = [path[0]]
    for x, y in path[1:]:
        made += [(x, made[-1][1]), (x, y)]
    return made


def _whiskers(plot: Plot, canvas: Canvas, series: Series) -> None:
    style = replace(series.style, dash="solid", width=1.2, strength=0.75)
    for point, interval in zip(series.points, series.intervals, strict=False):
        if interval is None or point[1] is None:
            continue
        low, high = interval
        if series.across:
            y = plot.y(point[1]) + series.dodge
            _whisker(canvas, ((plot.x(low), y), (plot.x(high), y)), (0, 3), style)
        else:
            x = plot.x(point[0]) + series.dodge
            _whisker(canvas, ((x, plot.y(low)), (x, plot.y(high))), (3, 0), style)


def _whisker(canvas: Canvas, ends: tuple[XY, XY], cap: XY, style: Style) -> None:
    canvas.line(ends, style)
    for x, y in ends:
        canvas.line([(x - cap[0], y - cap[1]), (x + cap[0], y + cap[1])], style)


def _strip(plot: Plot, canvas: Canvas, strip: Strip, y: float) -> None:
    letters = Letters(colour=strip.style.colour, size=SMALL, anchor="middle")
    beside = replace(letters, anchor="end")
    base = y + SMALL * 0.35
    canvas.text((plot.left - GAP * 0.75, base), strip.caption, beside)
    shapes = [(plot.x(x), y) for x, text in strip.items if not text]
    if shapes:
        canvas.shapes(shapes, strip.style)
    free_from = plot.left - GAP
    for x, text in strip.items:
        half = text_width(text, SMALL) / 2
        place = min(plot.x(x), plot.right + GAP - half)
        if text and place - half >= free_from:
            canvas.text((place, base), text, letters)
            free_from = place + half + 2
        elif text:  # said in a table; here it must be seen that there is something
            canvas.shapes(
                [(plot.x(x), y + ROW * 0.45)], replace(strip.style, shape="down", size=2.2)
            )


def _end_labels(plot: Plot, canvas: Canvas, labels: Sequence[EndLabel]) -> None:
    """Beside their values, pushed down where they would touch."""
    free_from = plot.top - SMALL
    for label in sorted(labels, key=lambda label: -label.y):
        y = max(plot.y(label.y), free_from)
        letters = Letters(colour=label.colour, size=SMALL)
        canvas.text((plot.right + GAP * 0.6, y + SMALL * 0.35), label.text, letters)
        free_from = y + SMALL + 1


def draw_sample(mark: Series | Bars | Shade | Strip, canvas: Canvas, at: XY = (0.0, 0.0)) -> None:
    """What stands for a mark in the key: 26 x 12 px."""
    x, y = at
    middle = (x + 13, y + 6)
    if isinstance(mark, (Bars, Shade)):
        canvas.rectangle((x + 4, y), (18, 12), mark.style)
        return
    if isinstance(mark, Series) and mark.joined:
        canvas.line([(x + 1, y + 6), (x + 25, y + 6)], mark.style)
    if mark.style.shape != "none":
        canvas.shapes([middle], mark.style, hollow=_all_hollow(mark))


def _all_hollow(mark: Series | Strip) -> bool:
    return isinstance(mark, Series) and 0 < len(mark.points) <= len(mark.hollow)
