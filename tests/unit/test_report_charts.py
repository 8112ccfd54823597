"""Charts: what is described is drawn, once, by both back ends, and nothing of it is dropped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args
from xml.etree import ElementTree

import pytest

from liveedge.bench.report.chart import (
    DASHES,
    Axis,
    Bars,
    Box,
    Chart,
    EndLabel,
    Mark,
    Rule,
    Series,
    Shade,
    Shape,
    Strip,
    Style,
)
from liveedge.bench.report.draw import XY, Letters, draw
from liveedge.bench.report.palette import ROLES, ramp
from liveedge.bench.report.png import Sheet
from liveedge.bench.report.scale import Scale, Tick, linear, plain, ticks
from liveedge.bench.report.svg import chart_svg, clean, hatches, sample

HOSTILE = "<script>alert(1)</script> & \"x\" 'y' \x00\x1b[31m \ud800 ]]> {{7*7}}"
SIZE = (420.0, 270.0)


class Seen:
    """A canvas that remembers."""

    def __init__(self) -> None:
        self.rectangles: list[tuple[XY, XY]] = []
        self.lines: list[list[XY]] = []
        self.points: list[tuple[XY, str, bool]] = []
        self.texts: list[tuple[XY, str, Letters]] = []

    def rectangle(self, corner: XY, size: XY, style: Style, *, tip: str = "") -> None:
        self.rectangles.append((corner, size))

    def line(self, points: Sequence[XY], style: Style) -> None:
        self.lines.append(list(points))

    def shapes(
        self, points: Sequence[XY], style: Style, *, hollow: bool = False, tips: Sequence[str] = ()
    ) -> None:
        self.points += [(point, style.shape, hollow) for point in points]

    def text(self, at: XY, text: str, letters: Letters) -> None:
        self.texts.append((at, text, letters))


def chart(*marks: Mark, x: Scale | None = None, y: Scale | None = None) -> Chart:
    x, y = x or Scale(0, 10), y or Scale(0, 100)
    return Chart(
        title="A chart",
        about="for a test",
        x=Axis(label="load", scale=x, ticks=ticks(x, plain)),
        y=Axis(label="ms", scale=y, ticks=ticks(y, plain)),
        marks=marks,
    )


def seen(one: Chart) -> Seen:
    canvas = Seen()
    draw(one, canvas, SIZE)
    return canvas


EVERYTHING = chart(
    Shade(x0=2, x1=4, label="not valid"),
    Bars(label="bars", boxes=[Box(0, 1, 0, 50, "half"), Box(1, 2, 0, 0)], style=Style(hatch=3)),
    Rule(at=80, label="SLO"),
    Rule(at=9, along="y", label="time-out"),
    Strip(caption="not ok", items=[(1, "12 %"), (5, "")], style=Style(shape="plus")),
    EndLabel(y=99, text="99 %"),
    *(
        Series(
            label=f"{shape} {dash}",
            points=[(0, 1), (1, None), (2, 30), (3, 40)],
            intervals=[None, None, (20, 35), None],
            style=Style(shape=shape, dash=dash, hatch=1, strength=0.5),
            hollow=frozenset({2}),
            tips=["a", "b", "c", "d"],
        )
        for shape in get_args(Shape)
        for dash in DASHES
    ),
)


def test_every_point_has_its_shape() -> None:
    canvas = seen(
        chart(Series(label="a", points=[(1, 10), (2, None), (3, 30)], style=Style(shape="up")))
    )
    assert [shape for _, shape, _ in canvas.points] == ["up", "up"]


def test_a_missing_value_breaks_the_line() -> None:
    series = Series(label="a", points=[(0, 1), (1, 2), (2, None), (3, 4), (4, 5)])
    base = len(seen(chart()).lines)
    drawn = seen(chart(series)).lines[base:]
    assert [len(line) for line in drawn] == [2, 2]


def test_a_value_beyond_the_axis_is_drawn_at_its_edge() -> None:
    point = Series(label="a", points=[(50, 1e9)], style=Style(shape="dot"))
    ((x, y), _, _) = seen(chart(point)).points[0]
    assert 0 <= x <= SIZE[0]
    assert 0 <= y <= SIZE[1]


def test_points_that_carry_less_are_hollow() -> None:
    series = Series(
        label="a", points=[(1, 10), (2, 20)], style=Style(shape="dot"), hollow=frozenset({1})
    )
    assert [hollow for _, _, hollow in seen(chart(series)).points] == [False, True]


def test_stairs_keep_their_value_until_the_next_point() -> None:
    base = len(seen(chart()).lines)
    line = seen(chart(Series(label="a", points=[(0, 0), (5, 50), (10, 100)], stairs=True))).lines[
        base
    ]
    assert len(line) == 5
    assert line[1] == (line[2][0], line[0][1])


def test_what_has_no_value_stands_above_the_plot() -> None:
    strip = Strip(caption="no end", items=[(5, "")], style=Style(shape="plus"))
    canvas = seen(chart(strip))
    ((_, y), shape, _) = canvas.points[0]
    top = min(at[1] for line in canvas.lines for at in line)
    assert shape == "plus"
    assert y < top


def test_a_text_without_room_leaves_a_mark() -> None:
    strip = Strip(caption="not ok", items=[(5, "12 %"), (5.1, "13 %"), (9, "14 %")])
    canvas = seen(chart(strip))
    assert [text for _, text, _ in canvas.texts if "%" in text] == ["12 %", "14 %"]
    assert len(canvas.points) == 1


def test_labels_in_the_margin_do_not_touch() -> None:
    labels = [EndLabel(y=99 + n / 10, text=f"{n}") for n in range(5)]
    canvas = seen(chart(*labels))
    bases = sorted(
        at[1] for at, _, letters in canvas.texts if at[0] > SIZE[0] - 30 and letters.size < 11
    )
    assert all(after - before >= 10 for before, after in pairwise(bases))


def test_texts_of_the_x_axis_do_not_touch() -> None:
    loads = [1.0, 2.0, 3.0, 4.0, 1000.0, 1010.0]
    scale = linear(loads)
    one = Chart(
        title="",
        about="",
        x=Axis(label="", scale=scale, ticks=[Tick(load, plain(load)) for load in loads]),
        y=Axis(label="", scale=Scale(0, 1), ticks=()),
        marks=(),
    )
    spans = sorted(
        (at[0] - len(text) * 3.1, at[0] + len(text) * 3.1)
        for at, text, _ in seen(one).texts
        if text
    )
    assert spans
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_svg_is_well_formed_and_says_what_it_shows() -> None:
    root = ElementTree.fromstring(chart_svg(EVERYTHING, SIZE, name="c"))
    space = "{http://www.w3.org/2000/svg}"
    assert root.attrib["aria-labelledby"] == "c-t c-d"
    assert root.findtext(f"{space}title") == "A chart"
    assert root.findtext(f"{space}desc") == "for a test"
    for mark in EVERYTHING.named():
        ElementTree.fromstring(sample(mark))


def test_svg_has_numbers_alone_in_its_paths() -> None:
    for path in re.findall(r' d="([^"]*)"', chart_svg(EVERYTHING, SIZE, name="c")):
        assert re.fullmatch(r"[MLhaz\d .-]*", path), path


@pytest.mark.parametrize("place", ["title", "axis", "tick", "label", "tip", "caption"])
def test_hostile_texts_are_texts(place: str) -> None:
    def at(where: str) -> str:
        return HOSTILE if where == place else "plain"

    x = Scale(0, 10)
    tick = [*ticks(x, lambda _: at("tick"))]
    one = Chart(
        title=at("title"),
        about=at("title"),
        x=Axis(label=at("axis"), scale=x, ticks=tick),
        y=Axis(label=at("axis"), scale=x, ticks=tick),
        marks=[
            Series(label=at("label"), points=[(1, 1)], style=Style(shape="dot"), tips=[at("tip")]),
            Bars(label=at("label"), boxes=[Box(0, 1, 0, 1, at("tip"))]),
            Strip(caption=at("caption"), items=[(1, at("caption"))]),
            EndLabel(y=1, text=at("label")),
            Rule(at=1, label=at("label")),
        ],
    )
    text = chart_svg(one, SIZE, name="c")
    ElementTree.fromstring(text)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    sheet = Sheet(500, 400)
    sheet.chart(one, (10, 10), SIZE)


def test_what_xml_cannot_hold_is_replaced() -> None:
    ElementTree.fromstring(f"<a b='{clean(HOSTILE)}'>{clean(HOSTILE)}</a>")


def test_hatches_are_well_formed() -> None:
    ElementTree.fromstring(
        hatches().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )


def test_the_picture_has_what_the_page_has(tmp_path) -> None:
    empty, full = Sheet(460, 320), Sheet(460, 320)
    empty.chart(chart(), (10, 10), SIZE)
    full.chart(EVERYTHING, (10, 10), SIZE)
    assert empty.image.tobytes() != full.image.tobytes()
    full.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_chart_without_a_mark_is_a_chart() -> None:
    ElementTree.fromstring(chart_svg(chart(), SIZE, name="c"))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear_parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear_parts, strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_their_paper(theme: int) -> None:
    paper, raised = ROLES["paper"][theme], ROLES["raised"][theme]
    for role in ("ink", "muted", "link", "good", "bad", "doubt"):
        assert contrast(ROLES[role][theme], paper) >= 4.5, role
    for role in ("ink", "muted"):
        assert contrast(ROLES[role][theme], raised) >= 4.5, role
    for role in ROLES:
        if re.fullmatch(r"[cr]\d", role):  # they are texts too, beside curves
            assert contrast(ROLES[role][theme], paper) >= 4.5, role
    assert contrast(ROLES["axis"][theme], paper) >= 3


def test_an_order_has_a_colour_for_every_place() -> None:
    for count in (1, 2, 7, 8, 30):
        assert all(ramp(place, count) in ROLES for place in range(count))
