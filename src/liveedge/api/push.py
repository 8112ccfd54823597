"""Frames over a WebSocket: one binary message is one encoded picture, one answer each.

A text message `{"captured_at_ms": n}` dates the next picture. Messages are handled one by one, so
a client that waits for the answers can have no more than one picture in the server.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from liveedge.api.encode import pushed_frame
from liveedge.api.errors import answer, error_object
from liveedge.api.gate import Gate
from liveedge.api.reply import dump, error_reply
from liveedge.core.clock import Clock
from liveedge.core.errors import LiveEdgeError, RequestInvalid, StreamNotFound
from liveedge.service.streams import Streams

MAX_CLOCK_ERROR_MS = 24 * 3600 * 1000  # of a client; beyond, its times are something else
STREAM_IS_GONE = 1008  # "policy violation": retrying on this connection is useless


async def push_over_websocket(
    websocket: WebSocket, stream_id: str, *, gate: Gate, streams: Streams, clock: Clock
) -> None:
    """Serve one connection until either side ends it."""
    try:
        tenant = gate.open_stream(websocket, scope="streams", cost=0).tenant
        streams.own_store(tenant, stream_id)
    except LiveEdgeError as error:
        await websocket.send_denial_response(error_reply(answer(error, face="flat")))
        return
    await websocket.accept()
    try:
        await _serve(websocket, stream_id, tenant, streams, clock)
    except WebSocketDisconnect:
        return


def checked_capture_time(ms: int, *, now_ms: int, loc: tuple[str, ...]) -> int:
    """`ms`, or RequestInvalid where it cannot be the time at which a picture was just taken."""
    if abs(ms - now_ms) > MAX_CLOCK_ERROR_MS:
        raise RequestInvalid(
            f"{loc[-1]} is {ms}, more than a day away from the server's clock ({now_ms}); send Unix"
            " milliseconds, or leave it out",
            loc=loc,
        )
    return ms


async def _serve(
    websocket: WebSocket, stream_id: str, tenant: str, streams: Streams, clock: Clock
) -> None:
    captured_at_ms: int | None = None
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        try:
            data: bytes | None = message.get("bytes")
            if data is None:
                asked_ms = _captured_at_ms(message.get("text") or "")
                loc = ("captured_at_ms",)
                captured_at_ms = checked_capture_time(asked_ms, now_ms=clock.wall_ms(), loc=loc)
                continue
            frame = await streams.push(tenant, stream_id, data, captured_at_ms=captured_at_ms)
            sent_ms, captured_at_ms = captured_at_ms, None
            await _send(websocket, pushed_frame(frame, sent_ms=sent_ms))
        except LiveEdgeError as error:
            await _send(websocket, {"error": error_object(error)})
            if isinstance(error, StreamNotFound):
                await websocket.close(STREAM_IS_GONE, "the stream has ended")
                return


async def _send(websocket: WebSocket, data: dict[str, Any]) -> None:
    await websocket.send_text(dump(data).decode())


def _captured_at_ms(text: str) -> int:
    try:
        value = json.loads(text[:200])["captured_at_ms"]
    except (ValueError, KeyError, TypeError) as error:
        raise RequestInvalid('a text message needs to be {"captured_at_ms": <integer>}') from error
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**15:
        raise RequestInvalid("captured_at_ms needs to be Unix milliseconds, a whole number")
    return value
