"""RTP packets to whole coded pictures: H.264 (RFC 6184) and H.265 (RFC 7798).

A picture is whole with the packet that carries the marker, so that it need not wait for the next
one; for cameras that do not set it, or set it anywhere, where the time stamp changes or a delimiter
stands. Parameter sets alone wait for their picture.

Over TCP nothing is lost on the way, but cameras leave packets out when they are in a hurry. The
sequence numbers tell: the picture says that something before it is missing, and whether part of
itself may be.

Pure. `packet` runs for every packet: no object of its own and no copy but of the whole picture.
Hostile bytes give useless pictures at worst, within `MAX_UNIT_BYTES`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from liveedge.media.webrtc.payload import START_CODE

MAX_UNIT_BYTES = 16 << 20  # a raw 4K picture has 12 MB

_HEADER = struct.Struct("!BBHI")  # flags, marker and type, sequence number, time stamp
_HEADER_BYTES = 12
_PLAIN = 0x80  # version 2; no padding, no extension, no contributors
_HALF = 1 << 31  # of the time stamps
_BEHIND = 1 << 15  # ahead by this much is behind
_FIRST_SLICE = 0x80  # in the byte behind a slice's NAL header, for both codecs
_BEGINS = 0x80  # in the header of a fragment


@dataclass(frozen=True, slots=True)
class AccessUnit:
    """One coded picture with start codes, and what is known of its way."""

    data: bytes
    ticks: int  # of the camera's clock since the first picture; may jump, as cameras do
    has_picture: bool  # False: none of its slices arrived
    after_loss: bool  # packets are missing since the unit before
    has_hole: bool  # part of this picture may be missing


class Assembler(ABC):
    """Packets of one track to pictures; whole ones are put into `ready`. One thread."""

    # By type of NAL unit:
    _LAST_PICTURE: ClassVar[int]
    _KEYS: ClassVar[frozenset[int]]
    _SETS: ClassVar[frozenset[int]]
    _STARTS: ClassVar[frozenset[int]]  # with one of these a picture certainly begins
    _DELIMITER: ClassVar[int]

    def __init__(self, payload_type: int) -> None:
        self.ready: list[AccessUnit] = []
        self._payload_type = payload_type
        self._expected: int | None = None  # sequence number
        self._restart: int | None = None  # the number that would show that counting began anew
        self._stamp: int | None = None
        self._ticks = 0
        self._finished_stamp: int | None = None  # of the newest picture that a marker ended
        self._trusts_marker = True
        self._brings_sets = False  # parameter sets came in the stream, not only in the description
        self._is_after_gap = False  # and nothing has begun since
        # Of the picture under way:
        self._parts: list[bytes | memoryview] = []
        self._n_settled = 0  # of the parts: those that are copies already
        self._n_bytes = 0
        self._is_begun = False  # something of a picture came
        self._has_slice = False  # with its beginning
        self._is_open = False  # a fragmented unit has begun
        self._after_loss = False
        self._has_hole = False

    @property
    def is_holding(self) -> bool:
        """Whether parts still stand where the packets were read."""
        return len(self._parts) > self._n_settled

    def settle(self) -> None:
        """Copy those parts, as their place is needed."""
        if self.is_holding:
            self._parts[self._n_settled :] = [b"".join(self._parts[self._n_settled :])]
            self._n_settled = len(self._parts)

    def packet(self, view: memoryview, at: int, end: int) -> None:
        """Take in the packet in `view[at:end]`."""
        if end - at < _HEADER_BYTES:
            return
        flags, kind, sequence, stamp = _HEADER.unpack_from(view, at)
        if kind & 0x7F != self._payload_type or flags >> 6 != 2:
            return
        if sequence != self._expected and not self._resumes(sequence):
            return
        self._expected = (sequence + 1) & 0xFFFF
        if stamp != self._stamp:
            self._at_stamp(stamp)
        if flags == _PLAIN:
            at += _HEADER_BYTES
        else:
            at, end = _payload_within(view, at, end)
        if at < end:
            self._take(view, at, end)
            self._n_bytes += end - at
            if self._n_bytes > MAX_UNIT_BYTES:
                self._give_up()
        if kind & 0x80 and self._is_begun and self._trusts_marker:
            self._finish()
            self._finished_stamp = stamp

    def flush(self) -> None:
        """Nothing more comes: what is under way is all there will be of it."""
        if self._is_begun:
            self._finish()

    @abstractmethod
    def _take(self, view: memoryview, at: int, end: int) -> None:
        """Take in the payload of a packet; it is not empty."""

    @abstractmethod
    def _unit(self, view: memoryview, at: int, end: int) -> None:
        """Take in a whole NAL unit."""

    # ── for the codecs ──

    def _aggregate(self, view: memoryview, at: int, end: int) -> None:
        """Units with their sizes before them, in one packet."""
        while at + 2 < end:
            size = view[at] << 8 | view[at + 1]
            at += 2
            if not 0 < size <= end - at:
                self._refuse()
                return
            self._unit(view, at, at + size)
            at += size

    def _begin(self, kind: int, second: int) -> None:
        """A unit of this kind begins; `second` is the byte behind its header."""
        self._is_open = False
        is_first = bool(second & _FIRST_SLICE)
        if kind == self._DELIMITER and self._is_begun:
            self._finish()
        elif kind in self._SETS:
            self._brings_sets = True
        if self._is_after_gap:
            # The sets that stand before a key picture may have been lost, and may have been new.
            is_whole = kind in self._STARTS or (
                kind <= self._LAST_PICTURE
                and is_first
                and not (self._brings_sets and kind in self._KEYS)
            )
            self._end_gap(is_whole=is_whole and not self._parts)
        if kind <= self._LAST_PICTURE:
            if not self._is_begun and not is_first:
                self._begin_late()
            self._is_begun = self._has_slice = True

    def _go_on_headless(self, kind: int) -> None:
        """A fragment came whose unit did not begin here: it is left out."""
        if self._is_after_gap:
            self._end_gap(is_whole=False)
        elif not self._is_begun:
            self._begin_late()
        self._has_hole = True
        if kind <= self._LAST_PICTURE:
            self._is_begun = True

    def _refuse(self) -> None:
        """Something came that cannot be read."""
        self._after_loss = self._has_hole = True

    # ── losses ──

    def _resumes(self, sequence: int) -> bool:
        """After another number than expected: whether to go on with this packet."""
        if self._expected is None:
            return True
        if (sequence - self._expected) & 0xFFFF >= _BEHIND and sequence != self._restart:
            # Too late, or sent twice. If the next one follows it, the camera began to count anew.
            self._restart = (sequence + 1) & 0xFFFF
            return False
        self._restart = None
        self._is_after_gap = True
        self._is_open = False
        if self._is_begun or self._parts:
            self._has_hole = True
        return True

    def _end_gap(self, *, is_whole: bool) -> None:
        self._is_after_gap = False
        self._after_loss = True
        if not is_whole:
            self._has_hole = True

    def _begin_late(self) -> None:
        """The first that came of a picture is not its beginning, and no packet is missing."""
        self._has_hole = True
        if (
            self._stamp == self._finished_stamp
        ):  # then it was ended too early: a marker in its middle
            self._trusts_marker = False
            self._after_loss = True

    def _give_up(self) -> None:
        """No picture is that large."""
        self._drop_parts()
        self._is_open = self._has_slice = False
        self._is_begun = True
        self._refuse()

    # ── pictures ──

    def _at_stamp(self, stamp: int) -> None:
        if self._is_begun or (self._is_after_gap and self._parts):  # then its picture was lost
            self._finish()
        if self._stamp is not None:
            self._ticks += ((stamp - self._stamp + _HALF) & 0xFFFF_FFFF) - _HALF
        self._stamp = stamp

    def _finish(self) -> None:
        self.ready.append(
            AccessUnit(
                b"".join(self._parts),
                self._ticks,
                has_picture=self._has_slice,
                after_loss=self._after_loss,
                has_hole=self._has_hole,
            )
        )
        self._drop_parts()
        self._is_begun = self._has_slice = self._is_open = False
        self._after_loss = self._has_hole = False

    def _drop_parts(self) -> None:
        self._parts.clear()
        self._n_settled = self._n_bytes = 0


class H264Assembler(Assembler):
    """Single units, STAP-A and FU-A; the other kinds are not for packets in order."""

    _LAST_PICTURE = 5
    _KEYS = frozenset({5})
    _SETS = frozenset({7, 8})
    _STARTS = frozenset({7, 9})
    _DELIMITER = 9
    _AGGREGATE, _FRAGMENT = 24, 28
    _HEADS = tuple(START_CODE + bytes([head]) for head in range(256))

    def _take(self, view: memoryview, at: int, end: int) -> None:
        head = view[at]
        kind = head & 31
        if kind == self._FRAGMENT:
            self._fragment(head, view, at + 1, end)
        elif 0 < kind < self._AGGREGATE:
            self._unit(view, at, end)
        elif kind == self._AGGREGATE:
            self._aggregate(view, at + 1, end)
        else:
            self._refuse()

    def _fragment(self, head: int, view: memoryview, at: int, end: int) -> None:
        if end - at < 2:
            self._refuse()
            return
        fragment = view[at]
        if fragment & _BEGINS:
            kind = fragment & 31
            self._begin(kind, view[at + 1])
            self._is_open = True
            self._parts.append(self._HEADS[head & 0xE0 | kind])
        elif not self._is_open:
            self._go_on_headless(fragment & 31)
            return
        self._parts.append(view[at + 1 : end])

    def _unit(self, view: memoryview, at: int, end: int) -> None:
        self._begin(view[at] & 31, view[at + 1] if at + 1 < end else 0)
        self._parts.append(START_CODE)
        self._parts.append(view[at:end])


class H265Assembler(Assembler):
    """Single units, AP and FU, in the order of decoding (`sprop-max-don-diff` 0)."""

    _LAST_PICTURE = 31
    _KEYS = frozenset(range(16, 24))
    _SETS = frozenset({32, 33, 34})
    _STARTS = frozenset({32, 35})
    _DELIMITER = 35
    _AGGREGATE, _FRAGMENT = 48, 49

    def _take(self, view: memoryview, at: int, end: int) -> None:
        kind = view[at] >> 1 & 63
        if end - at < 3:
            self._refuse()
        elif kind == self._FRAGMENT:
            self._fragment(view, at, end)
        elif kind < self._AGGREGATE:
            self._unit(view, at, end)
        elif kind == self._AGGREGATE:
            self._aggregate(view, at + 2, end)
        else:
            self._refuse()

    def _fragment(self, view: memoryview, at: int, end: int) -> None:
        if end - at < 4:
            self._refuse()
            return
        fragment = view[at + 2]
        kind = fragment & 63
        if fragment & _BEGINS:
            self._begin(kind, view[at + 3])
            self._is_open = True
            self._parts.append(START_CODE + bytes((view[at] & 0x81 | kind << 1, view[at + 1])))
        elif not self._is_open:
            self._go_on_headless(kind)
            return
        self._parts.append(view[at + 3 : end])

    def _unit(self, view: memoryview, at: int, end: int) -> None:
        self._begin(view[at] >> 1 & 63, view[at + 2] if at + 2 < end else 0)
        self._parts.append(START_CODE)
        self._parts.append(view[at:end])


ASSEMBLERS: dict[str, type[Assembler]] = {"H264": H264Assembler, "H265": H265Assembler}


def _payload_within(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Where the payload of a packet begins and ends; nothing between if it is malformed."""
    flags = view[at]
    start = at + _HEADER_BYTES + 4 * (flags & 0x0F)
    if flags & 0x10:
        if start + 4 > end:
            return end, end
        start += 4 + 4 * (view[start + 2] << 8 | view[start + 3])
    if flags & 0x20:
        end -= view[end - 1]
    return (start, end) if start < end else (end, end)
