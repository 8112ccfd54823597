"""A live camera that looks at the simulated workcell.

Frame `n` shows the scene at exactly `n / fps` seconds and is due then. A machine too slow for the
rate skips frame numbers, as a camera would: it is never behind the scene's clock.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args
from urllib.parse import parse_qsl, urlsplit

from liveedge.core.clock import Clock
from liveedge.core.errors import SourceUnavailable
from liveedge.frames.frame import RgbPixels
from liveedge.media.source import FrameSink, SourceKind
from liveedge.sim.render import NATIVE_HEIGHT, NATIVE_WIDTH, Difficulty, Renderer
from liveedge.sim.scene import Workcell

_SIDES_PX = range(32, 3841)
_MAX_PIXELS = 3840 * 2160
_FPS = (0.01, 240.0)
_NUMBER = re.compile(r"[A-Za-z0-9.+-]+")  # Python would take 1_000 and a blank, too
_FORGET_EVERY_S = 10.0  # scene time; the timelines grow by some entries per second


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """Which scene, how large, how often."""

    seed: int = 0
    fps: float = 15.0
    width: int = NATIVE_WIDTH
    height: int = NATIVE_HEIGHT
    difficulty: Difficulty = "normal"

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise SourceUnavailable(f"sim: seed is {self.seed}, needs 0 or more")
        if not _FPS[0] <= self.fps <= _FPS[1]:
            raise SourceUnavailable(
                f"sim: fps is {self.fps}, needs to be {_FPS[0]:g} to {_FPS[1]:g}"
            )
        is_small = self.width in _SIDES_PX and self.height in _SIDES_PX
        if not is_small or self.width * self.height > _MAX_PIXELS:
            raise SourceUnavailable(
                f"sim: size is {self.width}x{self.height}, each side needs to be"
                f" {_SIDES_PX[0]} to {_SIDES_PX[-1]}, and both together as many pixels as"
                " 3840x2160 at most"
            )
        if self.difficulty not in get_args(Difficulty):
            raise SourceUnavailable(
                f"sim: difficulty is {self.difficulty!r}, needs to be one of"
                f" {', '.join(get_args(Difficulty))}"
            )


def parse_sim_url(url: str | None) -> SimOptions:
    """Options of `sim://workcell?seed=1&fps=30&width=640&height=360&difficulty=easy`, all optional."""
    parts = urlsplit(url or "sim://workcell")
    is_ours = parts.scheme == "sim" and parts.netloc in ("", "workcell")
    if not is_ours or parts.path not in ("", "/") or parts.fragment:
        raise SourceUnavailable("sim: the URL needs to be sim://workcell?<options>, or left out")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise SourceUnavailable("sim: options need to be written as key=value&key=value") from error
    options: dict[str, object] = {}
    for key, text in pairs:
        if key in options:
            raise SourceUnavailable(f"sim: option {key!r} is given twice")
        options[key] = _option(key, text)
    return SimOptions(**options)  # type: ignore[arg-type]  # types are made by _option


def _option(key: str, text: str) -> object:
    if key not in _READ:
        raise SourceUnavailable(f"sim: unknown option {key!r}; known are {', '.join(_READ)}")
    try:
        return _READ[key](text)
    except ValueError as error:
        raise SourceUnavailable(f"sim: {key} is {text!r}, needs to be a number") from error


def _whole(text: str) -> int:
    return int(_number(text))


def _real(text: str) -> float:
    return float(_number(text))


def _number(text: str) -> str:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(text)
    return text


_READ: dict[str, Callable[[str], object]] = {
    "seed": _whole,
    "fps": _real,
    "width": _whole,
    "height": _whole,
    "difficulty": str,
}


class SimSource:
    """The scene goes on over restarts: its time starts with the first run."""

    kind: SourceKind = "sim"
    stall_after_s: float | None = None  # it cannot stall, but a heavy scene may be slow
    restart_on_stall = False

    def __init__(self, options: SimOptions, *, clock: Clock) -> None:
        self.options = options
        self._clock = clock
        self._workcell = Workcell(options.seed)
        self._renderer = Renderer(
            self._workcell,
            width=options.width,
            height=options.height,
            difficulty=options.difficulty,
        )
        self._started_s: float | None = None
        self._next_number = 0

    def run(self, sink: FrameSink, stopping: threading.Event) -> None:
        if self._started_s is None:
            self._started_s = self._clock.monotonic_s()
        self._next_number = self._newest_due(self._next_number)
        forget_at_s = _FORGET_EVERY_S
        while not stopping.is_set():
            due_s = self._started_s + self._next_number / self.options.fps
            wait_s = due_s - self._clock.monotonic_s()
            if wait_s > 0 and self._clock.wait(stopping, wait_s):
                return
            t_s = self._next_number / self.options.fps
            rgb = self._renderer.render(self._next_number, t_s, self._clock.wall_ms())
            sink.frame(RgbPixels(rgb), source_time_s=t_s)
            if t_s >= forget_at_s:
                self._workcell.forget_before(t_s)
                forget_at_s = t_s + _FORGET_EVERY_S
            self._next_number = self._newest_due(self._next_number + 1)

    def _newest_due(self, number: int) -> int:
        """Frame `number`, or the newest one that is due if that is past."""
        assert self._started_s is not None
        elapsed_s = self._clock.monotonic_s() - self._started_s
        return max(number, int(elapsed_s * self.options.fps))
