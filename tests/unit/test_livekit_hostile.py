"""Whatever a client writes: it is understood, or refused as what it is; nothing else happens."""

import itertools

import pytest
from hypothesis import given, strategies as st
from livekit.protocol import models, rtc

from liveedge.core.errors import RequestInvalid
from liveedge.media.livekit import messages
from liveedge.media.livekit.join import parse_join
from liveedge.media.livekit.messages import MessageInvalid
from liveedge.media.livekit.sdp import narrowed, sections
from liveedge.media.livekit.tracks import MAX_TRACKS, TrackRefused, Tracks
from liveedge.media.webrtc.session import OfferInvalid
from tests.livekit_clients import packed_join

LINES = st.sampled_from(
    [
        "v=0",
        "m=",
        "m=video",
        "m=video 9 UDP/TLS/RTP/SAVPF 96 97",
        "m=audio 0 x 1",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "a=mid:",
        "a=mid:7",
        "a=sendonly",
        "a=sendrecv",
        "a=inactive",
        "a=rtpmap:96 VP8/90000",
        "a=rtpmap:97",
        "a=rtpmap:",
        "a=msid:",
        "a=msid:s t",
        "",
        "\x00",
    ]
)
SDP = st.one_of(
    st.text(max_size=200),
    st.lists(LINES, max_size=30).map("\r\n".join),
    st.lists(LINES, max_size=30).map(lambda lines: "\n".join(["v=0", *lines])),
)


@given(SDP)
def test_any_text_is_an_offer_or_refused(text):
    try:
        found = sections(text)
    except OfferInvalid:
        return
    for keep, codec in itertools.product([None, *(s.mid for s in found)], [None, "vp8"]):
        smaller = sections(narrowed(text, keep=keep, codec=codec))
        assert [s.mid for s in smaller] == [s.mid for s in found]
        assert all(s.mid == keep for s in smaller if s.is_video)


def test_an_offer_of_nothing_but_sections_is_refused_before_they_are_read():
    with pytest.raises(OfferInvalid, match="170000 media sections, at most 256"):
        sections("v=0\n" + "m=\n" * 170_000)


@pytest.mark.timeout(20)
def test_an_offer_of_very_many_codecs_is_put_in_order_in_time():
    """In the event loop: every comparison of all with all would hold up the whole server."""
    payloads = [str(n) for n in range(60_000)]
    lines = [f"m=video 9 x {' '.join(payloads)}", "a=mid:7", "a=sendonly"]
    lines += [f"a=rtpmap:{payload} VP8/90000" for payload in payloads]
    smaller = narrowed("\n".join(["v=0", *lines]), keep="7", codec="vp8")
    assert sections(smaller)[0].codecs == ("vp8",)


@given(st.lists(SDP, max_size=4))
def test_any_offers_leave_a_choice_of_their_own_sections(texts):
    tracks = Tracks(new_id=lambda: "1")
    for text in texts:
        try:
            found = sections(text)
        except OfferInvalid:
            continue
        choice = tracks.choose(found, {"7": "t"})
        assert choice.section is None or choice.section in found


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data):
    try:
        request = messages.request(data)
    except MessageInvalid:
        return
    messages.not_allowed(request)


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda d: packed_join(data=d))))
def test_any_parameter_is_a_join_or_refused(text):
    try:
        parse_join("v1", {"join_request": text})
    except RequestInvalid:
        return


class Kind:
    """Fields of announcements, known and unknown."""

    type = st.sampled_from([models.AUDIO, models.VIDEO, models.DATA, 77])
    source = st.integers(0, 9)
    encryption = st.sampled_from([0, 0, 0, 1, 55])


@given(
    st.lists(
        st.builds(
            lambda cid, kind, source, encryption: rtc.AddTrackRequest(
                cid=cid, type=kind, source=source, encryption=encryption
            ),
            st.sampled_from(["", "a", "b", "c"]) | st.text(max_size=5),
            Kind.type,
            Kind.source,
            Kind.encryption,
        ),
        max_size=30,
    )
)
def test_any_announcements_stay_within_the_bound(asked):
    tracks = Tracks(new_id=lambda: "1")
    for request in asked:
        try:
            tracks.announce(request)
        except TrackRefused:
            continue
        assert len(tracks.infos()) <= MAX_TRACKS


def test_an_unknown_message_of_a_newer_client_is_empty():
    assert messages.request(b"\xfa\x3f\x02hi").WhichOneof("message") is None
    with pytest.raises(MessageInvalid):
        messages.request(b"\xff")
