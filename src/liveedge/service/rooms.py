"""Rooms of an external LiveKit server: one per stream, and who may do what there.

Tokens are minted with that server's key and secret; it never hears of ours. A stream's room has its
id as its name, and exists as soon as somebody joins. Experimental: see `media/livekit/subscriber.py`.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jwt

from liveedge.core.clock import Clock
from liveedge.media.livekit.subscriber import Room, RoomRefused, RoomSource
from liveedge.media.source import Source
from liveedge.service.tokens import ALGORITHM, LEEWAY_S

ROOM_CLIENT = "liveedge.media.livekit.room_client"
LISTENER_S = 600  # the server renews it while the connection stands
_INSTALL = "streams of type livekit need the LiveKit SDK here: pip install 'liveedge[livekit]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomServer:
    """Where the rooms are."""

    url: str
    api_key: str = field(repr=False)
    api_secret: str = field(repr=False)


class Rooms:
    """Makes tokens and sources. Their tokens reach nobody but the three kinds of participants."""

    def __init__(self, server: RoomServer, *, clock: Clock) -> None:
        self.url = server.url
        self._server = server
        self._clock = clock

    def publisher_token(self, stream_id: str, *, valid_s: int) -> str:
        """For the one who publishes into the stream, and does nothing else."""
        grants = {"canPublish": True, "canSubscribe": False, "canPublishData": False}
        return self._token(stream_id, "publisher", grants, valid_s=valid_s)

    def viewer_token(self, stream_id: str, *, valid_s: int) -> str:
        """For one who watches, seen by nobody."""
        return self._token(stream_id, "viewer", _WATCH, valid_s=valid_s)

    def listener_token(self, stream_id: str) -> str:
        """For this server."""
        return self._token(stream_id, "liveedge", _WATCH, valid_s=LISTENER_S)

    def source(self, stream_id: str) -> Source:
        """The frames of the stream's room."""
        return RoomSource(
            url=self.url,
            token=lambda: self.listener_token(stream_id),
            open_room=open_room,
            clock=self._clock,
        )

    def _token(self, room: str, role: str, grants: dict[str, bool], *, valid_s: int) -> str:
        now_s = self._clock.wall_ms() // 1000
        claims: dict[str, Any] = {
            "iss": self._server.api_key,
            "sub": f"{role}-{secrets.token_hex(4)}",
            "nbf": now_s - LEEWAY_S,
            "exp": now_s + valid_s + LEEWAY_S,
            "video": {"room": room, "roomJoin": True, **grants},
        }
        return jwt.encode(claims, self._server.api_secret, algorithm=ALGORITHM)


def open_room(changed: Callable[[], None]) -> Room:
    """A client of the official SDK. Raises RoomRefused where that is not installed."""
    try:
        module = importlib.import_module(ROOM_CLIENT)
    except ImportError as error:
        if not (error.name or "").startswith("livekit"):
            raise
        raise RoomRefused(_INSTALL, hopeless=True) from error
    room: Room = module.SdkRoom(changed)
    return room


_WATCH = {"canPublish": False, "canSubscribe": True, "canPublishData": False, "hidden": True}
