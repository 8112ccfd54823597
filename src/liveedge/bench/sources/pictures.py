"""Pictures of the simulated cameras and of files, encoded as they are sent."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell

FORGET_EVERY_S = 10.0  # scene time; its timelines grow by some entries per second


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture and what is burned into it."""

    number: int  # frame n of the camera is due n / fps after its start
    t_ms: int  # of the scene
    wall_ms: int
    rgb: NDArray[np.uint8]  # [height, width, 3]


class Camera(Protocol):
    """Gives pictures by number; numbers may be left out, but never go back."""

    fps: float

    def picture(self, number: int, wall_ms: int) -> Picture: ...


class SimCamera:
    """The workcell of one seed."""

    def __init__(self, *, seed: int, fps: float, width: int, height: int) -> None:
        self.fps = fps
        self._workcell = Workcell(seed)
        self._renderer = Renderer(self._workcell, width=width, height=height)
        self._forget_at_s = FORGET_EVERY_S

    def picture(self, number: int, wall_ms: int) -> Picture:
        t_s = number / self.fps
        rgb = self._renderer.render(number, t_s, wall_ms)
        if t_s >= self._forget_at_s:
            self._workcell.forget_before(t_s)
            self._forget_at_s = t_s + FORGET_EVERY_S
        return Picture(number=number, t_ms=round(t_s * 1000), wall_ms=wall_ms, rgb=rgb)


def encoded(rgb: NDArray[np.uint8], *, quality: int) -> bytes:
    """JPEG, or PNG where `quality` is 0. The burned-in clock survives both."""
    out = io.BytesIO()
    if quality:
        Image.fromarray(rgb).save(out, "JPEG", quality=quality)
    else:
        Image.fromarray(rgb).save(out, "PNG", compress_level=1)
    return out.getvalue()


def media_type(quality: int) -> str:
    return "image/jpeg" if quality else "image/png"


def sim_cameras(job: dict[str, Any]) -> Iterator[SimCamera]:
    """One for each seed of the job."""
    for seed in job["seeds"]:
        yield SimCamera(seed=seed, fps=job["fps"], width=job["width"], height=job["height"])
