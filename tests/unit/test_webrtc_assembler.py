"""Packets in any order, with holes, doubles and wraps, to whole pictures in order (cases 27, 31)."""

from __future__ import annotations

import itertools
import random

import pytest

from liveedge.media.webrtc.assembler import Assembler, AssemblerLimits, Piece, Unit
from liveedge.media.webrtc.payload import Payload

pytestmark = pytest.mark.unit


def picture(
    n: int, *, at: int, size: int = 4, key: bool = False, numbered: bool = True
) -> list[Piece]:
    """Picture `n` of VP8 in `size` packets from sequence number `at` on."""
    pieces = []
    for i in range(size):
        head = b"\x10" if key else b"\x11"
        data = (head if i == 0 else b"") + f"{n}.{i};".encode()
        payload = Payload(data, i == 0, i == 0, n & 0x7FFF if numbered else None)
        pieces.append(Piece(at + i & 0xFFFF, n * 3000 & 0xFFFFFFFF, i == size - 1, "vp8", payload))
    return pieces


def pictures(
    n_pictures: int, *, at: int = 100, size: int = 4, numbered: bool = True
) -> list[Piece]:
    return [
        piece
        for n in range(n_pictures)
        for piece in picture(n, at=at + n * size, size=size, key=n == 0, numbered=numbered)
    ]


def padding(at: int, *, n: int = 0) -> Piece:
    return Piece(at & 0xFFFF, n * 3000, False, "vp8", None, is_padding=True)


def number(unit: Unit) -> int:
    return int(unit.data[1:].split(b".")[0])


def feed(assembler: Assembler, pieces: list[Piece], *, now_s: float = 0.0) -> list[Unit]:
    return [unit for piece in pieces for unit in assembler.add(piece, now_s)]


def test_a_picture_goes_out_with_its_last_packet() -> None:
    assembler = Assembler()
    pieces = picture(0, at=10, key=True)
    assert feed(assembler, pieces[:-1]) == []
    (unit,) = assembler.add(pieces[-1], 0.0)
    assert unit.data == b"\x100.0;0.1;0.2;0.3;"
    assert unit.is_key
    assert not unit.after_loss
    assert assembler.n_held == 0


@pytest.mark.parametrize("at", [100, 65530, 65535, 0, 32767])
def test_sequence_numbers_wrap(at: int) -> None:
    units = feed(Assembler(), pictures(40, at=at))
    assert [number(unit) for unit in units] == list(range(40))
    assert not any(unit.after_loss for unit in units)


def test_timestamps_wrap_and_jump_without_a_loss() -> None:
    assembler = Assembler()
    pieces = pictures(6)
    for piece, stamp in zip(
        pieces, sorted([2**32 - 6000, 2**32 - 3000, 0, 3000, 9**9, 6000] * 4), strict=True
    ):
        piece.timestamp = stamp
    assert len(feed(assembler, pieces)) == 6


def test_reordered_and_doubled_packets_change_nothing() -> None:
    chance = random.Random(2)
    pieces = pictures(200, at=65000)
    mixed = sorted(
        [*enumerate(pieces), *enumerate(pieces)], key=lambda item: item[0] + chance.random() * 12
    )
    first = mixed.index((0, pieces[0]))
    mixed = [(0, pieces[0]), *(item for i, item in enumerate(mixed) if i != first)]
    assembler = Assembler()
    units = feed(assembler, [piece for _, piece in mixed])
    assert [number(unit) for unit in units] == list(range(200))
    assert not any(unit.after_loss for unit in units)
    assert assembler.counts.duplicates == len(pieces)
    assert not assembler.take_loss()


def test_a_missing_packet_is_asked_for_after_a_moment_and_again_later() -> None:
    assembler = Assembler()
    pieces = pictures(2)
    lost = pieces.pop(5)
    feed(assembler, pieces, now_s=1.0)
    assert assembler.missing(1.001) == []
    assert assembler.missing(1.006) == [lost.sequence]
    assert assembler.missing(1.02) == []
    assert assembler.missing(1.07) == [lost.sequence]
    (unit,) = assembler.add(lost, 1.08)
    assert number(unit) == 1
    assert not unit.after_loss
    assert assembler.counts.recovered == 1
    assert assembler.missing(2.0) == []


def test_what_never_comes_is_given_up_and_the_next_picture_says_so() -> None:
    assembler = Assembler()
    pieces = pictures(4, numbered=False)
    del pieces[6]
    units = feed(assembler, pieces, now_s=1.0)
    assert [number(unit) for unit in units] == [0]
    assert assembler.expire(1.25) == []
    units = assembler.expire(1.31)
    assert [number(unit) for unit in units] == [2, 3]
    assert [unit.after_loss for unit in units] == [True, False]
    assert assembler.take_loss()
    assert not assembler.take_loss()
    assert assembler.counts.pictures_lost == 1
    assert assembler.n_held == 0


def test_without_the_first_packet_nothing_of_a_picture_goes_out() -> None:
    assembler = Assembler()
    units = feed(assembler, [*picture(0, at=10, key=True)[1:], *picture(1, at=14)])
    assert [number(unit) for unit in units] == [1]


def test_a_lost_end_takes_only_its_own_picture() -> None:
    assembler = Assembler()
    pieces = pictures(3)
    del pieces[7]  # the last of picture 1, with the marker
    feed(assembler, pieces, now_s=1.0)
    assert [number(unit) for unit in assembler.expire(2.0)] == [2]


def test_a_hole_of_padding_between_two_pictures_is_stepped_over_at_once() -> None:
    assembler = Assembler()
    first, second = picture(7, at=10, key=True), picture(8, at=20)
    units = feed(assembler, [*first, padding(14, n=7), *second])
    assert [number(unit) for unit in units] == [7, 8]
    assert not any(unit.after_loss for unit in units)
    assert not assembler.is_missing_some
    assert not assembler.take_loss()


def test_a_hole_that_may_hold_a_picture_is_not_stepped_over() -> None:
    assembler = Assembler()
    units = feed(assembler, [*picture(7, at=10, key=True), *picture(9, at=20)])
    assert [number(unit) for unit in units] == [7]


def test_padding_that_comes_changes_nothing() -> None:
    pieces = pictures(3)
    for piece in pieces[4:]:
        piece.sequence += 2
    units = feed(Assembler(), [*pieces[:4], padding(104), padding(105), *pieces[4:]])
    assert [number(unit) for unit in units] == [0, 1, 2]


def test_a_sender_without_markers_ends_pictures_with_the_next_timestamp() -> None:
    pieces = pictures(3)
    for piece in pieces:
        piece.marker = False
    assert [number(unit) for unit in feed(Assembler(), pieces)] == [0, 1]


def test_an_unreadable_packet_takes_its_picture_with_it() -> None:
    assembler = Assembler()
    pieces = pictures(3)
    pieces[5].payload = None
    units = feed(assembler, pieces)
    assert [number(unit) for unit in units] == [0, 2]
    assert units[1].after_loss
    assert assembler.take_loss()


def test_a_large_step_in_the_numbers_is_a_new_beginning() -> None:
    assembler = Assembler()
    units = feed(assembler, [*pictures(2), *picture(2, at=20_000, key=True)])
    assert [number(unit) for unit in units] == [0, 1, 2]
    assert units[-1].after_loss
    assert assembler.missing(9.0) == []


def test_a_sender_that_counts_anew_is_followed() -> None:
    assembler = Assembler()
    feed(assembler, pictures(10, at=30_000))
    again = pictures(12, at=0)
    units = feed(assembler, again)
    assert [number(unit) for unit in units][-1] == 11
    assert len(units) >= 8


def test_late_packets_are_not_a_new_beginning() -> None:
    assembler = Assembler()
    pieces = pictures(300, at=0)
    feed(assembler, pieces)
    for piece in pieces[:10]:
        assert assembler.add(piece, 1.0) == []
    assert [number(unit) for unit in feed(assembler, picture(300, at=1200))] == [300]


def test_what_is_held_is_bounded_in_packets_and_bytes() -> None:
    limits = AssemblerLimits(max_packets=50, max_bytes=5000)
    assembler = Assembler(limits)
    feed(assembler, picture(0, at=0, key=True))
    for n in range(1, 200):  # each with a hole in its middle, for ever
        pieces = picture(n, at=n * 4, numbered=False)
        feed(assembler, [pieces[0], *pieces[2:]])
        assert assembler.n_held <= 51
    assert assembler.take_loss()
    huge = Assembler(limits)
    for i in range(200):
        piece = Piece(i, 5, False, "vp8", Payload(bytes(100), i == 0, i == 0))
        huge.add(piece, 0.0)
        assert huge.n_held <= 51
    assert huge.take_loss()


def test_packets_that_never_come_are_bounded_though_every_one_that_comes_skips_many() -> None:
    assembler = Assembler()
    for n in range(1000):
        assembler.add(picture(n, at=n * 900 & 0xFFFF, size=1, key=True)[0], 0.0)
        assert len(assembler._holes) <= 2000
    assert assembler.counts.given_up > 800_000
    at = 1000 * 900
    feed(assembler, [p for n in range(3) for p in picture(n, at=at + n, size=1, key=True)])
    units = assembler.expire(5.0)
    assert [number(unit) for unit in units][-3:] == [0, 1, 2]
    assert assembler.n_held == 0


def test_after_overflow_the_next_picture_comes_through() -> None:
    assembler = Assembler(AssemblerLimits(max_packets=10))
    feed(assembler, pictures(1, at=0))
    late = picture(2, at=5, size=12)
    feed(assembler, late)  # number 4 is missing
    units = feed(assembler, picture(3, at=17))
    assert [number(unit) for unit in units] == [3]
    assert units[0].after_loss


@pytest.mark.parametrize("seed", range(6))
def test_pictures_come_whole_in_order_and_marked_whatever_the_road_does(seed: int) -> None:
    chance = random.Random(seed)
    pieces = pictures(150, at=65_400, size=3, numbered=seed % 2 == 0)
    originals = dict(enumerate(pieces))
    road = [
        (i + chance.random() * 5, i)
        for i in originals
        if i == 0 or chance.random() > 0.1
        for _ in range(1 + (chance.random() < 0.05))
    ]
    assembler = Assembler()
    units: list[Unit] = []
    for at, i in sorted(road):
        units += assembler.add(originals[i], at / 100)
        units += assembler.expire(at / 100)
        for wanted in assembler.missing(at / 100):
            assert wanted in {piece.sequence for piece in pieces}
    units += assembler.expire(1000.0)
    seen = [number(unit) for unit in units]
    assert seen == sorted(set(seen))
    assert len(seen) > 90
    for before, after in itertools.pairwise(units):
        assert after.after_loss == (number(after) != number(before) + 1)
        assert after.data == b"\x11" + b"".join(f"{number(after)}.{i};".encode() for i in range(3))
