"""What the headers of H.264 and H.265 tell without decoding.

Where decoding can begin, from which picture on earlier damage no longer shows, whether a picture
that others refer to is missing, and which parameter sets are in force. Decoders say little of
this: a lost H.264 picture is replaced by the one before it, without a word.

Pure: bytes in, facts out. Hostile bytes give wrong facts at worst, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

_START = b"\x00\x00\x01"
_HEAD_BYTES = 24  # of a picture's first slice: more than its header's fields up to frame_num
_SET_BYTES = 512  # of a parameter set, as far as it is read
_MAX_SETS = (
    64  # different parameter sets of one stream; the standards allow more, nobody sends them
)

_H264_SLICE, _H264_IDR, _H264_SEI, _H264_SPS, _H264_PPS = 1, 5, 6, 7, 8
_HEVC_IRAP = range(16, 24)
_HEVC_VPS, _HEVC_SPS, _HEVC_PPS, _HEVC_PREFIX_SEI = 32, 33, 34, 39
_RECOVERY_POINT = 6  # the number of this SEI message in both standards
_INTRA = (2, 7)  # slice types
_WITH_CHROMA_FORMAT = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})


class _Overrun(Exception):
    """A header ends before its last field. Caught here."""


@dataclass(frozen=True, slots=True)
class Head:
    """What one packet's headers say about its picture."""

    is_key: bool = False  # decoding can begin here: nothing before is needed
    is_clean: bool = False  # damage before this picture shows neither in it nor after it
    is_missing: bool = False  # a picture that this or later ones refer to never came
    is_entry: bool = False  # decoding can begin here, and is clean some pictures later
    has_frame: bool = True  # a whole one: neither half a picture nor only notes


class Watch(Protocol):
    """Follows the packets of one stream, in decoding order."""

    def look(self, packet: bytes, *, is_keyframe: bool) -> Head:
        """Take in the next packet; `is_keyframe` is what its container says."""
        ...

    def spoil(self) -> None:
        """Something was damaged: a recovery that is under way begins anew."""
        ...

    def sets_before(self) -> bytes:
        """Parameter sets that the newest packet needs and that neither it nor the extradata
        holds, laid out as in the packets; empty when there are none."""
        ...


def watch_for(codec: str, extradata: bytes) -> Watch:
    """The watch for a codec by FFmpeg's name; `extradata` as the container gave it."""
    if codec == "h264":
        return H264Watch(extradata)
    if codec == "hevc":
        return HevcWatch(extradata)
    return PlainWatch()


class PlainWatch:
    """For codecs whose key frames are always clean and whose losses do not show in headers."""

    def look(self, packet: bytes, *, is_keyframe: bool) -> Head:
        return Head(is_key=is_keyframe, is_clean=is_keyframe)

    def spoil(self) -> None:
        pass

    def sets_before(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class _Sps:
    max_frame_num_bits: int
    has_colour_planes: bool
    gaps_are_legal: bool
    n_reference_frames: int
    has_fields: bool


@dataclass(frozen=True, slots=True)
class _Slice:
    is_idr: bool
    is_reference: bool
    is_intra: bool
    is_field: bool
    frame_num: int
    sps: _Sps


class _Sets:
    """The parameter sets of a stream: those of its extradata, and what came in its packets."""

    def __init__(self, length_size: int | None) -> None:
        self._length_size = length_size
        self._known: dict[tuple[int, int], bytes] = {}  # from the extradata
        self._now: dict[tuple[int, int], bytes] = {}
        self._in_packet: set[tuple[int, int]] = set()

    def begin_packet(self) -> None:
        self._in_packet.clear()

    def put(self, kind: int, number: int, unit: bytes, *, from_extradata: bool = False) -> None:
        key = (kind, number)
        unit = unit.rstrip(b"\x00")  # of the start code that follows
        if len(self._now) >= _MAX_SETS and key not in self._now:
            return
        self._now[key] = unit
        if from_extradata:
            self._known[key] = unit
        else:
            self._in_packet.add(key)

    def missing(self) -> bytes:
        absent = [key for key in self._now if key not in self._in_packet]
        if all(self._known.get(key) == self._now[key] for key in absent):
            return b""
        # All of them: a decoder that takes a new set forgets those that build on the old one.
        missing = [self._now[key] for key in sorted(absent)]
        size = self._length_size
        if size is None:
            return b"".join(b"\x00" + _START + unit for unit in missing)
        return b"".join(len(unit).to_bytes(size, "big") + unit for unit in missing)


class H264Watch:
    """Follows frame_num, which counts the pictures that others refer to."""

    def __init__(self, extradata: bytes) -> None:
        self._length_size = (extradata[4] & 3) + 1 if _is_config(extradata, 7) else None
        self._sets = _Sets(self._length_size)
        self._sps: dict[int, _Sps] = {}
        self._sps_of_pps: dict[int, int] = {}
        self._newest: int | None = None  # frame_num of the newest reference picture
        self._recovers_at: int | None = None
        for unit in _units_of_avcc(extradata) if self._length_size else _all(extradata):
            self._take_set(unit, from_extradata=True)

    def look(self, packet: bytes, *, is_keyframe: bool) -> Head:
        self._sets.begin_packet()
        slices: list[_Slice] = []
        recovery: int | None = None
        kinds: set[int] = set()
        for start, end in _units(packet, self._length_size):
            kind = packet[start] & 31
            if kind in (_H264_SLICE, _H264_IDR):
                kinds.add(kind)
                found = self._slice(packet[start : start + _HEAD_BYTES])
                if found is not None:
                    slices.append(found)
                    if found.is_idr or not found.is_intra:
                        break  # the rest of the picture adds nothing: most of a packet is not read
            elif kind in (_H264_SPS, _H264_PPS):
                self._take_set(_whole(packet, start, end))
            elif kind == _H264_SEI and recovery is None:
                recovery = _recovery_point(_whole(packet, start + 1, end))
        if not slices:  # no sets yet, or cut short
            is_idr = _H264_IDR in kinds
            return Head(is_key=is_idr, is_clean=is_idr, has_frame=bool(kinds))
        return self._judge(slices, recovery)

    def _judge(self, slices: list[_Slice], recovery: int | None) -> Head:
        first = slices[0]
        is_missing = self._is_missing(first)
        if first.is_reference:
            self._newest = first.frame_num
        if first.is_idr:
            self._recovers_at = None
            return Head(is_key=True, is_clean=True, has_frame=not first.is_field)
        if is_missing:
            self._recovers_at = None
        if recovery is not None and recovery < 1 << first.sps.max_frame_num_bits:
            self._recovers_at = (first.frame_num + recovery) % (1 << first.sps.max_frame_num_bits)
        # With one reference frame, a picture that refers to nothing is all that later ones see.
        is_clean = first.sps.n_reference_frames <= 1 and all(s.is_intra for s in slices)
        if self._recovers_at == first.frame_num:
            self._recovers_at = None
            is_clean = True
        is_missing = is_missing and not is_clean
        return Head(
            is_clean=is_clean,
            is_missing=is_missing,
            is_entry=recovery is not None,
            has_frame=not first.is_field,
        )

    def _is_missing(self, now: _Slice) -> bool:
        before = self._newest
        if before is None or now.is_idr or now.sps.gaps_are_legal:
            return False
        expected = (before + 1) % (1 << now.sps.max_frame_num_bits)
        return now.frame_num not in (before, expected)

    def spoil(self) -> None:
        self._recovers_at = None

    def sets_before(self) -> bytes:
        return self._sets.missing()

    def _take_set(self, unit: bytes, *, from_extradata: bool = False) -> None:
        kind = unit[0] & 31 if unit else 0
        try:
            if kind == _H264_SPS:
                number, sps = _h264_sps(unit)
                self._sps[number] = sps
            elif kind == _H264_PPS:
                bits = _Bits(unit[1:24])
                number = _set_number(bits)
                self._sps_of_pps[number] = bits.ue()
            else:
                return
        except _Overrun:
            return
        self._sets.put(kind, number, unit, from_extradata=from_extradata)

    def _slice(self, unit: bytes) -> _Slice | None:
        bits = _Bits(unit[1:])
        try:
            bits.ue()  # first macroblock
            slice_type = bits.ue()
            sps = self._sps.get(self._sps_of_pps.get(bits.ue(), -1))
            if sps is None:
                return None
            if sps.has_colour_planes:
                bits.u(2)
            frame_num = bits.u(sps.max_frame_num_bits)
            is_field = bool(sps.has_fields and bits.u(1))
        except _Overrun:
            return None
        return _Slice(
            is_idr=unit[0] & 31 == _H264_IDR,
            is_reference=bool(unit[0] & 0x60),
            is_intra=slice_type in _INTRA,
            is_field=is_field,
            frame_num=frame_num,
            sps=sps,
        )


class HevcWatch:
    """Random access points; that a reference is missing is told by the decoder here."""

    def __init__(self, extradata: bytes) -> None:
        is_config = _is_config(extradata, 23)
        self._length_size = (extradata[21] & 3) + 1 if is_config else None
        self._sets = _Sets(self._length_size)
        self._recovers_in: int | None = None  # pictures
        for unit in _units_of_hvcc(extradata) if is_config else _all(extradata):
            self._take_set(unit, from_extradata=True)

    def look(self, packet: bytes, *, is_keyframe: bool) -> Head:
        self._sets.begin_packet()
        is_key = has_frame = False
        recovery: int | None = None
        for start, end in _units(packet, self._length_size):
            kind = packet[start] >> 1 & 63
            if kind < 32:
                has_frame = True
                is_key = kind in _HEVC_IRAP
                break  # all slices of a picture are of one kind
            if kind in (_HEVC_VPS, _HEVC_SPS, _HEVC_PPS):
                self._take_set(_whole(packet, start, end))
            elif kind == _HEVC_PREFIX_SEI and recovery is None:
                recovery = _recovery_point(_whole(packet, start + 2, end), is_signed=True)
        if not has_frame:
            return Head(has_frame=False)
        return Head(is_key=is_key, is_clean=self._is_clean(recovery, is_key=is_key))

    def _is_clean(self, recovery: int | None, *, is_key: bool) -> bool:
        if is_key:
            self._recovers_in = None
            return True
        if recovery is not None:
            self._recovers_in = recovery
        elif self._recovers_in is not None:
            self._recovers_in -= 1
        if self._recovers_in is not None and self._recovers_in <= 0:
            self._recovers_in = None
            return True
        return False

    def spoil(self) -> None:
        self._recovers_in = None

    def sets_before(self) -> bytes:
        return self._sets.missing()

    def _take_set(self, unit: bytes, *, from_extradata: bool = False) -> None:
        kind = unit[0] >> 1 & 63 if len(unit) > 2 else 0
        try:
            if kind == _HEVC_VPS:
                number = unit[2] >> 4
            elif kind == _HEVC_SPS:
                number = _hevc_sps_number(unit)
            elif kind == _HEVC_PPS:
                number = _Bits(unit[2:16]).ue()
            else:
                return
        except _Overrun:
            return
        if number < 256:
            self._sets.put(kind, number, unit, from_extradata=from_extradata)


class _Bits:
    """Reads the fields of a header; the escape bytes are taken out."""

    def __init__(self, data: bytes) -> None:
        plain = data.replace(b"\x00\x00\x03", b"\x00\x00")
        self._left = len(plain) * 8
        self._value = int.from_bytes(plain, "big")

    def u(self, n_bits: int) -> int:
        if n_bits > self._left:
            raise _Overrun
        self._left -= n_bits
        return self._value >> self._left & ((1 << n_bits) - 1)

    def ue(self) -> int:
        rest = self._value & ((1 << self._left) - 1)
        n_zeros = self._left - rest.bit_length()
        if n_zeros > 31:
            raise _Overrun
        return self.u(2 * n_zeros + 1) - 1

    def se(self) -> int:
        code = self.ue()
        return (code + 1) // 2 if code & 1 else -(code // 2)


def _units(data: bytes, length_size: int | None) -> Iterator[tuple[int, int | None]]:
    """Where the NAL units of a packet begin and end, none empty; None: at the next start code."""
    if length_size is None:
        at = data.find(_START)
        while 0 <= at < len(data) - 3:
            yield at + 3, None
            at = data.find(_START, at + 3)
        return
    at = 0
    while at + length_size < len(data):
        size = int.from_bytes(data[at : at + length_size], "big")
        at += length_size
        if size:
            yield at, at + size
        at += size


def _whole(data: bytes, start: int, end: int | None) -> bytes:
    if end is None:
        end = data.find(_START, start)
        end = len(data) if end < 0 else end
    return data[start:end]


def _all(data: bytes) -> Iterator[bytes]:
    """The units behind start codes, none empty."""
    for start, end in _units(data, None):
        unit = _whole(data, start, end)
        if unit:
            yield unit


def _is_config(extradata: bytes, least: int) -> bool:
    """Whether this is the record of an MP4 or FLV rather than start codes."""
    return len(extradata) >= least and extradata[0] == 1


def _units_of_avcc(record: bytes) -> Iterator[bytes]:
    at = 5
    for mask in (31, 255):  # SPS, then PPS
        if at >= len(record):
            return
        count = record[at] & mask
        at += 1
        for _ in range(count):
            size = int.from_bytes(record[at : at + 2], "big")
            if size:
                yield record[at + 2 : at + 2 + size] or b"\x00"
            at += 2 + size


def _units_of_hvcc(record: bytes) -> Iterator[bytes]:
    at = 23
    for _ in range(record[22]):
        count = int.from_bytes(record[at + 1 : at + 3], "big")
        at += 3
        for _ in range(min(count, _MAX_SETS)):
            size = int.from_bytes(record[at : at + 2], "big")
            if size:
                yield record[at + 2 : at + 2 + size] or b"\x00"
            at += 2 + size


def _set_number(bits: _Bits) -> int:
    """Of a parameter set; each is remembered, so that hostile ones must not be numbered for ever."""
    number = bits.ue()
    if number > 255:
        raise _Overrun
    return number


def _h264_sps(unit: bytes) -> tuple[int, _Sps]:
    bits = _Bits(unit[1:_SET_BYTES])
    profile = bits.u(8)
    bits.u(16)  # constraints, level
    number = _set_number(bits)
    has_colour_planes = False
    if profile in _WITH_CHROMA_FORMAT:
        chroma = bits.ue()
        if chroma == 3:
            has_colour_planes = bool(bits.u(1))
        bits.ue()  # bit depths
        bits.ue()
        bits.u(1)
        if bits.u(1):
            _skip_scaling(bits, 12 if chroma == 3 else 8)
    frame_num_bits = bits.ue() + 4
    if frame_num_bits > 16:
        raise _Overrun
    _skip_order_count(bits)
    n_reference_frames = bits.ue()
    gaps_are_legal = bool(bits.u(1))
    bits.ue()  # width, height
    bits.ue()
    has_fields = not bits.u(1)
    return number, _Sps(
        frame_num_bits, has_colour_planes, gaps_are_legal, n_reference_frames, has_fields
    )


def _skip_scaling(bits: _Bits, n_lists: int) -> None:
    for i in range(n_lists):
        if not bits.u(1):
            continue
        last = following = 8
        for _ in range(16 if i < 6 else 64):
            if following:
                following = (last + bits.se()) % 256
            last = following or last


def _skip_order_count(bits: _Bits) -> None:
    kind = bits.ue()
    if kind == 0:
        bits.ue()
    elif kind == 1:
        bits.u(1)
        bits.ue()
        bits.ue()
        for _ in range(min(bits.ue(), 255)):
            bits.ue()


def _hevc_sps_number(unit: bytes) -> int:
    bits = _Bits(unit[2:_SET_BYTES])
    bits.u(4)
    n_sub_layers = bits.u(3)
    bits.u(1 + 96)  # nesting; profile, tier and level
    present = [(bits.u(1), bits.u(1)) for _ in range(n_sub_layers)]
    if n_sub_layers:
        bits.u(2 * (8 - n_sub_layers))
    for has_profile, has_level in present:
        bits.u(88 * has_profile + 8 * has_level)
    return bits.ue()


def _recovery_point(message: bytes, *, is_signed: bool = False) -> int | None:
    """Pictures until the recovery that an SEI unit announces, if it does."""
    plain = message.replace(b"\x00\x00\x03", b"\x00\x00")
    at = 0
    while at + 2 < len(plain):
        kind, at = _long(plain, at)
        size, at = _long(plain, at)
        if kind == _RECOVERY_POINT:
            bits = _Bits(plain[at : at + 8])
            try:
                return max(bits.se(), 0) if is_signed else bits.ue()
            except _Overrun:
                return None
        at += size
    return None


def _long(data: bytes, at: int) -> tuple[int, int]:
    """A number written as a run of 255s and a rest; where it ends."""
    total = 0
    while at < len(data) and data[at] == 255:
        total += 255
        at += 1
    return total + (data[at] if at < len(data) else 0), at + 1
