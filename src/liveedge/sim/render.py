"""The workcell as a picture.

Coordinates are those of the native picture (854x480) and scale to any size. Everything that stays
the same is drawn once per renderer; what moves is drawn per frame; light, noise and camera shake
come last, then the burned-in code, which they never touch.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from liveedge.sim.clockcode import CodeReading, write_code
from liveedge.sim.scene import Person, State, Workcell

NATIVE_WIDTH, NATIVE_HEIGHT = 854, 480
Difficulty = Literal["easy", "normal", "hard"]
Colour = tuple[int, int, int]
Rect = tuple[float, float, float, float]  # left, top, right, bottom in native pixels

PAINT: dict[str, Colour] = {
    "red": (205, 40, 40),
    "yellow": (235, 205, 40),
    "green": (40, 155, 60),
    "blue": (40, 80, 205),
    "purple": (145, 50, 165),
    "white": (240, 240, 240),
}
_BAND_ROWS = 360  # worked on at a time: wider numbers than bytes for a whole 4K picture are 50 MB
_SEGMENTS = (
    "abcdef",
    "bc",
    "abged",
    "abgcd",
    "fgbc",
    "afgcd",
    "afgedc",
    "abc",
    "abcdefg",
    "abcdfg",
)


@dataclass(frozen=True, slots=True)
class Look:
    """How hard a camera's picture is to read."""

    noise: float  # standard deviation, of 255
    gain: float  # brightness varies within 1 ± gain
    tint: float  # each channel within 1 ± tint
    shake_px: float  # camera jitter, native pixels
    shadow: float  # strongest darkening of one side


LOOKS: dict[Difficulty, Look] = {
    "easy": Look(noise=0.0, gain=0.0, tint=0.0, shake_px=0.0, shadow=0.0),
    "normal": Look(noise=5.0, gain=0.15, tint=0.05, shake_px=2.0, shadow=0.12),
    "hard": Look(noise=14.0, gain=0.35, tint=0.10, shake_px=5.0, shadow=0.35),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the fixed things are, in native pixels; a little different in every workcell."""

    door: Rect
    lamp: tuple[float, float]  # middle of the bulb
    display: Rect
    gauge: tuple[float, float, float]  # middle and radius
    belt: tuple[float, float]  # top and bottom
    slots: tuple[float, ...]  # middles of the places for boxes
    box: tuple[float, float]  # width and height
    wall: Colour
    floor: Colour
    door_paint: Colour
    led: Colour

    @classmethod
    def of(cls, seed: int) -> Layout:
        rng = np.random.default_rng((seed, 100))

        def near(value: float, by: float = 8.0) -> float:
            return value + float(rng.uniform(-by, by))

        door_x, door_y = near(50), near(92)
        display_x, display_y = near(440), near(22)
        grey = rng.uniform(120, 190)
        wall = tuple(int(np.clip(grey + d, 0, 255)) for d in rng.uniform(-18, 18, 3))
        floor = tuple(int(grey * 0.62 + d) for d in rng.uniform(-10, 10, 3))
        leds: list[Colour] = [(255, 70, 60), (90, 255, 110), (255, 190, 60)]
        doors: list[Colour] = [(120, 85, 55), (85, 95, 110), (70, 110, 95)]
        return cls(
            door=(door_x, door_y, door_x + 130, door_y + 236),
            lamp=(near(300), near(70)),
            display=(display_x, display_y, display_x + 170, display_y + 112),
            gauge=(near(745), near(78), 58.0),
            belt=(near(384, 4), near(430, 3)),
            slots=tuple(near(110 + 158 * i, 8) for i in range(5)),
            box=(near(82, 5), near(62, 5)),
            wall=(wall[0], wall[1], wall[2]),
            floor=(floor[0], floor[1], floor[2]),
            door_paint=doors[int(rng.integers(3))],
            led=leds[int(rng.integers(3))],
        )


@dataclass(frozen=True, slots=True)
class Region:
    """A thing in the picture with its class: dense labels for training."""

    head: str
    value: str
    rect: Rect  # native pixels


class Renderer:
    """Draws one workcell at one size. Not thread-safe."""

    def __init__(
        self,
        workcell: Workcell,
        *,
        width: int = NATIVE_WIDTH,
        height: int = NATIVE_HEIGHT,
        difficulty: Difficulty = "normal",
    ) -> None:
        if width < 32 or height < 32:
            raise ValueError(f"picture is {width}x{height}, needs at least 32x32")
        self.workcell = workcell
        self.width, self.height = width, height
        self.layout = Layout.of(workcell.seed)
        self.look = LOOKS[difficulty]
        self._sx, self._sy = width / NATIVE_WIDTH, height / NATIVE_HEIGHT
        self._background = self._draw_background()
        rng = np.random.default_rng((workcell.seed, 101))
        self._tint = rng.uniform(1 - self.look.tint, 1 + self.look.tint, 3)
        self._flicker_s = float(rng.uniform(5, 20))
        self._gain_level = float(rng.uniform(-0.6, 0.6))
        self._shade = self._make_shade(rng)
        self._noise = _noise_tile(width, height, self.look.noise)

    def render(self, frame_number: int, t_s: float, wall_ms: int) -> NDArray[np.uint8]:
        """The picture at scene time `t_s`: [height, width, 3] RGB, a new array."""
        state = self.workcell.state(t_s)
        image = self._background.copy()
        draw = ImageDraw.Draw(image)
        self._draw_door(draw, state)
        self._draw_lamp(draw, state)
        self._draw_display(draw, state)
        self._draw_gauge(draw, state)
        if state.person is not None:
            self._draw_person(draw, state.person)
        self._draw_belt(draw, state)
        self._draw_boxes(draw, state)
        rgb = self._as_seen(np.asarray(image), frame_number, t_s, lamp=state.lamp)
        write_code(rgb, CodeReading(frame_number, round(t_s * 1000), wall_ms))
        return rgb

    # What the camera adds

    def _as_seen(
        self, clean: NDArray[np.uint8], frame_number: int, t_s: float, *, lamp: bool
    ) -> NDArray[np.uint8]:
        look = self.look
        rng = np.random.default_rng((self.workcell.seed, 102, frame_number))
        wave = 0.4 * math.sin(2 * math.pi * t_s / self._flicker_s)
        gain = (1 + look.gain * (self._gain_level + wave)) * (1.04 if lamp else 0.96)
        dx = dy = 0
        if look.shake_px:
            x, y = rng.uniform(-look.shake_px, look.shake_px, 2)
            dx, dy = round(x * self._sx), round(y * self._sy)
        levels = np.arange(256)[:, None] * (gain * self._tint)
        table = np.clip(levels, 0, 255).astype(np.int16)
        oy, ox = (int(v) for v in rng.integers(0, 64, 2))
        seen = np.empty_like(clean)
        for top in range(0, self.height, _BAND_ROWS):
            rows = np.arange(top, min(top + _BAND_ROWS, self.height))
            below = np.roll(clean[(rows - dy) % self.height], dx, axis=1)
            band = np.stack([table[:, c][below[..., c]] for c in range(3)], axis=-1)
            if self._shade is not None:
                band -= (band * self._shade) >> 8
            if self._noise is not None:
                band += self._noise[rows + oy, ox : ox + self.width]
            np.clip(band, 0, 255, out=band)
            seen[rows] = band
        return seen

    def _make_shade(self, rng: np.random.Generator) -> NDArray[np.int16] | None:
        depth = self.look.shadow * float(rng.uniform(0.3, 1.0))
        ramp = np.linspace(0, depth, self.width)
        if rng.random() < 0.5:
            ramp = ramp[::-1]
        if depth == 0:
            return None
        # 0..127 of 256, so that value * shade stays inside int16
        return np.minimum(ramp * 256, 127).astype(np.int16)[None, :, None]

    # What stands still

    def _draw_background(self) -> Image.Image:
        lay = self.layout
        image = Image.new("RGB", (self.width, self.height), lay.wall)
        draw = ImageDraw.Draw(image)
        for i in range(1, 7):
            x = i * 122
            draw.line(self._scale((x, 0, x, 345)), fill=_shade(lay.wall, 0.93), width=self._w(2))
        draw.rectangle(self._scale((0, 340, NATIVE_WIDTH, NATIVE_HEIGHT)), fill=lay.floor)
        draw.line(
            self._scale((0, 340, NATIVE_WIDTH, 340)), fill=_shade(lay.wall, 0.6), width=self._w(5)
        )
        left, top, right, bottom = lay.door
        frame = (left - 8, top - 8, right + 8, bottom)
        draw.rectangle(self._scale(frame), fill=_shade(lay.wall, 0.55))
        lamp_x, lamp_y = lay.lamp
        draw.line(
            self._scale((lamp_x, 0, lamp_x, lamp_y - 30)), fill=(40, 40, 40), width=self._w(5)
        )
        belt_top, belt_bottom = lay.belt
        for x in (90, 420, 760):
            draw.rectangle(self._scale((x, belt_bottom, x + 22, 470)), fill=(70, 72, 78))
        draw.rectangle(self._scale((0, belt_top - 4, 854, belt_bottom + 4)), fill=(52, 54, 60))
        return image

    # What moves

    def _draw_door(self, draw: ImageDraw.ImageDraw, state: State) -> None:
        left, top, right, bottom = self.layout.door
        draw.rectangle(self._scale((left, top, right, bottom)), fill=(18, 20, 26))
        draw.rectangle(self._scale((left, bottom - 60, right, bottom)), fill=(48, 46, 44))
        edge = left + (right - left) * (1 - state.door)
        if edge - left < 2:
            return
        paint = self.layout.door_paint
        draw.rectangle(self._scale((left, top, edge, bottom)), fill=paint)
        for y in (top + 16, top + 128):
            inner = (left + 14, y, edge - 14, y + 92)
            if inner[2] > inner[0] + 4:
                draw.rectangle(self._scale(inner), outline=_shade(paint, 0.7), width=self._w(4))
        if edge - left > 26:
            knob = (edge - 22, top + 108, edge - 10, top + 124)
            draw.ellipse(self._scale(knob), fill=(225, 210, 150))

    def _draw_lamp(self, draw: ImageDraw.ImageDraw, state: State) -> None:
        x, y = self.layout.lamp
        if state.lamp:
            draw.ellipse(self._scale((x - 52, y - 40, x + 52, y + 64)), fill=(250, 236, 170))
        shade = [(x - 20, y - 34), (x + 20, y - 34), (x + 46, y + 4), (x - 46, y + 4)]
        draw.polygon([self._point(p) for p in shade], fill=(58, 66, 74))
        bulb: Colour = (255, 252, 215) if state.lamp else (96, 98, 100)
        draw.ellipse(self._scale((x - 20, y - 10, x + 20, y + 30)), fill=bulb)

    def _draw_display(self, draw: ImageDraw.ImageDraw, state: State) -> None:
        left, top, right, bottom = self.layout.display
        draw.rectangle(self._scale((left - 6, top - 6, right + 6, bottom + 6)), fill=(70, 74, 80))
        draw.rectangle(self._scale((left, top, right, bottom)), fill=(12, 12, 14))
        for digit, rect in zip(f"{state.display:02d}", self._digit_rects(), strict=True):
            self._draw_digit(draw, int(digit), rect)

    def _digit_rects(self) -> tuple[Rect, Rect]:
        left, top, _, _ = self.layout.display
        return (
            (left + 16, top + 10, left + 76, top + 102),
            (left + 94, top + 10, left + 154, top + 102),
        )

    def _draw_digit(self, draw: ImageDraw.ImageDraw, digit: int, rect: Rect) -> None:
        x0, y0, x1, y1 = rect
        middle, w = (y0 + y1) / 2, 13.0
        bars: dict[str, Rect] = {
            "a": (x0 + 6, y0, x1 - 6, y0 + w),
            "g": (x0 + 6, middle - w / 2, x1 - 6, middle + w / 2),
            "d": (x0 + 6, y1 - w, x1 - 6, y1),
            "f": (x0, y0 + 4, x0 + w, middle - 2),
            "b": (x1 - w, y0 + 4, x1, middle - 2),
            "e": (x0, middle + 2, x0 + w, y1 - 4),
            "c": (x1 - w, middle + 2, x1, y1 - 4),
        }
        for name in _SEGMENTS[digit]:
            draw.rectangle(self._scale(bars[name]), fill=self.layout.led)

    def _draw_gauge(self, draw: ImageDraw.ImageDraw, state: State) -> None:
        x, y, r = self.layout.gauge
        draw.ellipse(self._scale((x - r, y - r, x + r, y + r)), fill=(60, 62, 66))
        inner = r - 7
        draw.ellipse(
            self._scale((x - inner, y - inner, x + inner, y + inner)), fill=(236, 236, 230)
        )
        for third in range(4):
            angle = math.pi * (1 - third / 3)
            a = (x + (r - 20) * math.cos(angle), y + 12 - (r - 20) * math.sin(angle))
            b = (x + (r - 9) * math.cos(angle), y + 12 - (r - 9) * math.sin(angle))
            draw.line([self._point(a), self._point(b)], fill=(40, 40, 40), width=self._w(4))
        angle = math.pi * (1 - state.gauge)
        tip = (x + (r - 18) * math.cos(angle), y + 12 - (r - 18) * math.sin(angle))
        draw.line(
            [self._point((x, y + 12)), self._point(tip)], fill=(200, 30, 30), width=self._w(8)
        )
        draw.ellipse(self._scale((x - 8, y + 4, x + 8, y + 20)), fill=(40, 40, 40))

    def _draw_person(self, draw: ImageDraw.ImageDraw, person: Person) -> None:
        x = person.x
        for leg in (-22, 6):
            draw.rectangle(self._scale((x + leg, 310, x + leg + 18, 400)), fill=(38, 42, 62))
        shirt = PAINT[person.shirt]
        draw.rounded_rectangle(self._scale((x - 36, 216, x + 36, 322)), self._w(14), fill=shirt)
        for arm in (-50, 36):
            draw.rectangle(self._scale((x + arm, 226, x + arm + 14, 300)), fill=_shade(shirt, 0.8))
        draw.ellipse(self._scale((x - 21, 166, x + 21, 216)), fill=(222, 178, 146))
        draw.pieslice(self._scale((x - 22, 160, x + 22, 206)), 180, 360, fill=(60, 42, 30))

    def _draw_belt(self, draw: ImageDraw.ImageDraw, state: State) -> None:
        top, bottom = self.layout.belt
        draw.rectangle(self._scale((0, top, NATIVE_WIDTH, bottom)), fill=(34, 36, 40))
        x = state.belt_phase_px % 128.0 - 128.0
        while x < NATIVE_WIDTH:
            draw.rectangle(self._scale((x, top, x + 48, bottom)), fill=(168, 172, 176))
            x += 128.0

    def _draw_boxes(self, draw: ImageDraw.ImageDraw, state: State) -> None:
        for box in state.boxes:
            rect = self._box_rect(box.slot, box.lift)
            if rect[3] <= 0:
                continue
            paint = PAINT[box.colour]
            draw.rectangle(self._scale(rect), fill=paint, outline=(28, 26, 24), width=self._w(4))
            tape_y = (rect[1] + rect[3]) / 2
            tape = (rect[0] + 4, tape_y - 4, rect[2] - 4, tape_y + 4)
            draw.rectangle(self._scale(tape), fill=_shade(paint, 0.72))

    def _box_rect(self, slot: int, lift: float) -> Rect:
        x, (w, h) = self.layout.slots[slot], self.layout.box
        bottom = self.layout.belt[0] + 6 - lift * (self.layout.belt[0] + 10)
        return (x - w / 2, bottom - h, x + w / 2, bottom)

    # Labels by place

    def regions(self, state: State) -> list[Region]:
        """What is where: for dense training labels. Later ones lie over earlier ones."""
        lay = self.layout
        door = "open" if state.door > 0.95 else "closed" if state.door < 0.05 else "moving"
        x, y = lay.lamp
        gx, gy, r = lay.gauge
        tens, ones = self._digit_rects()
        text = f"{state.display:02d}"
        found = [
            Region("door", door, lay.door),
            Region("lamp", "on" if state.lamp else "off", (x - 44, y - 34, x + 44, y + 44)),
            Region("tens", text[0], tens),
            Region("ones", text[1], ones),
            Region("gauge", str(min(int(state.gauge * 6), 5)), (gx - r, gy - r, gx + r, gy + r)),
            Region("belt", state.belt, (0, lay.belt[0], NATIVE_WIDTH, lay.belt[1])),
        ]
        if state.person is not None:
            px = state.person.x
            found.append(Region("shirt", state.person.shirt, (px - 40, 214, px + 40, 322)))
        found += [Region("box", b.colour, self._box_rect(b.slot, b.lift)) for b in state.boxes]
        return found

    # Native pixels to picture pixels

    def _scale(self, rect: Rect) -> Rect:
        x0, y0, x1, y1 = rect
        return (
            round(x0 * self._sx),
            round(y0 * self._sy),
            max(round(x1 * self._sx), round(x0 * self._sx)),
            max(round(y1 * self._sy), round(y0 * self._sy)),
        )

    def _point(self, point: tuple[float, float]) -> tuple[float, float]:
        return round(point[0] * self._sx), round(point[1] * self._sy)

    def _w(self, px: float) -> int:
        return max(1, round(px * min(self._sx, self._sy)))


@functools.lru_cache(maxsize=1)  # what the newest cameras share; one of 4K has 26 MB
def _noise_tile(width: int, height: int, sigma: float) -> NDArray[np.int8] | None:
    """Sensor noise, 64 px larger than the picture: each frame looks through another window."""
    if sigma == 0:
        return None
    rng = np.random.default_rng((103, width, height))
    tile = np.empty((height + 64, width + 64, 3), np.int8)
    for row in tile:  # as all at once it would be the same, in eight times the memory
        row[:] = np.clip(np.rint(rng.normal(0, sigma, row.shape)), -128, 127)
    return tile


def _shade(colour: Colour, factor: float) -> Colour:
    r, g, b = (min(int(c * factor), 255) for c in colour)
    return r, g, b
