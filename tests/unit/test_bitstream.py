"""Headers of H.264 and H.265 written bit by bit, and what is read from them."""

from __future__ import annotations

import random

import pytest

from liveedge.media.bitstream import H264Watch, Head, HevcWatch, PlainWatch, watch_for

START = b"\x00\x00\x00\x01"


class Bits:
    """Writes the fields of a header."""

    def __init__(self) -> None:
        self._bits = ""

    def u(self, value: int, n_bits: int) -> Bits:
        self._bits += format(value, f"0{n_bits}b") if n_bits else ""
        return self

    def ue(self, *values: int) -> Bits:
        for value in values:
            code = format(value + 1, "b")
            self._bits += "0" * (len(code) - 1) + code
        return self

    def unit(self, head: bytes) -> bytes:
        bits = self._bits + "1"
        bits += "0" * (-len(bits) % 8)
        body = int(bits, 2).to_bytes(len(bits) // 8, "big")
        escaped = bytearray()
        for byte in body:
            if escaped[-2:] == b"\x00\x00" and byte <= 3:
                escaped.append(3)
            escaped.append(byte)
        return head + bytes(escaped)


def sps(*, references: int = 1, gaps: int = 0, frame_num_bits: int = 4, fields: int = 0) -> bytes:
    bits = Bits().u(66, 8).u(0, 16).ue(0, frame_num_bits - 4, 2, references)
    return bits.u(gaps, 1).ue(39, 29).u(1 - fields, 1).unit(b"\x67")


PPS = Bits().ue(0, 0).u(0, 2).unit(b"\x68")


def slice_(frame_num: int, *, idr: bool = False, ref: bool = True, kind: int = 5) -> bytes:
    head = (0x60 if ref else 0) | (5 if idr else 1)
    bits = Bits().ue(0, kind, 0).u(frame_num, 4)
    return bits.u(0, 40).unit(bytes([head]))


def packet(*units: bytes) -> bytes:
    return b"".join(START + unit for unit in units)


def recovery(frames: int) -> bytes:
    message = Bits().ue(frames).u(0b0100, 4).unit(b"")
    return b"\x06" + bytes([6, len(message)]) + message + b"\x80"


def watching(**options: int) -> H264Watch:
    watch = H264Watch(packet(sps(**options), PPS))
    assert watch.look(packet(slice_(0, idr=True, kind=7)), is_keyframe=True).is_key
    return watch


def look(watch: H264Watch, *units: bytes) -> Head:
    return watch.look(packet(*units), is_keyframe=False)


def test_pictures_in_turn_are_complete_and_one_left_out_is_missing() -> None:
    watch = watching()
    assert not look(watch, slice_(1)).is_missing
    assert not look(watch, slice_(2)).is_missing
    assert look(watch, slice_(4)).is_missing
    assert not look(watch, slice_(5)).is_missing  # told once


def test_the_count_wraps() -> None:
    watch = watching()
    assert not any(look(watch, slice_(n % 16)).is_missing for n in range(1, 40))


def test_pictures_that_nobody_refers_to_may_be_missing() -> None:
    watch = watching()
    assert not look(watch, slice_(1, ref=False)).is_missing
    assert not look(watch, slice_(1, ref=False)).is_missing
    assert not look(watch, slice_(1)).is_missing
    assert not look(watch, slice_(2, ref=False)).is_missing
    assert look(watch, slice_(3)).is_missing


def test_where_gaps_are_legal_none_is_told() -> None:
    assert not look(watching(gaps=1), slice_(4)).is_missing


def test_an_idr_picture_is_a_key_whatever_came_before() -> None:
    watch = watching()
    assert look(watch, slice_(0, idr=True, kind=7)) == Head(is_key=True, is_clean=True)
    assert not look(watch, slice_(1)).is_missing


def test_an_intra_picture_is_clean_only_where_it_is_the_one_reference() -> None:
    assert look(watching(references=1), slice_(1, kind=7)).is_clean
    assert not look(watching(references=3), slice_(1, kind=7)).is_clean
    assert not look(watching(references=1), slice_(1, kind=7), slice_(1, kind=5)).is_clean
    assert not look(watching(references=1), slice_(1, kind=7)).is_key


def test_after_a_recovery_point_it_is_clean_when_its_count_is_reached() -> None:
    watch = watching(references=4)
    assert not look(watch, recovery(3), slice_(1)).is_clean
    assert not look(watch, slice_(2)).is_clean
    assert not look(watch, slice_(3)).is_clean
    assert look(watch, slice_(4)).is_clean
    assert not look(watch, slice_(5)).is_clean


def test_a_recovery_that_was_spoilt_ends_nothing() -> None:
    watch = watching(references=4)
    look(watch, recovery(2), slice_(1))
    watch.spoil()
    assert not look(watch, slice_(2)).is_clean
    assert not look(watch, slice_(3)).is_clean
    look(watch, recovery(2), slice_(4))
    assert look(watch, slice_(6)).is_missing  # a gap spoils it too
    assert not look(watch, slice_(6)).is_clean


def test_half_a_picture_and_mere_notes_are_no_frames() -> None:
    watch = H264Watch(packet(sps(fields=1), PPS))
    field = Bits().ue(0, 7, 0).u(0, 4).u(1, 1).u(0, 40).unit(b"\x65")
    assert not look(watch, field).has_frame
    assert not look(watch, sps(), PPS, recovery(0)).has_frame
    assert look(watching(), slice_(1)).has_frame


def test_length_prefixed_units_are_read_by_the_record_beside_them() -> None:
    config = sps()
    record = b"\x01\x42\x00\x1e\xff\xe1" + len(config).to_bytes(2, "big") + config
    record += b"\x01" + len(PPS).to_bytes(2, "big") + PPS
    watch = watch_for("h264", record)
    units = [slice_(0, idr=True, kind=7), slice_(1), slice_(3)]
    heads = [watch.look(len(u).to_bytes(4, "big") + u, is_keyframe=False) for u in units]
    assert [head.is_key for head in heads] == [True, False, False]
    assert [head.is_missing for head in heads] == [False, False, True]


def test_sets_that_differ_from_the_extradata_are_given_back_until_they_come_again() -> None:
    watch = watching()
    assert watch.sets_before() == b""
    other = sps(references=2)
    look(watch, other, PPS, slice_(0, idr=True, kind=7))
    assert watch.sets_before() == b""  # they are in the packet itself
    look(watch, slice_(0, idr=True, kind=7))
    assert watch.sets_before() == packet(other, PPS)  # a decoder drops what builds on the old one


def test_hostile_numbers_of_parameter_sets_fill_no_memory() -> None:
    watch = H264Watch(b"")
    for number in range(2000):
        other = Bits().u(66, 8).u(0, 16).ue(number, 0, 2, 1).u(0, 1).ue(39, 29).u(1, 1)
        look(watch, other.unit(b"\x67"), Bits().ue(number, 0).u(0, 2).unit(b"\x68"))
    assert (len(watch._sps), len(watch._sps_of_pps)) == (256, 256)


def hevc(kind: int, body: bytes = b"\x80\x00\x00\x40") -> bytes:
    return bytes([kind << 1, 1]) + body


@pytest.mark.parametrize(
    ("kind", "is_key"),
    [(1, False), (0, False), (9, False), (16, True), (19, True), (20, True), (21, True)],
)
def test_random_access_points_of_h265_are_keys(kind: int, is_key: bool) -> None:
    head = HevcWatch(b"").look(packet(hevc(kind)), is_keyframe=not is_key)
    assert (head.is_key, head.is_clean, head.has_frame) == (is_key, is_key, True)


def test_h265_recovers_after_the_announced_pictures() -> None:
    watch = HevcWatch(b"")
    message = Bits().ue(3).u(0b00, 2).unit(b"")  # +2, written as a signed number
    sei = bytes([39 << 1, 1, 6, len(message)]) + message
    heads = [watch.look(packet(sei, hevc(1)), is_keyframe=False)]
    heads += [watch.look(packet(hevc(1)), is_keyframe=False) for _ in range(3)]
    assert [head.is_clean for head in heads] == [False, False, True, False]


def test_other_codecs_go_by_what_the_container_says() -> None:
    assert isinstance(watch_for("vp8", b""), PlainWatch)
    watch = watch_for("mjpeg", b"")
    assert watch.look(b"x", is_keyframe=True) == Head(is_key=True, is_clean=True)
    assert watch.look(b"x", is_keyframe=False) == Head()


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_hostile_bytes_raise_nothing(codec: str) -> None:
    chance = random.Random(0)
    good = packet(
        sps(), PPS, slice_(0, idr=True, kind=7), recovery(1), hevc(33), hevc(34), hevc(39)
    )
    for _ in range(3000):
        extradata = chance.randbytes(chance.randrange(60))
        if chance.random() < 0.5:
            extradata = b"\x01" + extradata
        watch = watch_for(codec, extradata)
        data = bytearray(good[: chance.randrange(len(good))])
        for _ in range(chance.randrange(8)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        watch.look(bytes(data), is_keyframe=False)
        watch.look(chance.randbytes(40), is_keyframe=False)
        watch.sets_before()
