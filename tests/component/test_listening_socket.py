"""The socket that the server listens on."""

from __future__ import annotations

import socket

from liveedge.server import listening_socket
from liveedge.settings import Settings


def test_connections_send_small_pieces_at_once():
    """Else the first words of an answer wait 40 ms for the client's delayed acknowledgement."""
    with (
        listening_socket(Settings(port=0)) as listener,
        socket.create_connection(listener.getsockname()[:2], timeout=5),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
