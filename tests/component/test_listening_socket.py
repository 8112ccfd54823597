"""The socket that the server listens on."""

from __future__ import annotations

import socket

import pytest

from liveedge.core.errors import SettingsInvalid
from liveedge.server import listening_socket, require_udp_port
from liveedge.settings import Settings


def test_connections_send_small_pieces_at_once():
    """Else the first words of an answer wait 40 ms for the client's delayed acknowledgement."""
    with (
        listening_socket(Settings(port=0)) as listener,
        socket.create_connection(listener.getsockname()[:2], timeout=5),
        listener.accept()[0] as connection,
    ):
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_udp_port_that_is_taken_is_told_before_anything_is_built() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(SettingsInvalid, match=f"UDP port {port} cannot be opened"):
            require_udp_port(Settings(udp_ports=str(port)))
    require_udp_port(Settings(udp_ports=str(port)))
