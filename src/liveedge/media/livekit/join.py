"""How a client asks to come in: what stands in the URL of its WebSocket, current and older ways.

All of it is written by strangers: lengths are checked before anything is unpacked.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from google.protobuf.message import DecodeError
from livekit.protocol import rtc

from liveedge.core.errors import RequestInvalid

Way: TypeAlias = Literal["v1", "v0"]  # /rtc/v1 with a join request, /rtc with parameters

MAX_PACKED_CHARS = 8 * 1024  # of the URL's parameter, whose line is no longer; SDKs send 3 kB
MAX_UNPACKED_BYTES = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS
_LOC = ("query", "join_request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """What the client wants."""

    way: Way
    resumes: str | None = None  # the participant that it was before its socket dropped
    offer: rtc.SessionDescription | None = None
    add_tracks: tuple[rtc.AddTrackRequest, ...] = field(default=())


def parse_join(way: Way, query: Mapping[str, str]) -> Join:
    """Read the parameters of the URL. Raises RequestInvalid."""
    if way == "v0":
        is_resumed = query.get("reconnect", "") in ("1", "true")
        return Join(way=way, resumes=query.get("sid", "") if is_resumed else None)
    packed = query.get("join_request", "")
    if not packed:
        raise RequestInvalid("the parameter join_request is missing", loc=_LOC)
    request = _unpacked(packed)
    return Join(
        way=way,
        resumes=request.participant_sid if request.reconnect else None,
        offer=request.publisher_offer if request.HasField("publisher_offer") else None,
        add_tracks=tuple(request.add_track_requests),
    )


def _unpacked(packed: str) -> rtc.JoinRequest:
    if len(packed) > MAX_PACKED_CHARS:
        raise RequestInvalid(
            f"join_request has {len(packed)} characters, at most {MAX_PACKED_CHARS}", loc=_LOC
        )
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        wrapped = rtc.WrappedJoinRequest.FromString(raw)
        is_packed = wrapped.compression == rtc.WrappedJoinRequest.GZIP
        data = _gunzip(wrapped.join_request) if is_packed else wrapped.join_request
        return rtc.JoinRequest.FromString(data)
    except (binascii.Error, ValueError, zlib.error, DecodeError) as error:
        raise RequestInvalid(
            "join_request is not a join request of a LiveKit client", loc=_LOC
        ) from error


def _gunzip(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(_GZIP)
    unpacked = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("longer than allowed, or cut short")
    return unpacked
