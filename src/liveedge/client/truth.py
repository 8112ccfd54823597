"""What is true of the frames that an answer was made from, read from their own pixels.

Every frame of the simulated camera carries its scene time as burned-in cells. The truth is computed
from those, not from what the server says about the frame, so a wrong frame is a wrong answer.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from liveedge.client.http import Answer, Client
from liveedge.sim.clockcode import CodeReading, read_code
from liveedge.sim.questions import expected
from liveedge.sim.scene import State, Workcell


class CodeUnreadable(Exception):
    """A frame came back without its burned-in code: it is damaged or another camera's."""


def code_of(picture: bytes) -> CodeReading | None:
    """What is burned into an encoded picture. Raises OSError where it is none."""
    with Image.open(io.BytesIO(picture)) as image:
        return read_code(np.asarray(image.convert("RGB")))


class Oracle:
    """Knows the scene of one seed and can read which moment a frame shows."""

    def __init__(self, client: Client, stream_id: str, *, seed: int) -> None:
        self._client = client
        self._stream_id = stream_id
        self._workcell = Workcell(seed)

    def expected(self, kind: str, answer: Answer) -> str | None:
        """The true answer for the frames that were seen; None where it is not decidable."""
        indices = [int(frame["frame_index"]) for frame in answer.frames]
        return expected(kind, [self.state(index) for index in indices])

    def state(self, frame_index: int) -> State:
        """The truth at the moment that a retained frame shows."""
        code = code_of(self._client.picture_png(self._stream_id, frame_index))
        if code is None:
            raise CodeUnreadable(f"frame {frame_index} carries no readable code")
        return self._workcell.state(code.t_ms / 1000)
