"""Charts as inline SVG: no script, colours by the custom properties of `palette.css`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from liveedge.bench.report.chart import Bars, Chart, Dash, Series, Shade, Shape, Strip, Style
from liveedge.bench.report.draw import XY, Letters, draw, draw_sample

DASH: Mapping[Dash, str] = {
    "solid": "",
    "dashed": ' stroke-dasharray="5 3.5"',
    "dotted": ' stroke-dasharray="1.5 3"',
    "dashdot": ' stroke-dasharray="7 3 1.5 3"',
}
# Outlines around (0, 0) in halves of a shape, drawn from wherever the pen is.
OUTLINE: Mapping[Shape, Sequence[Sequence[XY]]] = {
    "square": [[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]],
    "diamond": [[(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)]],
    "up": [[(0, -1.2), (1.15, 0.9), (-1.15, 0.9)]],
    "down": [[(0, 1.2), (1.15, -0.9), (-1.15, -0.9)]],
    "cross": [[(-1, -1), (1, 1)], [(-1, 1), (1, -1)]],
    "plus": [[(-1.2, 0), (1.2, 0)], [(0, -1.2), (0, 1.2)]],
}
HATCHED = 6.0  # px between the lines of a hatch
# Characters that XML cannot hold, escaped or not, and those that turn the texts around them.
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Somebody's text as text: escaped, without what would break the document around it."""
    return escape(_CONTROL.sub("\ufffd", text), quote=True)


def _n(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 0.05 else "0"


class SvgCanvas:
    """Collects elements. Hatches are defined once per document (`hatches`)."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def rectangle(self, corner: XY, size: XY, style: Style, *, tip: str = "") -> None:
        if size[0] <= 0 or size[1] <= 0:
            return
        box = (
            f'x="{_n(corner[0])}" y="{_n(corner[1])}"'
            f' width="{_n(max(size[0], 0.5))}" height="{_n(max(size[1], 0.5))}"'
        )
        title = f"<title>{clean(tip)}</title>" if tip else ""
        self.parts.append(f'<rect {box} fill="var(--{style.colour})">{title}</rect>')
        if style.hatch:
            self.parts.append(
                f'<rect {box} fill="url(#hatch{style.hatch})" pointer-events="none"/>'
            )

    def line(self, points: Sequence[XY], style: Style) -> None:
        if not points:
            return
        path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self.parts.append(f'<path d="{path}" fill="none"{_stroke(style)}{DASH[style.dash]}/>')

    def shapes(
        self, points: Sequence[XY], style: Style, *, hollow: bool = False, tips: Sequence[str] = ()
    ) -> None:
        if not tips:
            self.parts.append(_shapes(points, style, hollow=hollow) + "/>")
            return
        for point, tip in zip(points, tips, strict=True):
            shape = _shapes([point], style, hollow=hollow)
            self.parts.append(f"{shape}><title>{clean(tip)}</title></path>")

    def text(self, at: XY, text: str, letters: Letters) -> None:
        if not text:
            return
        anchor = "" if letters.anchor == "start" else f' text-anchor="{letters.anchor}"'
        bold = ' font-weight="600"' if letters.bold else ""
        self.parts.append(
            f'<text x="{_n(at[0])}" y="{_n(at[1])}" font-size="{_n(letters.size)}"'
            f' fill="var(--{letters.colour})"{anchor}{bold}>{clean(text)}</text>'
        )


def _stroke(style: Style) -> str:
    faint = f' stroke-opacity="{style.strength:g}"' if style.strength < 1 else ""
    return f' stroke="var(--{style.colour})" stroke-width="{style.width:g}"{faint}'


def _shapes(points: Sequence[XY], style: Style, *, hollow: bool) -> str:
    """One path for all, without its end. Dots are round ends of lines without a length."""
    if style.shape == "dot" and not hollow:
        path = "".join(f"M{_n(x)} {_n(y)}h0" for x, y in points)
        dot = Style(colour=style.colour, width=style.size * 2, strength=style.strength)
        return f'<path d="{path}" fill="none" stroke-linecap="round"{_stroke(dot)}'
    if style.shape == "dot":
        radius = _n(style.size - 0.4)
        around = f"a{radius} {radius} 0 1 0 {_n(2 * style.size - 0.8)} 0"
        back = f"a{radius} {radius} 0 1 0 -{_n(2 * style.size - 0.8)} 0z"
        path = "".join(f"M{_n(x - style.size + 0.4)} {_n(y)}{around}{back}" for x, y in points)
    else:
        path = "".join(_outline(x, y, style) for x, y in points)
    fill = "var(--paper)" if hollow else f"var(--{style.colour})"
    faint = f' fill-opacity="{style.strength:g}"' if style.strength < 1 else ""
    edge = Style(colour=style.colour, width=1.5, strength=style.strength)
    return f'<path d="{path}" fill="{fill}"{faint}{_stroke(edge)}'


def _outline(x: float, y: float, style: Style) -> str:
    made = []
    for stroke in OUTLINE[style.shape]:
        at = [(x + dx * style.size, y + dy * style.size) for dx, dy in stroke]
        made.append("M" + "L".join(f"{_n(one)} {_n(other)}" for one, other in at))
        made.append("z" if len(stroke) > 2 else "")
    return "".join(made)


def hatches() -> str:
    """Definitions that `rectangle` refers to: once in a document, before its charts."""
    step = HATCHED
    lines = {
        1: f"M0 {step}L{step} 0M-1 1L1 -1M{step - 1} {step + 1}L{step + 1} {step - 1}",
        2: f"M0 0L{step} {step}M-1 {step - 1}L1 {step + 1}M{step - 1} -1L{step + 1} 1",
        3: f"M0 {step / 2}H{step}",
        4: f"M{step / 2} 0V{step}",
    }
    patterns = "".join(
        f'<pattern id="hatch{number}" width="{step:g}" height="{step:g}"'
        f' patternUnits="userSpaceOnUse"><path d="{path}" stroke="var(--paper)"'
        ' stroke-width="1.3" stroke-opacity="0.75"/></pattern>'
        for number, path in lines.items()
    )
    return (
        '<svg width="0" height="0" aria-hidden="true" style="position:absolute">'
        f"<defs>{patterns}</defs></svg>"
    )


def chart_svg(chart: Chart, size: XY, *, name: str, css_class: str = "") -> str:
    """The plot of a chart. `name` is unique in its document."""
    canvas = SvgCanvas()
    draw(chart, canvas, size)
    made_for = f' class="{clean(css_class)}"' if css_class else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(size[0])} {_n(size[1])}"'
        f'{made_for} role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{clean(chart.title)}</title>'
        f'<desc id="{name}-d">{clean(chart.about)}</desc>{"".join(canvas.parts)}</svg>'
    )


def sample(mark: Series | Bars | Shade | Strip) -> str:
    """The little picture of a mark for the key beside a chart."""
    canvas = SvgCanvas()
    draw_sample(mark, canvas)
    inside = "".join(canvas.parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 26 12" width="26" height="12"'
        f' aria-hidden="true">{inside}</svg>'
    )
