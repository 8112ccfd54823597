"""Offers of publishers, well meant and not (issue 4: hostile SDP is refused quickly, by name)."""

from __future__ import annotations

import random
import time

import pytest
from aiortc.sdp import SessionDescription

from liveedge.media.webrtc.answer import LocalTransport, decide, extension_ids, write_answer
from liveedge.media.webrtc.payload import START_CODE
from liveedge.media.webrtc.sdp import read_candidate, read_offer
from liveedge.media.webrtc.session import OfferInvalid
from tests.webrtc_offers import (
    AV1,
    BROWSER,
    H264,
    H264_MODE_0,
    OPUS,
    VP8,
    VP8_RTX,
    VP9,
    audio,
    data,
    livekit_first,
    offer,
    video,
)

pytestmark = pytest.mark.unit
LOCAL = LocalTransport(
    ufrag="ours",
    password="ourpasswordourpasswordour",
    fingerprint="AA:BB",
    setup="active",
    candidates=("candidate:1 1 udp 5 10.0.0.1 50000 typ host",),
)


def answered(text: str, *, is_first: bool = True, max_bitrate_bps: int = 6_000_000) -> str:
    parsed = read_offer(text)
    return write_answer(
        parsed,
        decide(parsed, is_first=is_first),
        local=LOCAL,
        session_id=1,
        version=1,
        max_bitrate_bps=max_bitrate_bps,
    )


def sections(answer: str) -> list[list[str]]:
    assert answer.endswith("\r\n")
    return [("m=" + part).split("\r\n")[:-1] for part in answer.split("m=")[1:]]


def test_a_browser_gets_its_own_order_of_codecs_without_those_we_cannot_decode() -> None:
    (section,) = sections(answered(offer(video("0"))))
    assert section[0] == "m=video 9 UDP/TLS/RTP/SAVPF 96 97 102 103 104"
    assert "a=recvonly" in section
    assert "a=rtcp-rsize" in section
    assert "a=rtpmap:97 rtx/90000" in section
    assert "a=fmtp:97 apt=96" in section
    assert "a=rtcp-fb:96 nack pli" in section
    assert "a=rtcp-fb:96 goog-remb" in section
    assert not any("transport" in line for line in section)


def test_the_order_of_the_offer_is_kept() -> None:
    (section,) = sections(answered(offer(video("0", codecs=[*H264, *VP9, *VP8_RTX]))))
    assert section[0].split()[3:] == ["102", "103", "96", "97"]


def test_publishers_begin_at_full_size_within_the_cap() -> None:
    (section,) = sections(answered(offer(video("0", codecs=[*VP8, *H264]))))
    assert "a=fmtp:96 x-google-start-bitrate=2500" in section
    assert (
        "a=fmtp:102 level-asymmetry-allowed=1;packetization-mode=1;profile-level-id=42001f"
        ";x-google-start-bitrate=2500"
    ) in section
    (slow,) = sections(answered(offer(video("0", codecs=VP8)), max_bitrate_bps=800_000))
    assert "a=fmtp:96 x-google-start-bitrate=800" in slow


@pytest.mark.parametrize(
    ("layers", "best"),
    [("fhq", "f"), ("qhf", "f"), ("hq", "h"), ("qh", "h"), ("q", "q"), ("021", "0")],
)
def test_of_a_simulcast_the_best_layer_is_taken_whatever_the_order(layers: str, best: str) -> None:
    (section,) = sections(answered(offer(video("0", layers=list(layers)))))
    assert f"a=rid:{best} recv" in section
    assert f"a=simulcast:recv {best}" in section
    assert "a=extmap:10 urn:ietf:params:rtp-hdrext:sdes:rtp-stream-id" in section
    assert "a=extmap:11 urn:ietf:params:rtp-hdrext:sdes:repaired-rtp-stream-id" in section


def test_sizes_that_the_offer_gives_rank_layers() -> None:
    sizes = ["a=rid:a send pt=96;max-width=320;max-height=180"]
    sizes += ["a=rid:b send max-width=1280;max-height=720", "a=simulcast:send a;~c;b,d"]
    parsed = read_offer(offer(video("0", extra=sizes)))
    assert [layer.rid for layer in parsed.sections[0].layers] == ["a", "b"]
    assert decide(parsed, is_first=True)[0].layer == "b"


def test_the_first_offer_of_livekit_has_nothing_to_send_and_is_answered() -> None:
    answer = answered(livekit_first())
    kinds = [(lines[0].split()[0], lines[0].split()[1]) for lines in sections(answer)]
    assert kinds == [("m=application", "9"), *[("m=audio", "9")] * 3, *[("m=video", "9")] * 3]
    assert answer.count("a=inactive") == 6
    assert "a=group:BUNDLE 0 1 2 3 4 5 6\r\n" in answer
    assert answer.count("a=candidate:") == 1
    assert "a=sctp-port:5000" in answer


def test_sound_is_taken_so_that_the_publisher_is_content() -> None:
    first, second = sections(answered(offer(audio("0"), video("1"))))
    assert first[0] == "m=audio 9 UDP/TLS/RTP/SAVPF 111 0"
    assert "a=recvonly" in first
    assert "a=rtpmap:111 opus/48000/2" in first
    assert "a=recvonly" in second
    assert "a=candidate:1 1 udp 5 10.0.0.1 50000 typ host" in first
    assert not any(line.startswith("a=candidate") for line in second)


def test_what_is_refused_has_port_zero_and_is_not_in_the_bundle() -> None:
    odd = ["m=text 9 UDP/TLS/RTP/SAVPF 98", "c=IN IP4 0.0.0.0", "a=mid:t", "a=rtpmap:98 t140/1000"]
    gone = video("gone", direction="inactive", port=0)
    answer = answered(offer(odd, gone, video("1"), audio("2", codecs=["113 L16/44100/2"])))
    ports = [lines[0].split()[1] for lines in sections(answer)]
    assert ports == ["0", "0", "9", "0"]
    assert "a=group:BUNDLE 1\r\n" in answer


def test_port_zero_with_bundle_only_is_no_refusal() -> None:
    bundled = video("1", port=0, extra=["a=bundle-only"])
    _, second = sections(answered(offer(audio("0"), bundled)))
    assert "a=recvonly" in second


def test_without_a_bundle_only_the_video_is_taken() -> None:
    first, second = sections(answered(offer(audio("0"), video("1"), bundle=False)))
    assert first[0].startswith("m=audio 0 ")
    assert "a=recvonly" in second
    assert any(line.startswith("a=candidate") for line in second)


def test_what_we_answer_is_understood_by_another_reader_of_sdp() -> None:
    text = offer(
        audio("0"), video("1", layers=["q", "h"]), data("2"), video("3", direction="inactive")
    )
    parsed = SessionDescription.parse(answered(text))
    assert [media.direction for media in parsed.media] == ["recvonly", "recvonly", None, "inactive"]
    assert [media.rtp.muxId for media in parsed.media] == ["0", "1", "2", "3"]
    assert [codec.name for codec in parsed.media[1].rtp.codecs][:2] == ["VP8", "rtx"]
    assert parsed.media[2].sctp_port == 5000


@pytest.mark.parametrize(
    ("codecs", "said"),
    [
        (VP9, "the publisher offers VP9; this server takes VP8 and H.264"),
        ([*AV1, *VP9], "the publisher offers AV1 and VP9; this server takes VP8 and H.264"),
        (["96 H265/90000"], "the publisher offers H.265; this server takes VP8 and H.264"),
        (["96 H264/90000 packetization-mode=2"], "the publisher offers H.264; "),
    ],
)
def test_a_codec_that_we_cannot_decode_is_named(codecs: list[str], said: str) -> None:
    with pytest.raises(OfferInvalid) as caught:
        answered(offer(data("0"), video("1", codecs=codecs)), is_first=False)
    assert caught.value.reason.startswith(said)


def test_an_offer_without_video_is_refused_unless_it_brings_data_channels() -> None:
    with pytest.raises(OfferInvalid, match="no video"):
        answered(offer(audio("0")))
    assert answered(offer(audio("0"), data("1")))
    assert answered(offer(audio("0")), is_first=False)


def test_numbers_of_extensions_are_those_of_the_offer() -> None:
    ids = extension_ids(decide(read_offer(offer(video("0"))), is_first=True))
    assert (ids.mid, ids.rid, ids.repaired_rid, ids.orientation) == (4, 10, 11, 13)


def test_parameters_of_h264_are_taken_from_the_offer() -> None:
    codec = f"{H264_MODE_0[0]};sprop-parameter-sets=Z0IAHw==,aM44"
    (section,) = decide(read_offer(offer(video("0", codecs=[codec]))), is_first=True)
    assert section.parameter_sets == START_CODE + b"\x67\x42\x00\x1f" + START_CODE + b"\x68\xce\x38"
    broken = f"{H264_MODE_0[0]};sprop-parameter-sets=%%%"
    (section,) = decide(read_offer(offer(video("0", codecs=[broken]))), is_first=True)
    assert section.parameter_sets == b""


@pytest.mark.parametrize(
    ("text", "usable"),
    [
        ("candidate:1 1 udp 2122260223 192.168.1.5 50123 typ host generation 0", True),
        ("a=candidate:1 1 UDP 2122260223 fd00::5 50123 typ srflx raddr ::1 rport 1", True),
        ("candidate:1 1 udp 1 9e8c7f0a-1b2c.local 50123 typ host", False),
        ("candidate:1 1 tcp 1518280447 192.168.1.5 9 typ host tcptype active", False),
        ("candidate:1 2 udp 1 192.168.1.5 50123 typ host", False),
        ("candidate:1 1 udp 1 192.168.1.5 0 typ host", False),
        ("candidate:1 1 udp 1 192.168.1.5 70000 typ host", False),
        ("candidate:1 1 udp x 192.168.1.5 50123 typ host", False),
        ("candidate:1 1 udp 1 192.168.1.5 50123 typ wrong", False),
        ("candidate:1 1 udp 1 0.0.0.0 50123 typ host", False),
        ("candidate:1 1 udp 1 224.0.0.1 50123 typ host", False),
        ("candidate:1 1 udp 1", False),
        ("", False),
    ],
)
def test_only_addresses_that_can_be_tried_are_taken(text: str, usable: bool) -> None:
    assert (read_candidate(text) is not None) is usable


def test_candidates_are_counted_once_each_and_bounded() -> None:
    many = [f"a=candidate:1 1 udp 1 10.0.{n}.1 5000 typ host" for n in range(60)]
    hidden = ["a=candidate:1 1 udp 1 abc.local 5000 typ host"]
    parsed = read_offer(offer(video("0", extra=[*many, *many, *hidden])))
    assert len(parsed.candidates) == 32


def test_what_may_be_asked_of_a_codec_is_bounded_however_often_it_is_said() -> None:
    many = [f"a=rtcp-fb:{n} kind-{i}" for i in range(3000) for n in ("*", "96")]
    (section,) = read_offer(offer(video("0", extra=many))).sections
    assert "nack pli" in section.codecs[0].feedback
    assert max(len(codec.feedback) for codec in section.codecs) < 100


GOOD = offer(video("0"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "does not begin with v=0"),
        ("{}", "does not begin with v=0"),
        ("v=0\r\n", "no media section"),
        ("v=0\r\n\0" + GOOD[5:], "control characters"),
        (GOOD.replace("m=video 9", "m=video x"), "m= is malformed"),
        (GOOD.replace("m=video 9", "m=video 99999"), "m= is malformed"),
        (GOOD.replace("a=ice-ufrag:abcd\r\n", ""), "a=ice-ufrag"),
        (GOOD.replace("a=ice-ufrag:abcd", "a=ice-ufrag:a:b d"), "malformed"),
        (GOOD.replace("a=ice-pwd:0123456789", "a=ice-pwd:"), "malformed"),
        (GOOD.replace("a=fingerprint:sha-256", "a=fingerprint:md5"), "a=fingerprint"),
        (GOOD.replace("a=setup:actpass", "a=setup:holdconn"), "a=setup"),
        (GOOD.replace("a=rtcp-mux\r\n", ""), "a=rtcp-mux"),
        (offer(video("0"), video("0")), "same a=mid"),
        (offer(video("0", extra=["a=x:" + "y" * 9000])), "line of more than"),
        (offer(*[video(str(n), codecs=VP8) for n in range(300)]), "more than 256 media sections"),
        (offer(*[video(str(n)) for n in range(20)]), "more than the 16 allowed"),
        ("v=0\r\n" + "a=x\r\n" * 300_000, "characters, more than"),
    ],
)
def test_nonsense_is_refused_with_its_reason(text: str, said: str) -> None:
    with pytest.raises(OfferInvalid) as caught:
        answered(text)
    assert said in caught.value.reason
    assert len(caught.value.reason) < 200


def test_no_change_of_an_offer_raises_anything_else_or_takes_long() -> None:
    chance = random.Random(11)
    whole = offer(audio("0"), video("1", layers=["q", "h"], codecs=[*BROWSER]), data("2"))
    begun_s = time.thread_time()
    for _ in range(300):
        text = list(whole)
        for _ in range(chance.randrange(1, 12)):
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(6)] = chance.choice(
                ["", " ", ":", "=", "\r\n", "m=", "a=", "\x00", "9" * 30, "ä", "-1", ";"]
            )
        try:
            answered("".join(text))
        except OfferInvalid:
            continue
    assert time.thread_time() - begun_s < 20


def test_a_megabyte_of_anything_is_refused_at_once() -> None:
    for text in ("v=0\r\n" + "m=" * 500_000, "v=0" + "\n" * 1_000_000, GOOD + "a=b\r\n" * 250_000):
        begun_s = time.thread_time()
        with pytest.raises(OfferInvalid):
            answered(text)
        assert time.thread_time() - begun_s < 1


def test_static_payload_types_of_sound_need_no_map() -> None:
    section = [line for line in audio("1", codecs=OPUS) if not line.startswith("a=rtpmap:0 ")]
    first, _ = sections(answered(offer(section, video("2"))))
    assert first[0] == "m=audio 9 UDP/TLS/RTP/SAVPF 111 0"
