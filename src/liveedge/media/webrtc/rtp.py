"""RTP and RTCP as bytes: what is read of a publisher's packets and what is told to it.

Pure. Malformed bytes give None or end the walk; nothing raises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

VIDEO_CLOCK_HZ = 90_000

_HEADER = struct.Struct("!BBHLL")
_RTCP_HEADER = struct.Struct("!BBH")
_TWO_IDS = struct.Struct("!LL")
_ONE_BYTE_PROFILE = 0xBEDE
_TWO_BYTE_PROFILES = range(0x1000, 0x1010)

_SENDER_REPORT = 200
_RECEIVER_REPORT = 201
_BYE = 203
_TRANSPORT_FEEDBACK = 205
_PAYLOAD_FEEDBACK = 206
_NACK = 1
_PLI = 1
_APPLICATION = 15
_MAX_LOST_SHOWN = (1 << 23) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionIds:
    """The numbers that header extensions have on one connection; None: not agreed on."""

    mid: int | None = None
    rid: int | None = None
    repaired_rid: int | None = None
    orientation: int | None = None


@dataclass(slots=True)
class RtpPacket:
    """One packet, decrypted."""

    payload_type: int
    marker: bool
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes
    mid: str | None = None
    rid: str | None = None
    repaired_rid: str | None = None
    orientation: int | None = None


def payload_type_of(packet: bytes) -> int:
    """Readable without decryption."""
    return packet[1] & 0x7F


def is_rtcp(packet: bytes) -> bool:
    """Of the two kinds that share a port."""
    return 192 <= packet[1] < 224


def read_rtp(data: bytes, ids: ExtensionIds) -> RtpPacket | None:
    """A packet; None if it is malformed."""
    if len(data) < _HEADER.size:
        return None
    first, second, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
    start = _HEADER.size + 4 * (first & 0x0F)
    end = len(data)
    if first >> 6 != 2 or start > end:
        return None
    if first & 0x20:
        if not 0 < data[-1] <= end - start:
            return None
        end -= data[-1]
    packet = RtpPacket(second & 0x7F, bool(second & 0x80), sequence, timestamp, ssrc, b"")
    if first & 0x10:
        after = _read_extensions(data, start, end, ids, packet)
        if after is None:
            return None
        start = after
    packet.payload = data[start:end]
    return packet


def _read_extensions(
    data: bytes, start: int, end: int, ids: ExtensionIds, packet: RtpPacket
) -> int | None:
    """Take what is known over into the packet; where the payload begins, or None."""
    if start + 4 > end:
        return None
    profile, n_words = struct.unpack_from("!HH", data, start)
    start += 4
    after = start + 4 * int(n_words)
    if after > end:
        return None
    if profile == _ONE_BYTE_PROFILE:
        found = _one_byte(data, start, after)
    elif profile in _TWO_BYTE_PROFILES:
        found = _two_byte(data, start, after)
    else:
        return after
    for number, value in found:
        if number == ids.mid:
            packet.mid = _text(value)
        elif number == ids.rid:
            packet.rid = _text(value)
        elif number == ids.repaired_rid:
            packet.repaired_rid = _text(value)
        elif number == ids.orientation and value:
            packet.orientation = value[0]
    return after


def _one_byte(data: bytes, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    while at < end:
        number, length = data[at] >> 4, (data[at] & 0x0F) + 1
        at += 1
        if number == 0:  # padding, one byte
            continue
        if number == 15 or at + length > end:
            return
        yield number, data[at : at + length]
        at += length


def _two_byte(data: bytes, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    while at < end:
        if data[at] == 0:
            at += 1
            continue
        if at + 2 > end or at + 2 + data[at + 1] > end:
            return
        number, length = data[at], data[at + 1]
        yield number, data[at + 2 : at + 2 + length]
        at += 2 + length


def _text(value: bytes) -> str:
    return value.decode("ascii", "replace")


# ── RTCP from the publisher ──


@dataclass(frozen=True, slots=True)
class SenderReport:
    """When the publisher sent what, on its own clock; wanted back in our reports."""

    ssrc: int
    ntp_middle: int  # the middle 32 bits of its clock


@dataclass(frozen=True, slots=True)
class Goodbye:
    """These senders stop."""

    ssrcs: tuple[int, ...]


Rtcp: TypeAlias = SenderReport | Goodbye


def read_rtcp(data: bytes) -> Iterator[Rtcp]:
    """What matters here of a compound packet, up to the first malformed part."""
    at = 0
    while at + 4 <= len(data):
        first, kind, n_words = _RTCP_HEADER.unpack_from(data, at)
        end = at + 4 + 4 * n_words
        if first >> 6 != 2 or end > len(data):
            return
        body = data[at + 4 : end]
        if kind == _SENDER_REPORT and len(body) >= 12:
            ssrc, high, low = struct.unpack_from("!LLL", body)
            yield SenderReport(ssrc, ((high & 0xFFFF) << 16) | (low >> 16))
        elif kind == _BYE:
            n = min(first & 0x1F, len(body) // 4)
            yield Goodbye(struct.unpack_from(f"!{n}L", body))
        at = end


# ── RTCP from us ──


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBlock:
    """What arrived of one sender."""

    ssrc: int
    fraction_lost: int  # of 256, since the last report
    n_lost: int
    highest_sequence: int  # with the count of its wraps
    jitter: int = 0
    last_report: int = 0  # SenderReport.ntp_middle
    since_last_report: int = 0  # in 1/65536 s


def receiver_report(sender: int, blocks: Sequence[ReportBlock] = ()) -> bytes:
    """At most 31 blocks. Without any it is what every compound packet has to begin with."""
    body = struct.pack("!L", sender)
    for block in blocks[:31]:
        lost = max(-_MAX_LOST_SHOWN, min(block.n_lost, _MAX_LOST_SHOWN)) & 0xFFFFFF
        body += struct.pack(
            "!LLLLLL",
            block.ssrc,
            (block.fraction_lost & 0xFF) << 24 | lost,
            block.highest_sequence & 0xFFFFFFFF,
            block.jitter & 0xFFFFFFFF,
            block.last_report,
            block.since_last_report & 0xFFFFFFFF,
        )
    return _rtcp(_RECEIVER_REPORT, min(len(blocks), 31), body)


def picture_loss(sender: int, media: int) -> bytes:
    """Ask for a key frame."""
    return _rtcp(_PAYLOAD_FEEDBACK, _PLI, _TWO_IDS.pack(sender, media))


def negative_acknowledgement(sender: int, media: int, missing: Sequence[int]) -> bytes:
    """Ask for packets again; `missing` are sequence numbers of 16 bits in the order of sending."""
    items: list[tuple[int, int]] = []
    for sequence in missing:
        if items:
            base, mask = items[-1]
            distance = (sequence - base - 1) & 0xFFFF
            if distance < 16:
                items[-1] = (base, mask | 1 << distance)
                continue
        items.append((sequence & 0xFFFF, 0))
    body = b"".join(struct.pack("!HH", base, mask) for base, mask in items)
    return _rtcp(_TRANSPORT_FEEDBACK, _NACK, _TWO_IDS.pack(sender, media) + body)


def bitrate_cap(sender: int, bitrate_bps: int, media: Sequence[int]) -> bytes:
    """REMB: send no more than this, all of `media` together."""
    exponent = max(0, bitrate_bps.bit_length() - 18)
    mantissa = bitrate_bps >> exponent
    media = media[:255]
    body = b"REMB" + struct.pack(
        "!BBH", len(media), exponent << 2 | mantissa >> 16, mantissa & 0xFFFF
    )
    body += b"".join(struct.pack("!L", ssrc) for ssrc in media)
    return _rtcp(_PAYLOAD_FEEDBACK, _APPLICATION, _TWO_IDS.pack(sender, 0) + body)


def _rtcp(kind: int, count: int, body: bytes) -> bytes:
    return _RTCP_HEADER.pack(0x80 | count, kind, len(body) // 4) + body
