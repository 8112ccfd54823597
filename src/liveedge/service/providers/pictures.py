"""Frames as other servers take them: JPEG or MP4 data URLs, within a bound on their bytes.

Blocking work, for a worker: it loads frames, makes them smaller and encodes them one by one.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import MediaTooLarge
from liveedge.engine.request import FrameInput
from liveedge.media.mp4 import encode_mp4
from liveedge.media.picture import encode_picture
from liveedge.media.shrink import shrink
from liveedge.service.prompt import Prompt
from liveedge.service.providers.config import ProviderConfig
from liveedge.service.providers.wire import request_of
from liveedge.service.question import Question

JPEG_QUALITY = 90
MAX_REQUEST_BYTES = 32 << 20  # most servers take less


class Stopped(Exception):
    """Nobody waits for the work any more."""


@dataclass(slots=True)
class Encoder:
    """Encodes the frames of one question."""

    config: ProviderConfig
    stopping: threading.Event
    n_bytes: int = 0
    _pictures: dict[tuple[str, int | None], str] = field(default_factory=dict)

    def body(self, question: Question, prompt: Prompt) -> bytes:
        """The whole request. Raises MediaTooLarge, and what loading a frame raises."""
        request = request_of(
            question,
            prompt.messages,
            picture=self.picture,
            clip=self.clip if self.config.media == "video" else None,
            extra=self.config.extra_body,
        )
        return self._dump(request)

    def picture(self, frame: FrameInput, max_pixels: int | None) -> str:
        """A frame that is shown several times is encoded once."""
        key = (frame.key, max_pixels)
        if key not in self._pictures:
            data = encode_picture(self._load(frame, max_pixels), "jpeg", quality=JPEG_QUALITY)
            self._pictures[key] = self._url("image/jpeg", data)
        return self._pictures[key]

    def clip(self, frames: Sequence[FrameInput], max_pixels: int | None) -> str:
        timed = ((frame.time_s, self._load(frame, max_pixels)) for frame in frames)
        return self._url("video/mp4", encode_mp4(timed))

    def _load(self, frame: FrameInput, max_pixels: int | None) -> NDArray[np.uint8]:
        if self.stopping.is_set():
            raise Stopped
        bounds = [bound for bound in (max_pixels, self.config.max_pixels) if bound is not None]
        return shrink(frame.load(), min(bounds, default=None))

    def _url(self, kind: str, data: bytes) -> str:
        self._require_room(len(data) * 4 // 3)
        return f"data:{kind};base64,{base64.b64encode(data).decode()}"

    def _dump(self, request: Mapping[str, Any]) -> bytes:
        data = json.dumps(request, separators=(",", ":")).encode()
        self.n_bytes = 0
        self._require_room(len(data))
        return data

    def _require_room(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        if self.n_bytes > MAX_REQUEST_BYTES:
            raise MediaTooLarge(
                f"the request to the provider {self.config.name} is larger than {MAX_REQUEST_BYTES}"
                " bytes; ask for fewer frames, or lower max_pixels"
            )
