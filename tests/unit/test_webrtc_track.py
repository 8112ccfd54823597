"""Whose packet it is, what it repairs, and what is asked of whom: without a network."""

from __future__ import annotations

import random

import pytest
from aiortc import rtp as peer

from liveedge.media.published import PublishedSource, Publisher
from liveedge.media.webrtc.decoder import TrackDecoder
from liveedge.media.webrtc.router import Router
from liveedge.media.webrtc.rtp import RtpPacket
from liveedge.media.webrtc.track import TrackFormats, VideoTrack

pytestmark = pytest.mark.unit
FORMATS = TrackFormats(codecs={96: "vp8", 102: "h264"}, repairs={97: 96, 103: 102})


def nothing() -> None: ...


def shown(
    mid: str = "0", *, rid: str | None = None, ssrcs: frozenset[int] = frozenset()
) -> VideoTrack:
    track = VideoTrack(mid, formats=FORMATS, rid=rid, ssrcs=ssrcs, keyframe_every_s=2)
    publisher = Publisher(PublishedSource("whip"), lambda _reason: None)
    track.show(TrackDecoder(publisher, label="test", want_key=nothing, on_end=nothing), now_s=0.0)
    return track


def packet(
    sequence: int, *, ssrc: int = 7, payload: bytes | None = None, marker: bool = True, pt: int = 96
) -> RtpPacket:
    """A picture of VP8 in one packet: the first one is a key frame."""
    if payload is None:
        head = b"\x10" if sequence == 1 else b"\x11"
        payload = bytes([0x90, 0x80, 0x80 | sequence >> 8, sequence & 0xFF]) + head + b"picture"
    return RtpPacket(pt, marker, sequence, sequence * 3000, ssrc, payload)


def repair(original: RtpPacket, *, ssrc: int = 8, sequence: int = 500) -> RtpPacket:
    again = original.sequence.to_bytes(2, "big") + original.payload
    return RtpPacket(97, original.marker, sequence, original.timestamp, ssrc, again)


def pictures(track: VideoTrack) -> list[int]:
    assert track.decoder is not None
    found = []
    while (task := track.decoder._tasks.take(0)) is not None:
        found.append(task.unit.timestamp // 3000)
    return found


def asked(track: VideoTrack, now_s: float) -> list[str]:
    names = []
    for data in track.feedback(1, now_s):
        (parsed,) = peer.RtcpPacket.parse(data)
        names.append(f"{type(parsed).__name__}:{getattr(parsed, 'lost', '')}")
    return names


def test_what_is_sent_again_on_the_side_fills_its_hole_without_any_number_in_the_offer() -> None:
    track = shown()
    for n in (1, 2, 4):
        track.packet(packet(n), 0.0)
    assert pictures(track) == [1, 2]
    assert asked(track, 0.01) == ["RtcpRtpfbPacket:[3]"]
    track.packet(repair(packet(3)), 0.03)
    assert pictures(track) == [3, 4]
    assert track.assembler.counts.recovered == 1


def test_what_is_sent_again_before_anything_came_or_is_padding_is_let_be() -> None:
    track = shown()
    track.packet(repair(packet(3)), 0.0)
    track.packet(packet(1), 0.0)
    track.packet(RtpPacket(97, False, 501, 0, 8, b""), 0.0)
    track.packet(RtpPacket(97, False, 502, 0, 8, b"\x00"), 0.0)
    track.packet(RtpPacket(99, False, 5, 0, 8, b"else"), 0.0)
    assert pictures(track) == [1]


def test_layers_that_were_not_asked_for_are_not_mixed_in() -> None:
    track = shown(rid="f")
    for n in range(1, 5):
        for rid, ssrc in (("f", 7), ("q", 9)):
            part = packet(n if rid == "f" else n + 40, ssrc=ssrc)
            part.rid = rid
            track.packet(part, 0.1 * n)
    assert pictures(track) == [1, 2, 3, 4]
    assert track.n_received == 8


def test_another_sender_of_the_track_takes_over_once_the_first_is_quiet_or_says_goodbye() -> None:
    track = shown()
    track.packet(packet(1), 0.0)
    track.packet(packet(1000, ssrc=20), 0.5)
    assert pictures(track) == [1]
    track.packet(packet(1001, ssrc=20), 1.1)
    assert pictures(track) == [1001]
    track.goodbye(20)
    track.packet(packet(5, ssrc=30), 1.2)
    assert pictures(track) == [5]


def test_a_hidden_track_holds_nothing_and_asks_for_nothing() -> None:
    track = shown()
    track.hide()
    for n in (1, 2, 9):
        track.packet(packet(n), 0.0)
    assert track.assembler.n_held == 0
    assert track.feedback(1, 5.0) == []
    assert track.n_received == 3


def test_key_frames_are_asked_for_at_first_and_after_a_loss_that_stays() -> None:
    track = shown()
    track.packet(packet(2), 0.0)
    assert asked(track, 0.01) == ["RtcpPsfbPacket:"]
    track.packet(packet(1), 0.02)  # too late to be of use
    key = packet(3)
    key.payload = key.payload.replace(b"\x11picture", b"\x10picture")
    track.packet(key, 0.1)
    assert asked(track, 0.6) == []
    track.packet(packet(6, payload=b"\x10\x11picture"), 0.7)
    assert track.wants_attention(0.7)
    assert [name.split(":")[0] for name in asked(track, 1.3)] == ["RtcpPsfbPacket"]


def test_senders_are_known_by_section_then_number_then_payload_type() -> None:
    router = Router()
    first, second = shown("1"), shown("2", ssrcs=frozenset({50}))
    router.set_tracks((first, second))
    named = packet(1, ssrc=40)
    named.mid = "1"
    assert router.route(named) is first
    assert router.route(packet(2, ssrc=40)) is first
    assert router.route(packet(1, ssrc=50)) is second
    assert router.route(packet(1, ssrc=60)) is None, "either could be meant"
    unknown = packet(1, ssrc=70)
    unknown.mid = "9"
    assert router.route(unknown) is None
    assert router.n_unknown == 2
    router.set_tracks((second,))
    assert router.route(packet(1, ssrc=60)) is second


def test_packets_still_under_way_of_a_track_that_ended_reach_no_other() -> None:
    router = Router()
    first, second = shown("1"), shown("2")
    router.set_tracks((first,))
    assert router.route(packet(1, ssrc=40)) is first
    router.set_tracks((second,))
    assert router.route(packet(2, ssrc=40)) is None
    assert router.route(packet(1, ssrc=41)) is second


def test_any_number_of_senders_is_not_remembered() -> None:
    router = Router()
    track = shown("1")
    router.set_tracks((track,))
    for ssrc in range(5000):
        router.route(packet(1, ssrc=ssrc))
        track.packet(packet(1, ssrc=ssrc), 0.0)
    assert len(router._by_ssrc) == 64
    assert len(track.reports(1.0)) == 8
    router.set_tracks(())
    assert len(router._retired) == 64


def test_only_payload_types_of_tracks_are_worth_decrypting() -> None:
    router = Router()
    router.set_tracks((shown(),))
    assert router.wants(bytes([0x80, 0x80 | 96]) + bytes(20))
    assert router.wants(bytes([0x80, 97]) + bytes(20))
    assert not router.wants(bytes([0x80, 111]) + bytes(20))


def test_no_packets_make_a_track_fail_or_grow() -> None:
    chance = random.Random(6)
    router = Router()
    track = shown("1")
    router.set_tracks((track,))
    for n in range(6000):
        odd = RtpPacket(
            chance.choice([96, 97, 102, 103]),
            chance.random() < 0.3,
            chance.randrange(65536) if chance.random() < 0.1 else n & 0xFFFF,
            chance.randrange(2**32) if chance.random() < 0.1 else n * 3000,
            chance.choice([7, 7, 7, 8, chance.randrange(2**32)]),
            chance.randbytes(chance.randrange(30)),
            mid=chance.choice([None, None, "1", "\ufffd"]),
            orientation=chance.choice([None, chance.randrange(256)]),
        )
        found = router.route(odd)
        if found is not None:
            found.packet(odd, n / 100)
        track.feedback(1, n / 100)
        assert track.assembler.n_held <= 2 * 4096
        if n % 7 == 0:
            pictures(track)


def test_what_was_counted_of_senders_that_are_forgotten_stays_counted() -> None:
    track = shown()
    for ssrc in range(20):
        track.packet(packet(1, ssrc=ssrc), 0.0)
        track.packet(packet(3, ssrc=ssrc), 0.0)
    assert (track.n_received, track.n_lost) == (40, 20)


def test_what_is_sent_again_of_another_layer_is_not_mixed_in() -> None:
    track = shown(rid="f")
    for n in (1, 3):
        part = packet(n)
        part.rid = "f"
        track.packet(part, 0.0)
    for layer in ("q", "f"):
        again = repair(packet(2, payload=packet(2).payload + layer.encode()))
        again.repaired_rid = layer
        track.packet(again, 0.01)
    decoder = track.decoder
    assert decoder is not None
    seen = [task.unit.data[-1:] for task in iter(lambda: decoder._tasks.take(0), None)]
    assert seen == [b"e", b"f", b"e"]
