"""uvicorn's WebSockets, with an answer for requests that are refused before they can be looked at, and
an end for clients that do not read.

A LiveKit client packs its first offer into the URL. One that is longer than the parser allows (8 kB;
SDKs send 3) is refused by it, but the refusal is left lying and the client waits for ever.
A socket is closed once everything is sent, which for somebody who does not read is never.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

ABORT_AFTER_S = 1.0  # longer than a client is given to answer the goodbye


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """To be given to `uvicorn.Config(ws=...)`."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:  # answers are not kept for who asks and does not read
            self.conn.data_to_send()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + ABORT_AFTER_S, self.transport.abort)
