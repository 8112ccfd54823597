"""The insides of packets: VP8 and H.264 in all the ways of cutting them up."""

from __future__ import annotations

import random
from typing import cast

import pytest
from aiortc.codecs.h264 import H264Encoder
from aiortc.codecs.vpx import VpxPayloadDescriptor

from liveedge.media.webrtc.payload import (
    START_CODE,
    Codec,
    Payload,
    has_parameters,
    is_key,
    parameter_sets,
    read_payload,
)

pytestmark = pytest.mark.unit
SPS, PPS = b"\x67\x42\x00\x1f", b"\x68\xce\x38"
IDR, SLICE, SECOND_SLICE = b"\x65\xb8" + bytes(40), b"\x41\x9a" + bytes(40), b"\x41\x4a" + bytes(9)


def _read(codec: Codec, payload: bytes) -> Payload:
    found = read_payload(codec, payload)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("descriptor", "picture_id", "bits", "starts"),
    [
        (VpxPayloadDescriptor(1, 0), None, 15, True),
        (VpxPayloadDescriptor(1, 0, picture_id=30_000), 30_000, 15, True),
        (VpxPayloadDescriptor(1, 0, 5, tl0picidx=3, tid=(1, 0), keyidx=4), 5, 15, True),
        (VpxPayloadDescriptor(0, 0, picture_id=9), 9, 15, False),
        (VpxPayloadDescriptor(1, 2, picture_id=9), 9, 15, False),
    ],
)
def test_vp8_says_where_pictures_begin_and_which_number_they_have(
    descriptor: VpxPayloadDescriptor, picture_id: int | None, bits: int, starts: bool
) -> None:
    found = _read("vp8", bytes(descriptor) + b"\x10data")
    assert found == Payload(b"\x10data", starts, starts, picture_id, bits)


def test_vp8_numbers_of_seven_bits_are_known_as_such() -> None:
    found = _read("vp8", b"\x90\x80\x11\x00picture")
    assert (found.picture_id, found.picture_id_bits) == (0x11, 7)


def test_vp8_key_pictures_have_a_bit() -> None:
    assert is_key("vp8", b"\x10\x02\x00", 0)
    assert not is_key("vp8", b"\x11\x02\x00", 0)


def test_h264_is_put_together_from_what_a_packetizer_makes_of_it() -> None:
    units = [SPS, PPS, IDR, b"\x41\x9b" + bytes(range(256)) * 20]
    payloads = [_read("h264", p) for p in H264Encoder._packetize(iter(units))]
    assert len(payloads) > 4
    assert b"".join(p.data for p in payloads) == b"".join(START_CODE + unit for unit in units)
    nals = 0
    for payload in payloads:
        nals |= payload.nals
    assert has_parameters(nals)
    assert is_key("h264", b"", nals)
    assert [payload.starts for payload in payloads].count(True) == 2


@pytest.mark.parametrize(
    ("unit", "starts", "may_start"),
    [
        (SPS, True, True),
        (PPS, False, True),
        (IDR, False, True),  # its parameters may have been lost
        (SLICE, True, True),
        (SECOND_SLICE, False, False),
        (b"\x06\x05", False, True),
        (b"\x09\x10", True, True),
    ],
)
def test_h264_pictures_begin_with_parameters_or_the_first_macroblock(
    unit: bytes, starts: bool, may_start: bool
) -> None:
    found = _read("h264", unit)
    assert (found.starts, found.may_start) == (starts, may_start)


def test_parameters_are_found_again_in_a_picture() -> None:
    picture = b"".join(START_CODE + unit for unit in (b"\x09\x10", SPS, PPS, b"\x06\x05\x01", IDR))
    assert parameter_sets(picture) == START_CODE + SPS + START_CODE + PPS


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        ("vp8", b""),
        ("vp8", b"\x90"),
        ("vp8", b"\x90\x80"),
        ("vp8", b"\x10"),
        ("h264", b"\x67"),
        ("h264", b"\x7c\x85"),
        ("h264", b"\x78\x00\x09\x67"),
        ("h264", b"\x78\x00\x00"),
        ("h264", b"\x78\x00"),
        ("h264", b"\x7d\x00\x00\x00"),
        ("h264", b"\x60\x00"),
    ],
)
def test_malformed_payloads_are_none(codec: str, payload: bytes) -> None:
    assert read_payload(cast("Codec", codec), payload) is None


def test_no_bytes_make_it_raise() -> None:
    chance = random.Random(5)
    for _ in range(5000):
        data = chance.randbytes(chance.randrange(1, 30))
        read_payload("vp8", data)
        read_payload("h264", data)
