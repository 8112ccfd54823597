"""uvicorn's WebSockets, with an answer for requests that are refused before they can be looked at.

A LiveKit client packs its first offer into the URL. One that is longer than the parser allows (8 kB;
SDKs send 3) is refused by it, but the refusal is left lying and the client waits for ever.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """To be given to `uvicorn.Config(ws=...)`."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
