"""Charts as PNG, by Pillow and the font that it carries: one sheet on light paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from liveedge.bench.report.chart import Chart, Dash, Style
from liveedge.bench.report.draw import XY, Letters, draw, draw_sample
from liveedge.bench.report.palette import light
from liveedge.bench.report.svg import HATCHED, OUTLINE

FINE = 4  # pixels drawn for one of the sheet, each way: Pillow smooths no line, and two become one
DASH: Mapping[Dash, Sequence[float]] = {
    "solid": (),
    "dashed": (5, 3.5),
    "dotted": (1.5, 3),
    "dashdot": (7, 3, 1.5, 3),
}
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


class PngCanvas:
    """A part of a sheet, from `origin`. Coordinates as for SVG."""

    def __init__(self, sheet: Sheet, origin: XY) -> None:
        self._sheet = sheet
        self._fine = sheet.fine
        self._origin = origin

    def rectangle(self, corner: XY, size: XY, style: Style, *, tip: str = "") -> None:
        if size[0] <= 0 or size[1] <= 0:
            return
        left, top = self._at(corner)
        right, bottom = self._at((corner[0] + size[0], corner[1] + max(size[1], 0.5)))
        box = (round(left), round(top), max(round(right), round(left)), round(bottom))
        self._sheet.pen.rectangle(box, fill=light(style.colour))
        if style.hatch:
            self._hatch(box, style.hatch)

    def line(self, points: Sequence[XY], style: Style) -> None:
        path = [self._at(point) for point in points]
        width = max(round(style.width * self._fine), 1)
        dashes = [one * self._fine for one in DASH[style.dash]]
        colour = _mixed(style)
        for run in _dashed(path, dashes) if dashes else [path]:
            self._sheet.pen.line(run, fill=colour, width=width, joint="curve")

    def shapes(
        self, points: Sequence[XY], style: Style, *, hollow: bool = False, tips: Sequence[str] = ()
    ) -> None:
        for point in points:
            self._shape(point, style, hollow=hollow)

    def text(self, at: XY, text: str, letters: Letters) -> None:
        font = self._sheet.font(letters.size)
        anchor = _ANCHORS[letters.anchor]
        thick = round(self._fine * 0.4) if letters.bold else 0
        line = " ".join(text.split())
        self._sheet.pen.text(
            self._at(at), line, fill=light(letters.colour), font=font, anchor=anchor,
            stroke_width=thick, stroke_fill=light(letters.colour),
        )  # fmt: skip

    def _at(self, point: XY) -> XY:
        return (self._origin[0] + point[0]) * self._fine, (self._origin[1] + point[1]) * self._fine

    def _shape(self, point: XY, style: Style, *, hollow: bool) -> None:
        pen, colour = self._sheet.pen, _mixed(style)
        fill = light("paper") if hollow else colour
        edge = round(1.5 * self._fine)
        x, y = self._at(point)
        half = style.size * self._fine
        if style.shape == "dot":
            pen.ellipse((x - half, y - half, x + half, y + half), fill, colour, edge)
            return
        for stroke in OUTLINE[style.shape]:
            at = [(x + dx * half, y + dy * half) for dx, dy in stroke]
            if len(at) > 2:  # with a width of its own a polygon costs a whole picture
                pen.polygon(at, fill)
                at = [*at, at[0], at[1]]
            pen.line(at, colour, edge, joint="curve")

    def _hatch(self, box: tuple[int, int, int, int], number: int) -> None:
        """Lines inside a box: an image of its own, so that they end at its edges."""
        width, height = box[2] - box[0] + 1, box[3] - box[1] + 1
        tile = self._sheet.image.crop((box[0], box[1], box[2] + 1, box[3] + 1))
        pen = ImageDraw.Draw(tile)
        step = round(HATCHED * self._fine)
        for offset in range(-height - step, width + height + step, step):
            ends = {
                1: (offset, height, offset + height, 0),
                2: (offset, 0, offset + height, height),
                3: (0, offset, width, offset),
                4: (offset, 0, offset, height),
            }[number]
            pen.line(ends, fill=light("paper"), width=self._fine)
        self._sheet.image.paste(tile, (box[0], box[1]))


def _mixed(style: Style) -> tuple[int, int, int]:
    """The colour as it looks on paper at its strength."""
    mixed = [
        round(below + (above - below) * style.strength)
        for above, below in zip(_rgb(style.colour), _rgb("paper"), strict=True)
    ]
    return mixed[0], mixed[1], mixed[2]


def _rgb(role: str) -> tuple[int, int, int]:
    number = int(light(role)[1:], 16)
    return number >> 16, number >> 8 & 255, number & 255


def _dashed(path: Sequence[XY], dashes: Sequence[float]) -> list[list[XY]]:
    """The parts of a path that are drawn."""
    runs: list[list[XY]] = [[path[0]]] if path else []
    turn, left = 0, dashes[0]
    for (x0, y0), (x1, y1) in pairwise(path):
        length, gone = math.hypot(x1 - x0, y1 - y0), 0.0
        while length - gone > left:
            gone += left
            at = (x0 + (x1 - x0) * gone / length, y0 + (y1 - y0) * gone / length)
            if turn % 2 == 0:
                runs[-1].append(at)
            else:
                runs.append([at])
            turn += 1
            left = dashes[turn % len(dashes)]
        left -= length - gone
        if turn % 2 == 0:
            runs[-1].append((x1, y1))
    return [run for run in runs if len(run) > 1]


class Sheet:
    """A picture with charts on it. Sizes in shown pixels; `fine` is even, and 2 is rough and quick."""

    def __init__(self, width: float, height: float, *, fine: int = FINE) -> None:
        self.fine = fine
        size = (round(width * self.fine), round(height * self.fine))
        self.image = Image.new("RGB", size, light("paper"))
        self.pen = ImageDraw.Draw(self.image)
        self._fonts: dict[float, Any] = {}

    def font(self, size: float) -> Any:
        if size not in self._fonts:
            self._fonts[size] = ImageFont.load_default(size * self.fine)
        return self._fonts[size]

    def width_of(self, text: str, size: float) -> float:
        return float(self.font(size).getlength(text)) / self.fine

    def text(self, at: XY, text: str, letters: Letters) -> None:
        PngCanvas(self, (0.0, 0.0)).text(at, text, letters)

    def chart(self, chart: Chart, corner: XY, size: XY) -> None:
        """With its title above and its key, in as many rows as it needs."""
        x, y = corner
        title = Letters(colour="ink", size=14, bold=True)
        self.text((x, y + 14), chart.title, title)
        below = self._key(chart, (x, y + 24), size[0])
        canvas = PngCanvas(self, (x, below))
        draw(chart, canvas, (size[0], y + size[1] - below))

    def _key(self, chart: Chart, corner: XY, width: float) -> float:
        """Samples and names; gives where it ends."""
        x, y = corner
        canvas = PngCanvas(self, (0.0, 0.0))
        for mark in chart.named():
            needed = 32 + self.width_of(mark.label, 11)
            if x > corner[0] and x + needed > corner[0] + width:
                x, y = corner[0], y + 16
            draw_sample(mark, canvas, (x, y))
            self.text((x + 30, y + 10), mark.label, Letters(colour="ink"))
            x += needed + 12
        return y + 22

    def save(self, path: Path) -> None:
        """With `fine / 2` pixels for each of the sheet, each way: two for dense screens."""
        smooth = self.image.reduce(2)
        method = Image.Quantize.FASTOCTREE
        smooth.quantize(256, method, dither=Image.Dither.NONE).save(path)
