"""The pictures that every server gets: the simulated camera, as JPEGs."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image

from liveedge.sim.questions import TEST_SEEDS
from liveedge.sim.render import Renderer
from liveedge.sim.scene import Workcell

START_S = 5.0  # by then the scene is under way
QUALITY = 90  # as cameras send


@dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """Scenes of one size and rate; equal numbers are equal pictures, byte for byte."""

    width: int
    height: int
    interval_s: float

    def jpegs(self, number: int, n_frames: int) -> list[bytes]:
        """The first frames of scene `number`."""
        renderer = Renderer(
            Workcell(TEST_SEEDS.start + number), width=self.width, height=self.height
        )
        return [
            jpeg(Image.fromarray(renderer.render(i, START_S + i * self.interval_s, 0)))
            for i in range(n_frames)
        ]


def jpeg(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "jpeg", quality=QUALITY)
    return out.getvalue()
