"""uvicorn's HTTP connections, with a limit to the time that a client may take, and to their number.

A request has to be complete soon: its head within `head_s` of its first byte (or of the connection's
beginning), its body with `step_bytes` in every `step_s`. Who is late is answered with 408, if an
answer is possible still, and the connection is closed. A connection that waits for its next question
is uvicorn's to end.
A client that has an answer waiting and takes nothing of it for `reader_s` is cut off.
With `max_connections` open, the one that has been without a request for the longest makes room for a
newcomer; where all have one, or had no time yet to send one, the newcomer is answered with 503.

Who is refused may still be sending: what comes then is read and thrown away for a while. Closed at
once, the connection would be reset, and many clients lose an answer that they have not read by then.

Thread  the server's event loop, whose time counts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

from liveedge.api.crowd import Crowd
from liveedge.api.errors import flat_body
from liveedge.api.reply import dump

MAX_LINE_BYTES = 8192  # of the WebSocket parser
LEAVE_AT_THE_END_S = 0.5  # for who is refused because the server stops, which waits for it

Part: TypeAlias = Literal["head", "body"]
# Why connections were ended: no request came, it came too slowly, its answer was not read, one without
# made room for a newcomer, or a newcomer found no room.
ENDS = ("silent", "slow_head", "slow_body", "slow_reader", "made_room", "no_room")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a client may do with its connections."""

    head_s: float = 15.0
    step_s: float = 10.0
    step_bytes: int = 64 << 10  # a line of 50 kbit/s keeps up
    reader_s: float = 30.0  # a line of 20 kbit/s empties what the system buffers
    max_connections: int = 800  # below the 1024 files that a process may have by default
    # Without a request, before it makes room for a newcomer: a round trip. Whoever opens connections
    # and sends nothing would have to open 4,000 in a second to keep others out.
    free_s: float = 0.2
    leave_s: float = 5.0  # for who was refused, to send the rest and to read why


class HttpProtocol(H11Protocol):
    """To be given to `uvicorn.Config(http=...)`, with its limits bound."""

    def __init__(
        self, *, limits: ConnectionLimits, ended: Counter[str], crowd: Crowd, **of_uvicorn: Any
    ) -> None:
        """For all connections together: `ended` counts, by `ENDS`, and `crowd` says who goes first."""
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._ended = ended
        self._crowd = crowd
        self._is_leaving = False
        self._leave_s = limits.leave_s
        self._part: Part | None = None  # that is awaited
        self._timer: asyncio.TimerHandle | None = None
        self._n_bytes = 0  # of the present step
        self._unread: asyncio.TimerHandle | None = None  # since an answer waits for its reader

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket = transport
        self.transport = cast("asyncio.Transport", _Farewell(self, transport))
        n_staying = len(self.connections) - self._crowd.n_leaving
        if n_staying > self._limits.max_connections and not self._make_room():
            self._ended["no_room"] += 1
            self._refuse(503, "too_many_connections", "the server has no free connection")
            return
        self._await("head")
        # Free from then on: what it has sent already is read in the loop's next turn.
        self.loop.call_soon(self.loop.call_soon, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        self._stop_waiting_for_reader()
        self._crowd.gone(self._socket)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_leaving:
            return
        super().data_received(data)
        self._n_bytes += len(data)
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self._limits.reader_s, self._cut_off)

    def resume_writing(self) -> None:
        self._stop_waiting_for_reader()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def shutdown(self) -> None:
        """The server stops."""
        self._leave_s = min(self._leave_s, LEAVE_AT_THE_END_S)
        if self._is_leaving:
            self._socket.abort()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "http_invalid", f"{msg} Send HTTP/1.1.")

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        n_bytes = len(event.method) + len(event.target) + len(b"  HTTP/1.1\r\n")
        if n_bytes > MAX_LINE_BYTES:  # its own refusal would be plain text
            self._refuse(
                414,
                "uri_too_long",
                f"the request line has {n_bytes} bytes, at most {MAX_LINE_BYTES} for a WebSocket; a"
                " LiveKit client sends its offer after joining instead",
            )
            return
        self.transport = self._socket  # its end is not ours
        super().handle_websocket_upgrade(event)

    # ── time ──

    def _look(self) -> None:
        """What is awaited now, after anything has happened."""
        part = self._awaited()
        if part != self._part or (part == "body" and self._n_bytes >= self._limits.step_bytes):
            self._await(part)

    def _awaited(self) -> Part | None:
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._crowd.busy(self._socket)
            return None  # over, or a WebSocket from here on
        if self._is_free:
            self._crowd.free(self._socket, self.loop.time())
        else:
            self._crowd.busy(self._socket)
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if not self._is_free:
            return None
        is_new = self._has_begun or self._exchange is None
        return "head" if is_new and self.conn.their_state is h11.IDLE else None

    @property
    def _exchange(self) -> RequestResponseCycle | None:
        """The newest one. uvicorn's type does not say that there may be none."""
        return self.cycle

    @property
    def _is_free(self) -> bool:
        """Whether nobody waits for an answer, though a body that was not wanted may still come."""
        exchange = self._exchange
        return exchange is None or exchange.response_complete

    @property
    def _has_begun(self) -> bool:
        """Whether a part of a head has come."""
        return bool(self.conn.trailing_data[0])

    def _await(self, part: Part | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._part, self._n_bytes, self._timer = part, 0, None
        if part is not None:
            seconds = self._limits.head_s if part == "head" else self._limits.step_s
            self._timer = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        part, self._part, self._timer = self._part, None, None
        if self.transport.is_closing():
            return
        if part == "body" and self.flow.read_paused:  # the delay is ours
            self._await("body")
        elif part == "head" and not self._has_begun:
            self._ended["silent"] += 1
            self.transport.close()
        else:
            self._ended[f"slow_{part}"] += 1
            limits = self._limits
            wanted = (
                f"whole within {limits.head_s:g} s"
                if part == "head"
                else f"{limits.step_bytes} bytes in every {limits.step_s:g} s"
            )
            self._refuse(
                408, "request_timeout", f"the {part} of the request came too slowly: {wanted}"
            )

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _cut_off(self) -> None:
        """Not closed: what is buffered would be waited for."""
        self._ended["slow_reader"] += 1
        self.transport.abort()

    # ── ends ──

    def _make_room(self) -> bool:
        """Close the connection that has been without a request for the longest, if there is one."""
        if not self._crowd.make_room(free_before_s=self.loop.time() - self._limits.free_s):
            return False
        self._ended["made_room"] += 1
        return True

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer, if nothing has been said yet, and leave."""
        self._await(None)
        exchange = self._exchange
        if exchange is not None and not exchange.response_complete:
            is_silent = not exchange.response_started
            exchange.disconnected = True  # for whoever reads the body
            exchange.message_event.set()
        else:
            is_silent = self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        if is_silent:
            self._say(status, code, message)
        self._leave()

    def close(self) -> None:
        """As whoever has answered means it: a client that still sends its body is to read why not."""
        if self.conn.their_state is h11.SEND_BODY:
            self._leave()
        else:
            self._socket.close()

    @property
    def is_closing(self) -> bool:
        return self._is_leaving or self._socket.is_closing()

    def _leave(self) -> None:
        """Close without a reset: the client ends the connection once it has read, or `leave_s` do."""
        if self.is_closing:
            return
        if not self._socket.can_write_eof():  # TLS waits by itself for the client to end it
            self._socket.close()
            return
        self._await(None)
        self._is_leaving = True
        self._unset_keepalive_if_required()
        self._crowd.leave(self._socket)
        with suppress(OSError):  # it has gone meanwhile
            self._socket.write_eof()
        self.flow.resume_reading()
        self._timer = self.loop.call_later(self._leave_s, self._socket.abort)

    def _say(self, status: int, code: str, message: str) -> None:
        body = dump(flat_body(message, "invalid_request_error", code))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", uuid.uuid4().hex.encode()),  # its own was not read
        ]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        elif status != 408:  # a line may be faster the next time
            headers.append((b"x-should-retry", b"false"))
        start = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (start, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")


class _Farewell:
    """The transport as uvicorn sees it: its end is the connection's to say."""

    def __init__(self, connection: HttpProtocol, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport

    def close(self) -> None:
        self._connection.close()

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
