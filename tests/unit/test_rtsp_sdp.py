"""Descriptions of cameras, real ones and hostile ones."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from liveedge.media.rtsp_sdp import control_url, read_description

TYPICAL = b"""v=0\r
o=- 1 1 IN IP4 192.0.2.7\r
s=Media Presentation\r
a=control:rtsp://192.0.2.7:554/ch1/\r
t=0 0\r
m=audio 0 RTP/AVP 8\r
a=rtpmap:8 PCMA/8000\r
a=control:rtsp://192.0.2.7:554/ch1/trackID=2\r
m=video 0 RTP/AVP 96\r
b=AS:5000\r
a=rtpmap:96 H264/90000\r
a=fmtp:96 profile-level-id=420029; packetization-mode=1; sprop-parameter-sets=Z00=,aO48gA==\r
a=control:rtsp://192.0.2.7:554/ch1/trackID=1\r
m=video 0 RTP/AVP 97\r
a=rtpmap:97 H265/90000\r
"""


def test_the_first_video_is_read_whatever_stands_around_it() -> None:
    description = read_description(TYPICAL)
    video = description.video
    assert video is not None
    assert description.control == "rtsp://192.0.2.7:554/ch1/"
    assert (video.encoding, video.payload_type, video.clock_hz) == ("H264", 96, 90_000)
    assert video.control.endswith("trackID=1")
    assert video.parameters["packetization-mode"] == "1"
    assert video.parameter_sets() == b"\0\0\0\1gM" + b"\0\0\0\1h\xee<\x80"


def test_the_sets_of_h265_come_in_the_order_that_decoders_need() -> None:
    named = [
        f"sprop-{kind}={base64.b64encode(kind.encode()).decode()}" for kind in ("sps", "pps", "vps")
    ]
    text = f"m=video 0 RTP/AVP 98\na=rtpmap:98 h265/90000\na=fmtp:98 {'; '.join(named)}\n"
    video = read_description(text.encode()).video
    assert video is not None
    assert video.parameter_sets() == b"\0\0\0\1vps\0\0\0\1sps\0\0\0\1pps"


@pytest.mark.parametrize(
    ("media", "encoding"),
    [
        ("m=video 0 RTP/AVP 26\n", ""),
        ("m=video 0 RTP/AVP 96\n", ""),
        ("m=video\n", ""),
        ("m=video 0 RTP/AVP 300\na=rtpmap:300 H264/90000\n", ""),
        ("m=video 0 RTP/AVP 96\na=rtpmap:96 JPEG/90000\n", "JPEG"),
        ("m=video 0 RTP/AVP 96\na=rtpmap:96 H264/0\na=fmtp:96 sprop-parameter-sets=!!,,\n", "H264"),
    ],
)
def test_what_is_missing_or_odd_is_left_out(media: str, encoding: str) -> None:
    video = read_description(media.encode()).video
    assert video is not None
    assert video.encoding == encoding
    assert video.clock_hz == 90_000
    assert video.parameter_sets() == b""


def test_sound_alone_is_no_video() -> None:
    assert read_description(b"v=0\nm=audio 0 RTP/AVP 0\na=control:t0\n").video is None


@pytest.mark.parametrize(
    ("base", "control", "name"),
    [
        ("rtsp://cam/live/", "trackID=1", "rtsp://cam/live/trackID=1"),
        ("rtsp://cam/live", "trackID=1", "rtsp://cam/live/trackID=1"),
        ("rtsp://cam/live?channel=1", "trackID=1", "rtsp://cam/live?channel=1/trackID=1"),
        ("rtsp://cam/live", "*", "rtsp://cam/live"),
        ("rtsp://cam/live", "", "rtsp://cam/live"),
        ("rtsp://cam/live", "RTSP://10.0.0.1/x", "RTSP://10.0.0.1/x"),
        ("rtsp://cam/live", "x y", None),
        ("rtsp://cam/live", "x\r\nEvil: 1", None),
        ("rtsp://cam/live", "x" * 3000, None),
    ],
)
def test_a_track_is_called_as_its_camera_expects(base: str, control: str, name: str | None) -> None:
    assert control_url(base, control) == name


@given(st.binary(max_size=1000))
def test_hostile_descriptions_do_no_harm(body: bytes) -> None:
    for prefix in (b"", b"m=video ", b"m=video 0 RTP/AVP 96\na=rtpmap:96 H265/9\na=fmtp:96 "):
        video = read_description(prefix + body).video
        if video is not None:
            video.parameter_sets()
