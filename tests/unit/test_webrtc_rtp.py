"""RTP and RTCP as bytes: read against aiortc's own writer, written for aiortc's own reader."""

from __future__ import annotations

import random

import pytest
from aiortc import rtp as peer
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters, RTCRtpParameters

from liveedge.media.webrtc.reception import Reception
from liveedge.media.webrtc.rtp import (
    ExtensionIds,
    Goodbye,
    ReportBlock,
    SenderReport,
    bitrate_cap,
    is_rtcp,
    negative_acknowledgement,
    picture_loss,
    read_rtcp,
    read_rtp,
    receiver_report,
)

pytestmark = pytest.mark.unit
IDS = ExtensionIds(mid=1, rid=2, repaired_rid=5, orientation=4)


def _peer_packet(**fields: object) -> bytes:
    ids = peer.HeaderExtensionsMap()
    ids.configure(
        RTCRtpParameters(
            headerExtensions=[
                RTCRtpHeaderExtensionParameters(id=1, uri="urn:ietf:params:rtp-hdrext:sdes:mid"),
                RTCRtpHeaderExtensionParameters(
                    id=2, uri="urn:ietf:params:rtp-hdrext:sdes:rtp-stream-id"
                ),
            ]
        )
    )
    packet = peer.RtpPacket(
        payload_type=96, marker=1, sequence_number=65535, timestamp=2**32 - 1, ssrc=7
    )
    packet.payload = b"picture"
    for name, value in fields.items():
        setattr(packet.extensions if hasattr(packet.extensions, name) else packet, name, value)
    return packet.serialize(ids)


def test_a_packet_is_read_with_its_section_and_layer() -> None:
    packet = read_rtp(_peer_packet(mid="12", rtp_stream_id="f"), IDS)
    assert packet is not None
    assert (packet.payload_type, packet.marker, packet.sequence) == (96, True, 65535)
    assert (packet.timestamp, packet.ssrc, packet.payload) == (2**32 - 1, 7, b"picture")
    assert (packet.mid, packet.rid, packet.orientation) == ("12", "f", None)


def test_padding_is_cut_off_and_sources_are_skipped() -> None:
    packet = read_rtp(_peer_packet(padding_size=9, csrc=[1, 2, 3]), IDS)
    assert packet is not None
    assert packet.payload == b"picture"
    only_padding = read_rtp(_peer_packet(padding_size=200, payload=b""), IDS)
    assert only_padding is not None
    assert only_padding.payload == b""


def test_the_orientation_is_read_from_both_kinds_of_extension_headers() -> None:
    head = bytes([0x90, 96]) + bytes(10)
    one = read_rtp(head + bytes.fromhex("bede0001") + bytes([0x40, 0x03, 0, 0]) + b"x", IDS)
    two = read_rtp(head + bytes.fromhex("10000001") + bytes([4, 1, 0x03, 0]) + b"x", IDS)
    assert one is not None
    assert two is not None
    assert one.orientation == two.orientation == 3
    assert one.payload == two.payload == b"x"


def test_malformed_packets_are_none_and_nothing_raises() -> None:
    whole = _peer_packet(mid="1", padding_size=3)
    chance = random.Random(3)
    for _ in range(3000):
        data = bytearray(whole[: chance.randrange(len(whole) + 1)])
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        read_rtp(bytes(data), IDS)
        list(read_rtcp(bytes(data)))
    assert read_rtp(whole[:11], IDS) is None
    assert read_rtp(b"\x40" + whole[1:], IDS) is None


def test_reports_and_goodbyes_of_the_publisher_are_read_from_one_compound_packet() -> None:
    report = peer.RtcpSrPacket(
        ssrc=9,
        sender_info=peer.RtcpSenderInfo(
            ntp_timestamp=0x1122334455667788, rtp_timestamp=5, packet_count=6, octet_count=7
        ),
    )
    data = bytes(report) + bytes(peer.RtcpSdesPacket()) + bytes(peer.RtcpByePacket([9, 10]))
    assert list(read_rtcp(data)) == [SenderReport(9, 0x33445566), Goodbye((9, 10))]
    assert list(read_rtcp(data[:-2])) == [SenderReport(9, 0x33445566)]


def test_what_we_ask_for_is_understood() -> None:
    missing = [65534, 65535, 0, 3, 40, 41, 57]
    data = b"".join(
        [
            receiver_report(1),
            picture_loss(1, 2),
            negative_acknowledgement(1, 2, missing),
            bitrate_cap(1, 6_000_000, [2, 3]),
        ]
    )
    assert is_rtcp(data)
    report, loss, nack, cap = peer.RtcpPacket.parse(data)
    assert isinstance(report, peer.RtcpRrPacket)
    assert isinstance(loss, peer.RtcpPsfbPacket)
    assert (loss.fmt, loss.media_ssrc) == (peer.RTCP_PSFB_PLI, 2)
    assert isinstance(nack, peer.RtcpRtpfbPacket)
    assert [number & 0xFFFF for number in nack.lost] == missing
    assert isinstance(cap, peer.RtcpPsfbPacket)
    bitrate, ssrcs = peer.unpack_remb_fci(cap.fci)
    assert abs(bitrate - 6_000_000) < 64
    assert ssrcs == [2, 3]


def test_a_report_says_what_was_lost_since_the_last_one() -> None:
    reception = Reception(5, clock_hz=90_000)
    for n in [*range(65530, 65536), *range(10)]:
        if n != 3:
            reception.packet(n, n * 3000, 100 + n / 30)
    reception.sender_report(0xABCD, 100.0)
    data = receiver_report(1, [reception.report(100.5)])
    (parsed,) = peer.RtcpPacket.parse(data)
    assert isinstance(parsed, peer.RtcpRrPacket)
    (block,) = parsed.reports
    assert (block.ssrc, block.packets_lost, block.lsr) == (5, 1, 0xABCD)
    assert block.highest_sequence == 65536 + 9
    assert block.fraction_lost == 256 // 16
    assert block.dlsr == 32768
    assert reception.report(100.6).fraction_lost == 0


def test_more_arrivals_than_sendings_are_no_negative_loss_of_a_large_number() -> None:
    block = ReportBlock(ssrc=1, fraction_lost=0, n_lost=-2, highest_sequence=9)
    (parsed,) = peer.RtcpPacket.parse(receiver_report(1, [block]))
    assert isinstance(parsed, peer.RtcpRrPacket)
    assert parsed.reports[0].packets_lost == -2
