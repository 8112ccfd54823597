"""What one RTP packet carries of a coded picture: VP8 (RFC 7741) and H.264 (RFC 6184).

Pure. The pieces of one picture, joined, are what a decoder takes: a VP8 frame, or H.264 with start
codes (Annex B).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Codec: TypeAlias = Literal["vp8", "h264"]

START_CODE = b"\x00\x00\x00\x01"
NAL_SLICE, NAL_IDR, NAL_SPS, NAL_PPS, NAL_DELIMITER = 1, 5, 7, 8, 9
_STAP_A, _FU_A = 24, 28


@dataclass(frozen=True, slots=True)
class Payload:
    """The inside of one packet."""

    data: bytes
    starts: bool  # certainly the first of its picture, whatever was lost before
    may_start: bool  # the first of its picture if nothing was lost before
    picture_id: int | None = None  # VP8: counts pictures
    picture_id_bits: int = 15
    nals: int = 0  # H.264: bit n is set if a NAL unit of type n begins here


def read_payload(codec: Codec, payload: bytes) -> Payload | None:
    """None if it is malformed or of a kind that was not agreed on."""
    return _vp8(payload) if codec == "vp8" else _h264(payload)


def is_key(codec: Codec, data: bytes, nals: int) -> bool:
    """Whether a whole picture needs nothing from before it."""
    if codec == "vp8":
        return bool(data) and not data[0] & 1
    return bool(nals >> NAL_IDR & 1)


def has_parameters(nals: int) -> bool:
    """Whether the H.264 picture brings what its decoder has to know."""
    return bool(nals >> NAL_SPS & 1 and nals >> NAL_PPS & 1)


def parameter_sets(data: bytes) -> bytes:
    """The SPS and PPS of a picture with start codes, in their order."""
    units = data.split(START_CODE)[1:]
    return b"".join(
        START_CODE + unit for unit in units if unit and unit[0] & 0x1F in (NAL_SPS, NAL_PPS)
    )


def _vp8(payload: bytes) -> Payload | None:
    if not payload:
        return None
    first = payload[0]
    at = 1
    picture_id: int | None = None
    bits = 15
    if first & 0x80:
        if len(payload) < 2:
            return None
        extra = payload[1]
        at = 2
        if extra & 0x80:
            if len(payload) < 4:
                return None
            if payload[2] & 0x80:
                picture_id = (payload[2] & 0x7F) << 8 | payload[3]
                at += 2
            else:
                picture_id, bits = payload[2], 7
                at += 1
        at += bool(extra & 0x40) + bool(extra & 0x30)
    data = payload[at:]
    if not data:
        return None
    starts = first & 0x17 == 0x10
    return Payload(data, starts, starts, picture_id, bits)


def _h264(payload: bytes) -> Payload | None:
    if len(payload) < 2:
        return None
    kind = payload[0] & 0x1F
    if 1 <= kind <= 23:
        return Payload(START_CODE + payload, *_beginning(payload), nals=1 << kind)
    if kind == _FU_A:
        return _fragment(payload)
    if kind == _STAP_A:
        units = list(_aggregated(payload))
        if not units or not all(units):
            return None
        nals = 0
        for unit in units:
            nals |= 1 << (unit[0] & 0x1F)
        data = b"".join(START_CODE + unit for unit in units)
        return Payload(data, *_beginning(units[0]), nals=nals)
    return None


def _fragment(payload: bytes) -> Payload | None:
    if len(payload) < 3:
        return None
    kind = payload[1] & 0x1F
    if not payload[1] & 0x80:
        return Payload(payload[2:], starts=False, may_start=False)
    unit = bytes([payload[0] & 0xE0 | kind]) + payload[2:]
    return Payload(START_CODE + unit, *_beginning(unit), nals=1 << kind)


def _aggregated(payload: bytes) -> Iterator[bytes]:
    """The units of a STAP-A; an empty one where it is malformed."""
    at = 1
    while at < len(payload):
        length = int.from_bytes(payload[at : at + 2], "big")
        at += 2
        if not 0 < length <= len(payload) - at:
            yield b""
            return
        yield payload[at : at + length]
        at += length


def _beginning(unit: bytes) -> tuple[bool, bool]:
    """Whether the unit certainly is the first of its picture, and whether it may be.

    A slice is one if its first macroblock is 0. A key picture's slice never is for certain: the
    parameters that stand before it may have been lost, and may have been new ones.
    """
    kind = unit[0] & 0x1F
    if kind in (NAL_SLICE, NAL_IDR):
        is_first_slice = len(unit) > 1 and bool(unit[1] & 0x80)
        return is_first_slice and kind == NAL_SLICE, is_first_slice
    return kind in (NAL_SPS, NAL_DELIMITER), kind > NAL_IDR
