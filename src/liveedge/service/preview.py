"""A stream as a series of pictures, for people who look at it live.

One picture of a viewer is on its way at a time: whoever reads slowly sees fewer of them, always the
newest, and costs nobody anything. Ends with the stream, or with the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager

from liveedge.core.clock import Clock
from liveedge.core.errors import QueryParamInvalid, StreamNotFound
from liveedge.frames.frame import Frame
from liveedge.frames.store import FrameStore
from liveedge.media.picture import encode_picture
from liveedge.service.limits import Budget, Shares
from liveedge.service.pictures import Picture
from liveedge.service.streams import Streams
from liveedge.service.workers import Workers

MAX_PREVIEWS = 16
MAX_FPS = 30.0
DEFAULT_FPS = 5.0
QUALITY = 75
LOOK_EVERY_S = 1.0  # for the end of the stream or the server, where no frame comes


class Previews:
    """All previews of a server. They share one thread, apart from questions and pictures. Where there
    are several keys, one owner has half of them at most."""

    def __init__(
        self, *, clock: Clock, streams: Streams, is_shared: Callable[[], bool] = lambda: False
    ) -> None:
        self.open = Budget(MAX_PREVIEWS, what="previews")
        self._of_owners = Shares(MAX_PREVIEWS // 2, what="previews of one key")
        self._is_shared = is_shared
        self._clock = clock
        self._streams = streams
        self._workers = Workers("preview", n_threads=1)
        self._is_closed = False

    def pictures(self, tenant: str, stream_id: str, *, fps: float) -> AsyncGenerator[Picture, None]:
        """JPEGs of the newest frames until the stream ends. Raises StreamNotFound at once."""
        store = self._streams.own_store(tenant, stream_id)
        return self._pictures(store, lambda: self._exists(tenant, stream_id), every_s=1 / fps)

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """One of the previews that can be open at once, for the block. Raises QueueFull."""
        with self.open.hold(), self._of_owners.growing(tenant) as own:
            if self._is_shared():
                own.add(1)
            yield

    def stop(self) -> None:
        """End all of them within a second."""
        self._is_closed = True

    def close(self) -> None:
        self.stop()
        self._workers.close()

    async def _pictures(
        self, store: FrameStore, exists: Callable[[], bool], *, every_s: float
    ) -> AsyncGenerator[Picture, None]:
        shown: int | None = None
        while not self._is_closed:
            frame = await store.wait_newer(shown, LOOK_EVERY_S)
            if frame is None:
                if not exists():
                    return
                continue
            begun_s = self._clock.monotonic_s()
            yield await self._picture(frame)
            shown = frame.index
            await self._clock.sleep(begun_s + every_s - self._clock.monotonic_s())

    async def _picture(self, frame: Frame) -> Picture:
        data = await self._workers.run(
            lambda: encode_picture(frame.pixels.rgb(), "jpeg", quality=QUALITY)
        )
        return Picture(
            data=data,
            frame_index=frame.index,
            captured_at_ms=frame.captured_at_ms,
            age_ms=round((self._clock.monotonic_s() - frame.arrived_s) * 1000),
        )

    def _exists(self, tenant: str, stream_id: str) -> bool:
        try:
            self._streams.own_store(tenant, stream_id)
        except StreamNotFound:
            return False
        return True


def preview_fps(text: str | None) -> float:
    """The rate that a client asks for. Raises QueryParamInvalid."""
    if text is None:
        return DEFAULT_FPS
    try:
        fps = float(text)
    except ValueError:
        fps = 0.0
    if not 0 < fps <= MAX_FPS:
        raise QueryParamInvalid(
            f"fps is {text[:40]!r}, needs to be a number above 0, at most {MAX_FPS:g}"
        )
    return max(fps, 0.1)
