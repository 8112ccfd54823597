"""Tokens for the rooms of an external LiveKit server."""

import jwt
import pytest

from liveedge.service.rooms import Rooms, RoomServer
from liveedge.service.tokens import LEEWAY_S
from liveedge.testing.clock import FakeClock

SECRET = "0123456789abcdef0123456789abcdef"
SERVER = RoomServer(url="wss://livekit.example", api_key="APIkey", api_secret=SECRET)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def rooms(clock):
    return Rooms(SERVER, clock=clock)


def claims(token):
    return jwt.decode(
        token,
        SECRET,
        algorithms=["HS256"],
        issuer="APIkey",
        options={"verify_exp": False, "verify_nbf": False},
    )


def test_a_publisher_may_publish_into_its_room_and_nothing_else(rooms, clock):
    found = claims(rooms.publisher_token("stream-1", valid_s=300))
    assert found["video"] == {
        "room": "stream-1",
        "roomJoin": True,
        "canPublish": True,
        "canSubscribe": False,
        "canPublishData": False,
    }
    assert found["exp"] == clock.wall_ms() // 1000 + 300 + LEEWAY_S
    assert found["sub"].startswith("publisher-")


@pytest.mark.parametrize("role", ["viewer", "listener"])
def test_whoever_watches_is_hidden_and_may_not_publish(rooms, role):
    token = {
        "viewer": lambda: rooms.viewer_token("stream-1", valid_s=300),
        "listener": lambda: rooms.listener_token("stream-1"),
    }[role]()
    found = claims(token)
    assert found["video"] == {
        "room": "stream-1",
        "roomJoin": True,
        "canPublish": False,
        "canSubscribe": True,
        "canPublishData": False,
        "hidden": True,
    }


def test_two_viewers_are_two_participants(rooms):
    """The same identity twice would make the server send the first away."""
    first, second = (claims(rooms.viewer_token("stream-1", valid_s=9))["sub"] for _ in range(2))
    assert first != second


def test_the_key_of_the_server_is_not_shown():
    assert SECRET not in repr(SERVER)
    assert "APIkey" not in repr(SERVER)
