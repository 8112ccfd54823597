"""A stream as MJPEG: one endless answer of JPEGs, as browsers show in an image element."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from liveedge.api.disconnect import DisconnectGuard
from liveedge.service.pictures import Picture

BOUNDARY = "liveedge-frame"
_HEADERS = [
    (b"content-type", f"multipart/x-mixed-replace; boundary={BOUNDARY}".encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects pictures makes them old
]


class MjpegResponse(Response):
    """Sends a picture, and takes the next one only when the client has it."""

    def __init__(
        self, pictures: AsyncGenerator[Picture, None], place: AbstractContextManager[None]
    ) -> None:
        super().__init__()
        self._pictures = pictures
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            async with DisconnectGuard(receive) as guard, aclosing(self._pictures) as pictures:
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                async for picture in pictures:
                    await send(
                        {"type": "http.response.body", "body": part(picture), "more_body": True}
                    )
                guard.release()
                end = f"--{BOUNDARY}--\r\n".encode()
                await send({"type": "http.response.body", "body": end})


def part(picture: Picture) -> bytes:
    """One picture with what is known of it."""
    head = (
        f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture.data)}\r\n"
        f"X-Frame-Index: {picture.frame_index}\r\nX-Captured-At-Ms: {picture.captured_at_ms}\r\n"
        f"X-Age-Ms: {picture.age_ms}\r\n\r\n"
    )
    return head.encode() + picture.data + b"\r\n"
