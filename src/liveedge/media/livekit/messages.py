"""What we say to LiveKit clients: one function per message, values in, bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from google.protobuf.message import DecodeError
from livekit.protocol import models, rtc

from liveedge.media.webrtc.session import IceServer

LeaveKind: TypeAlias = Literal[
    "replaced", "stream ended", "cannot resume", "media failed", "refused", "shutdown"
]

PING_INTERVAL_S = 5  # how often clients shall say that they are there
PING_TIMEOUT_S = 15  # silence after which either side gives the socket up
PROTOCOL_VERSION = 16
SERVER_VERSION = "1.9.0"  # of a LiveKit server that can as much as this one, for clients that ask
PUBLISH_CODECS = ("video/VP8", "video/H264", "audio/opus")

_DISCONNECT = rtc.LeaveRequest.DISCONNECT  # and stay out
_RECONNECT = rtc.LeaveRequest.RECONNECT  # from scratch
_LEAVES: dict[LeaveKind, tuple[rtc.LeaveRequest.Action, models.DisconnectReason]] = {
    "replaced": (_DISCONNECT, models.DUPLICATE_IDENTITY),
    "stream ended": (_DISCONNECT, models.ROOM_DELETED),
    "cannot resume": (_RECONNECT, models.STATE_MISMATCH),
    "media failed": (_RECONNECT, models.MEDIA_FAILURE),
    "refused": (_DISCONNECT, models.PARTICIPANT_REMOVED),
    # The server may be back in a moment, and its streams with it.
    "shutdown": (_RECONNECT, models.SERVER_SHUTDOWN),
}


class MessageInvalid(Exception):
    """Bytes that are no message of this protocol."""


def request(data: bytes) -> rtc.SignalRequest:
    """A client's message. Of a kind that is newer than ours it is empty. Raises MessageInvalid."""
    try:
        return rtc.SignalRequest.FromString(data)
    except DecodeError as error:
        raise MessageInvalid("not a message of a LiveKit client") from error


def joined(
    participant: models.ParticipantInfo, *, room: str, ice_servers: Sequence[IceServer]
) -> rtc.SignalResponse:
    """Welcome: who you are, and how we talk."""
    answer = rtc.JoinResponse(
        room=models.Room(
            sid=f"RM_{room}",
            name=room,
            num_participants=1,
            creation_time=participant.joined_at,
            enabled_codecs=_codecs(),
        ),
        participant=participant,
        server_version=SERVER_VERSION,
        server_info=_server_info(),
        ice_servers=_ice(ice_servers),
        # Nothing is ever sent to a publisher: it need not wait for a second connection.
        subscriber_primary=False,
        fast_publish=True,
        ping_interval=PING_INTERVAL_S,
        ping_timeout=PING_TIMEOUT_S,
        enabled_publish_codecs=_codecs(),
    )
    return rtc.SignalResponse(join=answer)


def resumed(ice_servers: Sequence[IceServer]) -> rtc.SignalResponse:
    """Your media connection lives; go on with it."""
    answer = rtc.ReconnectResponse(ice_servers=_ice(ice_servers), server_info=_server_info())
    return rtc.SignalResponse(reconnect=answer)


def update(participant: models.ParticipantInfo) -> rtc.SignalResponse:
    return rtc.SignalResponse(update=rtc.ParticipantUpdate(participants=[participant]))


def participant(
    *,
    sid: str,
    identity: str,
    joined_at_ms: int,
    tracks: Sequence[models.TrackInfo] = (),
) -> models.ParticipantInfo:
    """The publisher as its client sees itself."""
    return models.ParticipantInfo(
        sid=sid,
        identity=identity,
        state=models.ParticipantInfo.ACTIVE,
        joined_at=joined_at_ms // 1000,
        joined_at_ms=joined_at_ms,
        is_publisher=bool(tracks),
        tracks=tracks,
        permission=models.ParticipantPermission(
            can_publish=True, can_publish_data=False, can_subscribe=False
        ),
    )


def answer(sdp: str, *, offer_id: int) -> rtc.SignalResponse:
    """Clients ignore an answer that does not name the offer."""
    return rtc.SignalResponse(answer=rtc.SessionDescription(type="answer", sdp=sdp, id=offer_id))


def track_published(cid: str, track: models.TrackInfo) -> rtc.SignalResponse:
    return rtc.SignalResponse(track_published=rtc.TrackPublishedResponse(cid=cid, track=track))


def pong(now_ms: int) -> rtc.SignalResponse:
    return rtc.SignalResponse(pong=now_ms)


def pong_resp(ping: rtc.Ping, now_ms: int) -> rtc.SignalResponse:
    return rtc.SignalResponse(
        pong_resp=rtc.Pong(last_ping_timestamp=ping.timestamp, timestamp=now_ms)
    )


def refresh_token(token: str) -> rtc.SignalResponse:
    """The client comes back with this one."""
    return rtc.SignalResponse(refresh_token=token)


def leave(kind: LeaveKind) -> rtc.SignalResponse:
    action, reason = _LEAVES[kind]
    return rtc.SignalResponse(
        leave=rtc.LeaveRequest(action=action, reason=reason, can_reconnect=action == _RECONNECT)
    )


def track_refused(
    asked: rtc.AddTrackRequest | None, message: str, reason: rtc.RequestResponse.Reason
) -> rtc.SignalResponse:
    return rtc.SignalResponse(
        request_response=rtc.RequestResponse(reason=reason, message=message, add_track=asked)
    )


def not_allowed(asked: rtc.SignalRequest) -> rtc.SignalResponse | None:
    """The refusal of a request that waits for one; None where none is expected."""
    text = "a publish token allows nothing but publishing audio and video"
    refusal = rtc.RequestResponse(reason=rtc.RequestResponse.NOT_ALLOWED, message=text)
    match asked.WhichOneof("message"):
        case "update_metadata":
            refusal.request_id = asked.update_metadata.request_id
            refusal.update_metadata.CopyFrom(asked.update_metadata)
        case "publish_data_track_request":
            refusal.publish_data_track.CopyFrom(asked.publish_data_track_request)
        case _:
            return None
    return rtc.SignalResponse(request_response=refusal)


def _codecs() -> list[models.Codec]:
    return [models.Codec(mime=mime) for mime in PUBLISH_CODECS]


def _server_info() -> models.ServerInfo:
    return models.ServerInfo(
        edition=models.ServerInfo.Standard, version=SERVER_VERSION, protocol=PROTOCOL_VERSION
    )


def _ice(servers: Sequence[IceServer]) -> list[rtc.ICEServer]:
    return [
        rtc.ICEServer(urls=[s.url], username=s.username or "", credential=s.credential or "")
        for s in servers
    ]
