"""Packets become the pictures that were sent, at once; what is missing is told with its picture."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from liveedge.media.rtsp_units import (
    ASSEMBLERS,
    MAX_UNIT_BYTES,
    AccessUnit,
    Assembler,
    H264Assembler,
    H265Assembler,
)

START = b"\0\0\0\1"
TYPE = 96
# Units of H.264: sets, a key picture in two slices, others.
SPS, PPS, SEI, DELIMITER = b"\x67sps", b"\x68pps", b"\x06sei", b"\x09\xf0"
IDR, IDR_MORE = b"\x65\x88" + b"i" * 40, b"\x65\x40" + b"j" * 40
PLAIN, PLAIN_MORE = b"\x41\x9a" + b"p" * 40, b"\x41\x40" + b"q" * 40


@dataclass
class Sender:
    """Numbers packets as a camera does."""

    sequence: int = 65_530
    payload_type: int = TYPE

    def packet(self, payload: bytes, *, stamp: int, marker: bool = False) -> bytes:
        head = struct.pack(
            "!BBHII", 0x80, self.payload_type | 0x80 * marker, self.sequence, stamp & 0xFFFF_FFFF, 7
        )
        self.sequence = (self.sequence + 1) & 0xFFFF
        return head + payload

    def picture(
        self, payloads: Sequence[bytes], *, stamp: int, markers: str = "last"
    ) -> list[bytes]:
        """Markers: on the last packet, on "all", or on "none"."""
        return [
            self.packet(
                payload,
                stamp=stamp,
                marker=markers == "all" or (markers == "last" and n == len(payloads) - 1),
            )
            for n, payload in enumerate(payloads)
        ]


def feed(assembler: Assembler, packets: Sequence[bytes]) -> list[AccessUnit]:
    """What became whole with these."""
    for packet in packets:
        assembler.packet(memoryview(packet), 0, len(packet))
    units = list(assembler.ready)
    assembler.ready.clear()
    return units


def fragments(unit: bytes, size: int = 10) -> list[bytes]:
    """FU-A."""
    body = unit[1:]
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    kind, indicator = unit[0] & 31, unit[0] & 0xE0 | 28
    return [
        bytes([indicator, kind | 0x80 * (n == 0) | 0x40 * (n == len(pieces) - 1)]) + piece
        for n, piece in enumerate(pieces)
    ]


def aggregate(units: Sequence[bytes]) -> bytes:
    """STAP-A."""
    return b"\x78" + b"".join(len(unit).to_bytes(2, "big") + unit for unit in units)


def joined(*units: bytes) -> bytes:
    return b"".join(START + unit for unit in units)


def flags(unit: AccessUnit) -> tuple[bool, bool, bool]:
    return unit.has_picture, unit.after_loss, unit.has_hole


WHOLE, BEHIND_GAP, HOLED, NOTHING = (
    (True, False, False),
    (True, True, False),
    (True, True, True),
    (False, True, True),
)


def test_a_picture_is_whole_with_its_marker() -> None:
    sender, assembler = Sender(), H264Assembler(TYPE)
    packets = sender.picture([aggregate([SPS, PPS]), SEI, *fragments(IDR), IDR_MORE], stamp=9)
    assert feed(assembler, packets[:-1]) == []
    (unit,) = feed(assembler, packets[-1:])
    assert unit.data == joined(SPS, PPS, SEI, IDR, IDR_MORE)
    assert (unit.ticks, flags(unit)) == (0, WHOLE)
    (unit,) = feed(assembler, sender.picture(fragments(PLAIN), stamp=3009))
    assert unit.data == joined(PLAIN)
    assert (unit.ticks, flags(unit)) == (3000, WHOLE)


def test_without_markers_a_picture_ends_where_the_time_stamp_changes_or_at_a_delimiter() -> None:
    sender, assembler = Sender(), H264Assembler(TYPE)
    assert feed(assembler, sender.picture([SPS, PPS, IDR], stamp=0, markers="none")) == []
    (first,) = feed(assembler, sender.picture([PLAIN, PLAIN_MORE], stamp=3000, markers="none"))
    assert first.data == joined(SPS, PPS, IDR)
    (second,) = feed(assembler, sender.picture([DELIMITER, PLAIN], stamp=3000, markers="none"))
    assert second.data == joined(PLAIN, PLAIN_MORE)
    assembler.flush()
    (third,) = feed(assembler, [])
    assert third.data == joined(DELIMITER, PLAIN)
    assert {flags(unit) for unit in (first, second, third)} == {WHOLE}


def test_sets_alone_wait_for_their_picture_whatever_their_marker_and_stamp() -> None:
    sender, assembler = Sender(), H264Assembler(TYPE)
    early = [*sender.picture([SPS], stamp=100), *sender.picture([PPS], stamp=200)]
    assert feed(assembler, early) == []
    (unit,) = feed(assembler, sender.picture([IDR], stamp=300))
    assert unit.data == joined(SPS, PPS, IDR)


def test_a_camera_that_marks_every_slice_costs_one_picture_and_is_read_by_its_stamps() -> None:
    sender, assembler = Sender(), H264Assembler(TYPE)
    first = feed(assembler, sender.picture([SPS, PPS, IDR, IDR_MORE], stamp=0, markers="all"))
    assert [unit.data for unit in first] == [joined(SPS, PPS, IDR)]
    rest = feed(assembler, sender.picture([PLAIN, PLAIN_MORE], stamp=3000, markers="all"))
    assert [flags(unit) for unit in rest] == [HOLED]
    for n in range(2, 5):
        (unit,) = feed(
            assembler, sender.picture([PLAIN, PLAIN_MORE], stamp=3000 * n, markers="all")
        )
        assert (unit.data, flags(unit)) == (joined(PLAIN, PLAIN_MORE), WHOLE)


def test_two_fields_of_one_stamp_are_two_units_and_both_are_whole() -> None:
    sender, assembler = Sender(), H264Assembler(TYPE)
    fields = [*sender.picture([IDR], stamp=0), *sender.picture([PLAIN], stamp=0)]
    assert [flags(unit) for unit in feed(assembler, fields)] == [WHOLE, WHOLE]


def test_the_clock_goes_on_over_its_wrap_and_jumps_where_the_camera_jumps() -> None:
    sender, assembler = Sender(), H264Assembler(TYPE)
    stamps = [-6000, -3000, 0, 3000, 3000 - 882_000_000, 6000]
    units = [unit for at in stamps for unit in feed(assembler, sender.picture([PLAIN], stamp=at))]
    assert [unit.ticks for unit in units] == [at + 6000 for at in stamps]


# ── losses ──


def begun() -> tuple[Sender, Assembler]:
    """Where a camera that brings its sets is in the middle of a group."""
    sender, assembler = Sender(), H264Assembler(TYPE)
    assert len(feed(assembler, sender.picture([SPS, PPS, IDR], stamp=0))) == 1
    return sender, assembler


@pytest.mark.parametrize(
    ("lost", "first", "second"),
    [
        pytest.param([0], NOTHING, WHOLE, id="the beginning"),
        pytest.param([2], HOLED, WHOLE, id="the middle"),
        pytest.param([4], HOLED, BEHIND_GAP, id="the end"),
    ],
)
def test_a_picture_with_a_lost_packet_says_so(
    lost: list[int], first: tuple[bool, ...], second: tuple[bool, ...]
) -> None:
    sender, assembler = begun()
    packets = sender.picture(fragments(PLAIN), stamp=3000)
    assert len(packets) == 5
    kept = [packet for n, packet in enumerate(packets) if n not in lost]
    units = feed(assembler, [*kept, *sender.picture([PLAIN], stamp=6000)])
    has_picture, after_loss, has_hole = flags(units[0])
    assert (has_picture, has_hole) == (first[0], True)
    assert after_loss or units[1].after_loss
    assert flags(units[1]) == second
    assert units[1].data == joined(PLAIN)


def test_a_picture_of_which_only_a_note_came_is_told_and_the_next_is_whole() -> None:
    sender, assembler = begun()
    note, _ = sender.picture([SEI, PLAIN], stamp=3000)
    lost, after = feed(assembler, [note, *sender.picture([SPS, PPS, IDR], stamp=6000)])
    assert (lost.has_picture, lost.has_hole) == (False, True)
    assert (after.data, flags(after)) == (joined(SPS, PPS, IDR), BEHIND_GAP)


def test_nothing_of_a_slice_is_used_behind_its_hole() -> None:
    sender, assembler = begun()
    packets = sender.picture(fragments(PLAIN), stamp=3000)
    (unit,) = feed(assembler, packets[:1] + packets[2:])
    assert unit.data == joined(PLAIN[:11])


@pytest.mark.parametrize(
    ("first_units", "expected"),
    [
        pytest.param([DELIMITER, SPS, PPS, IDR], BEHIND_GAP, id="a delimiter"),
        pytest.param([SPS, PPS, IDR], BEHIND_GAP, id="its sets"),
        pytest.param([PLAIN], BEHIND_GAP, id="a plain first slice"),
        pytest.param([PLAIN_MORE], HOLED, id="another slice"),
        pytest.param([PPS, IDR], HOLED, id="half its sets"),
        pytest.param([IDR], HOLED, id="a key slice whose sets may have been lost"),
        pytest.param([SEI, PLAIN], HOLED, id="a note"),
    ],
)
def test_behind_a_gap_a_picture_is_whole_only_if_its_beginning_is_certain(
    first_units: list[bytes], expected: tuple[bool, ...]
) -> None:
    sender, assembler = begun()
    sender.picture([PLAIN], stamp=3000)
    (unit,) = feed(assembler, sender.picture(first_units, stamp=6000))
    assert flags(unit) == expected


def test_a_key_picture_behind_a_gap_is_whole_where_sets_never_come_with_the_stream() -> None:
    sender, assembler = Sender(), H264Assembler(TYPE)
    feed(assembler, sender.picture([IDR], stamp=0))
    sender.picture([PLAIN], stamp=3000)
    (unit,) = feed(assembler, sender.picture([IDR], stamp=6000))
    assert flags(unit) == BEHIND_GAP


def test_a_packet_that_is_repeated_or_late_is_left_out_and_only_the_gap_counts() -> None:
    sender, assembler = begun()
    packets = sender.picture(fragments(PLAIN), stamp=3000)
    (twice,) = feed(assembler, [*packets[:2], packets[1], *packets[2:]])
    assert (twice.data, flags(twice)) == (joined(PLAIN), WHOLE)
    packets = sender.picture(fragments(PLAIN), stamp=6000)
    (late,) = feed(assembler, [packets[0], packets[2], packets[1], *packets[3:]])
    assert (late.data, flags(late)) == (joined(PLAIN[:11]), HOLED)
    (after,) = feed(assembler, sender.picture([PLAIN], stamp=9000))
    assert (after.data, flags(after)) == (joined(PLAIN), WHOLE)


def test_a_camera_that_counts_anew_is_followed_with_its_second_packet() -> None:
    _, assembler = begun()
    sender = Sender(sequence=40_000)
    units = [
        unit
        for n in range(4)
        for unit in feed(assembler, sender.picture([SPS, PPS, IDR], stamp=3000 * n))
    ]
    assert len(units) == 4
    assert units[0].has_hole
    assert [flags(unit) for unit in units[1:]] == [WHOLE] * 3


def test_a_picture_beyond_the_limit_is_given_up_and_the_next_is_whole_again() -> None:
    sender, assembler = begun()
    big = b"\x5c\x01" + b"x" * 60_000  # the middle of an FU-A
    packets = [sender.packet(b"\x5c\x81\x9a", stamp=3000)]
    packets += [sender.packet(big, stamp=3000) for _ in range(MAX_UNIT_BYTES // 60_000 + 5)]
    assert feed(assembler, packets) == []
    given_up, after = feed(assembler, sender.picture([PLAIN], stamp=6000))
    assert (given_up.data, flags(given_up)) == (b"", NOTHING)
    assert (after.data, flags(after)) == (joined(PLAIN), WHOLE)


def test_packets_of_others_are_not_part_of_it() -> None:
    sender, assembler = begun()
    other = Sender(sequence=5, payload_type=97)
    mixed = []
    for packet in sender.picture(fragments(PLAIN), stamp=3000):
        mixed += [packet, *other.picture([b"sound"], stamp=1)]
    (unit,) = feed(assembler, mixed)
    assert (unit.data, flags(unit)) == (joined(PLAIN), WHOLE)


@pytest.mark.parametrize("extras", [0x10, 0x20, 0x0F, 0x3F])
def test_padding_extensions_and_contributors_are_not_part_of_the_picture(extras: int) -> None:
    _, assembler = begun()
    head = struct.pack("!BBHII", 0x80 | extras, TYPE | 0x80, 65_533, 3000, 7)
    contributors = bytes(4 * (extras & 15))
    extension = b"\xbe\xde\0\2" + bytes(8) if extras & 0x10 else b""
    padding = b"\0\0\3" if extras & 0x20 else b""
    (unit,) = feed(assembler, [head + contributors + extension + PLAIN + padding])
    assert (unit.data, flags(unit)) == (joined(PLAIN), WHOLE)


# ── H.265 ──


def h265(kind: int, body: bytes) -> bytes:
    return bytes([kind << 1, 1]) + body


VPS, SPS5, PPS5 = h265(32, b"v"), h265(33, b"s"), h265(34, b"p")
IDR5, IDR5_MORE = h265(19, b"\x80" + b"i" * 40), h265(19, b"\x20" + b"j" * 40)
TRAIL5 = h265(1, b"\x80" + b"t" * 40)


def fragments5(unit: bytes, size: int = 10) -> list[bytes]:
    body, kind = unit[2:], unit[0] >> 1
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return [
        bytes([49 << 1, 1, kind | 0x80 * (n == 0) | 0x40 * (n == len(pieces) - 1)]) + piece
        for n, piece in enumerate(pieces)
    ]


def test_h265_comes_in_single_units_aggregates_and_fragments() -> None:
    sender, assembler = Sender(), H265Assembler(TYPE)
    sets = h265(48, b"".join(len(u).to_bytes(2, "big") + u for u in (VPS, SPS5, PPS5)))
    (key,) = feed(assembler, sender.picture([sets, *fragments5(IDR5), IDR5_MORE], stamp=0))
    assert (key.data, flags(key)) == (joined(VPS, SPS5, PPS5, IDR5, IDR5_MORE), WHOLE)
    (trail,) = feed(assembler, sender.picture(fragments5(TRAIL5), stamp=3000))
    assert (trail.data, flags(trail)) == (joined(TRAIL5), WHOLE)
    sender.picture([TRAIL5], stamp=6000)
    (behind,) = feed(assembler, sender.picture([VPS, SPS5, PPS5, IDR5], stamp=9000))
    assert flags(behind) == BEHIND_GAP
    sender.picture([TRAIL5], stamp=12_000)
    (doubtful,) = feed(assembler, sender.picture([IDR5], stamp=15_000))
    assert flags(doubtful) == HOLED


def test_h265_without_a_fragment_s_beginning_has_no_picture() -> None:
    sender, assembler = Sender(), H265Assembler(TYPE)
    feed(assembler, sender.picture([VPS, SPS5, PPS5, IDR5], stamp=0))
    (unit,) = feed(assembler, sender.picture(fragments5(TRAIL5), stamp=3000)[1:])
    assert flags(unit) == NOTHING


# ── anything ──

payloads = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda head, rest: bytes([head]) + rest, st.sampled_from([0x7C, 0x78, 0x62, 0x60]), st.binary(max_size=40)),
)  # fmt: skip


@given(
    st.sampled_from(sorted(ASSEMBLERS)),
    st.lists(
        st.tuples(
            payloads, st.integers(0, 3), st.booleans(), st.integers(0, 5), st.integers(0, 255)
        ),
        max_size=60,
    ),
)
def test_hostile_packets_do_no_harm_and_their_places_may_be_used_again(
    encoding: str, sent: list[tuple[bytes, int, bool, int, int]]
) -> None:
    lazy, eager = ASSEMBLERS[encoding](TYPE), ASSEMBLERS[encoding](TYPE)
    for n, (payload, stamp, marker, skipped, first) in enumerate(sent):
        head = struct.pack(
            "!BBHII", first, TYPE | 0x80 * marker, (65_500 + n + skipped // 5) & 0xFFFF, stamp, 7
        )
        lazy.packet(memoryview(head + payload), 0, 12 + len(payload))
        place = bytearray(head + payload)
        eager.packet(memoryview(place), 0, len(place))
        eager.settle()
        assert not eager.is_holding
        place[:] = bytes(len(place))
    lazy.flush()
    eager.flush()
    assert eager.ready == lazy.ready


@given(st.lists(st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=5), max_size=10))
def test_every_picture_comes_out_as_it_went_in(bodies: list[list[bytes]]) -> None:
    sender, assembler = Sender(), H264Assembler(TYPE)
    for n, picture in enumerate(bodies):
        units = [
            bytes([0x41, (0x80 if i == 0 else 0x40) | body[0] & 0x3F]) + body[1:]
            for i, body in enumerate(picture)
        ]
        packets = [p for unit in units for p in (fragments(unit) if len(unit) > 20 else [unit])]
        (unit,) = feed(assembler, sender.picture(packets, stamp=3000 * n))
        assert (unit.data, flags(unit)) == (joined(*units), WHOLE)
