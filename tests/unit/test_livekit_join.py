"""How LiveKit clients ask to come in, written by strangers."""

import base64
import gzip

import pytest
from livekit.protocol import rtc

from liveedge.core.errors import RequestInvalid
from liveedge.media.livekit.join import MAX_PACKED_CHARS, MAX_UNPACKED_BYTES, parse_join
from tests.livekit_clients import empty_offer, packed_join


def parse(text):
    return parse_join("v1", {"join_request": text})


def test_the_offer_comes_with_the_join():
    offer = rtc.SessionDescription(type="offer", sdp=empty_offer(), id=4)
    join = parse(packed_join(rtc.JoinRequest(publisher_offer=offer)))
    assert join.offer == offer
    assert join.resumes is None


@pytest.mark.parametrize("packed", [True, False])
def test_a_join_may_be_packed_or_not(packed):
    join = parse(packed_join(rtc.JoinRequest(metadata="x"), packed=packed))
    assert (join.offer, join.resumes, join.add_tracks) == (None, None, ())


def test_tracks_may_come_with_the_join():
    asked = rtc.AddTrackRequest(cid="camera")
    assert parse(packed_join(rtc.JoinRequest(add_track_requests=[asked]))).add_tracks == (asked,)


def test_a_client_that_was_here_names_itself():
    join = parse(packed_join(rtc.JoinRequest(reconnect=True, participant_sid="PA_7")))
    assert join.resumes == "PA_7"


def test_older_clients_write_parameters():
    assert parse_join("v0", {"sdk": "python", "protocol": "17"}).resumes is None
    assert parse_join("v0", {"reconnect": "1", "sid": "PA_7"}).resumes == "PA_7"
    assert parse_join("v0", {"reconnect": "0", "sid": "PA_7"}).resumes is None


def test_padding_is_optional():
    text = packed_join(rtc.JoinRequest(participant_sid="PA_7"))
    assert parse(text) == parse(text + "=" * (-len(text) % 4))


def test_a_bomb_is_given_up_at_the_bound():
    bomb = rtc.WrappedJoinRequest(
        compression=rtc.WrappedJoinRequest.GZIP,
        join_request=gzip.compress(bytes(MAX_UNPACKED_BYTES * 5)),
    )
    text = base64.urlsafe_b64encode(bomb.SerializeToString()).decode()
    assert len(text) < MAX_PACKED_CHARS
    with pytest.raises(RequestInvalid, match="is not a join request"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is missing"),
        ("é", "is not a join request"),
        ("!!!", "is not a join request"),
        ("AAAA", "is not a join request"),
        (packed_join(data=b"\xff\xff\xff"), "is not a join request"),
        (packed_join()[:-8], "is not a join request"),
        ("A" * (MAX_PACKED_CHARS + 1), "characters, at most"),
    ],
)
def test_garbage_is_refused(text, message):
    with pytest.raises(RequestInvalid, match=message):
        parse(text)
