"""A real listening server and its signalling: what is refused before any code of ours, and how it stops."""

import asyncio
import socket
import urllib.parse

import httpx
import pytest

from liveedge.media.livekit.room_client import SdkRoom
from liveedge.media.livekit.subscriber import RoomRefused
from liveedge.server import BackgroundServer
from liveedge.settings import Settings
from liveedge.testing.engine import FakeEngine
from tests.publishing import CLOCK, SdkPublisher, StreamView, until
from tests.serving import SMALL

STOP_WITHIN_S = 9.0  # a server whose sockets do not end by themselves waits longer


def background():
    settings = Settings(port=0, announced_ip=("127.0.0.1",), **SMALL)
    return BackgroundServer(settings, clock=CLOCK, load_engine=lambda: FakeEngine(clock=CLOCK))


def upgraded(url, target):
    """The first line of the answer to a WebSocket request."""
    parts = urllib.parse.urlsplit(url)
    head = (
        f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = b""
        while data := connection.recv(65536):
            answer += data
    return answer.split(b"\r\n")[0].decode()


@pytest.mark.parametrize(
    ("n_chars", "status"), [(100, "401"), (3_000, "401"), (7_900, "401"), (9_000, "414")]
)
def test_a_join_request_of_any_length_is_answered(n_chars, status):
    with background() as server:
        line = upgraded(server.url, f"/rtc/v1?join_request={'A' * n_chars}")
        assert line.split()[1] == status


async def test_a_server_that_stops_sends_its_publishers_away_and_does_not_wait_for_them():
    publisher = SdkPublisher()
    server = background()
    entered = await asyncio.to_thread(server.__enter__)
    try:
        with httpx.Client(base_url=entered.url, timeout=30, trust_env=False) as http:
            stream = await asyncio.to_thread(StreamView.create, http)
            await publisher.connect(stream.publish["url"], stream.publish["token"])
            await publisher.publish()
            await stream.frame_after(-1)
    finally:
        began_s = CLOCK.monotonic_s()
        await asyncio.to_thread(server.__exit__, None, None, None)
    assert CLOCK.monotonic_s() - began_s < STOP_WITHIN_S
    # It may come back: the server may too.
    await until(lambda: "reconnecting" in publisher.events, what="the client to be told")
    await publisher.close()


async def test_the_client_for_rooms_of_other_servers_joins_and_hears_of_the_end():
    """There is no LiveKit server to join here but our own signalling, which forwards no video."""
    changes = []
    with background() as server, httpx.Client(base_url=server.url, trust_env=False) as http:
        stream = await asyncio.to_thread(StreamView.create, http)
        url, token = stream.publish["url"], stream.publish["token"]
        refused = SdkRoom(lambda: None)
        with pytest.raises(RoomRefused, match="refuses the token"):
            await refused.connect(url, "nonsense")
        await refused.close()
        room = SdkRoom(lambda: changes.append(1))
        await room.connect(url, token)
        assert room.videos() == []
        assert room.lost() is None
        await asyncio.to_thread(http.delete, f"/streams/{stream.id}")
        await until(room.lost, what="the end of the room")
        assert changes != []
        await room.close()
    gone = SdkRoom(lambda: None)
    with pytest.raises(RoomRefused, match="cannot be reached"):
        await gone.connect(url, token)
    await gone.close()
