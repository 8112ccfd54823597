"""Packets in any order to whole coded pictures in order: the jitter buffer.

A picture goes out the moment its last packet is there (the marker bit). What is missing is asked
for again until it has been missing for too long; then everything up to the next beginning of a
picture is given up, and the next picture that goes out is marked `after_loss`.
Padding may take sequence numbers of its own and is never sent again: VP8 numbers its pictures, so a
hole between two pictures that follow each other is known to be padding.

Pure: the caller brings the time. One thread.

Invariants
1. A picture goes out only with all of its packets, and pictures in the order of their packets.
2. If anything between two pictures is missing, the later one is marked.
3. At most `max_packets` packets and `max_bytes` bytes wait behind a hole, and as many belong to the
   picture that is coming in; at most `_MAX_MISSING` are waited for; beyond, all of it is given up.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from liveedge.media.webrtc.payload import Codec, Payload, is_key

_FIRST = 1 << 16  # so that packets before the first one have numbers too
_MAX_STEP = 1000  # a larger step in the numbers is a new beginning
_MAX_MISSING = 2000
_OLD = 200  # further back than this is no late packet
_N_OLD_TO_RESTART = 16  # in a row: the publisher counts anew
_MAX_TRIES = 20
_MAX_ASKED = 64  # packets at a time
_FIRST_RTT_S = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblerLimits:
    """Patience and room."""

    max_packets: int = 4096
    max_bytes: int = 8 << 20
    reorder_s: float = 0.005  # networks swap packets; later than this one counts as lost
    wait_min_s: float = 0.3  # for a packet that was asked for again
    wait_max_s: float = 1.0
    ask_min_s: float = 0.02  # between two requests for the same packet
    ask_max_s: float = 0.25


@dataclass(slots=True)
class Piece:
    """One packet of a picture; without a payload it is padding or unreadable."""

    sequence: int
    timestamp: int
    marker: bool
    codec: Codec
    payload: Payload | None
    is_padding: bool = False
    orientation: int | None = None


@dataclass(slots=True)
class Unit:
    """One whole coded picture."""

    codec: Codec
    data: bytes
    timestamp: int  # of RTP: 90 kHz, 32 bits
    is_key: bool
    nals: int
    after_loss: bool  # something before it is missing
    orientation: int | None = None


@dataclass(slots=True)
class _Hole:
    since_s: float
    asked_s: float | None = None
    tries: int = 0


@dataclass(slots=True, kw_only=True)
class AssemblerCounts:
    """What became of the packets."""

    recovered: int = 0  # came after they had been asked for
    duplicates: int = 0
    given_up: int = 0  # never came
    pictures_lost: int = 0  # of which something had come
    pictures_unreadable: int = 0  # among these: all packets came, and made no sense


@dataclass(slots=True)
class _Collected:
    """The picture that is coming in."""

    pieces: list[Piece] = field(default_factory=list)
    n_bytes: int = 0
    is_broken: bool = False  # a packet of it could not be read


class Assembler:
    """The jitter buffer of one track."""

    def __init__(self, limits: AssemblerLimits | None = None) -> None:
        self.counts = AssemblerCounts()
        self.rtt_s = _FIRST_RTT_S
        self._limits = limits or AssemblerLimits()
        self._pieces: dict[int, Piece] = {}
        self._n_bytes = 0
        self._holes: dict[int, _Hole] = {}
        self._begins: dict[int, int] = {}  # of a picture id: where it is waiting
        self._next: int | None = None  # the first number that has not been looked at
        self._highest = 0
        self._n_old = 0
        self._now = _Collected()
        self._is_in_step = False  # what comes next belongs to a picture from its beginning on
        self._skipping: int | None = None  # timestamp of the picture whose rest is skipped
        self._counted: int | None = None  # timestamp of the picture that counts as lost already
        self._picture_id: int | None = None
        self._after_loss = False
        self._has_lost = False

    @property
    def is_missing_some(self) -> bool:
        return bool(self._holes)

    @property
    def n_held(self) -> int:
        return len(self._pieces) + len(self._now.pieces)

    def take_loss(self) -> bool:
        """Whether something was given up since the last call."""
        lost, self._has_lost = self._has_lost, False
        return lost

    def restart(self) -> None:
        """Another sender takes over: what comes next has nothing to do with what came before."""
        self._give_up_held()
        self._next = None
        self._lose()

    def add(self, piece: Piece, now_s: float) -> list[Unit]:
        """The pictures that this packet completes."""
        number = self._number(piece.sequence)
        if self._next is None:
            self._next = self._highest = number
            self._is_in_step = piece.payload is not None and piece.payload.may_start
        elif number > self._highest:
            step = number - self._highest
            if step > _MAX_STEP or len(self._holes) + step > _MAX_MISSING:
                self._restart(number)
            else:
                for missing in range(self._highest + 1, number):
                    self._holes[missing] = _Hole(now_s)
            self._highest = number
            self._n_old = 0
        elif not self._is_wanted(number, now_s):
            return []
        self._hold(number, piece)
        return self._drain()

    def expire(self, now_s: float) -> list[Unit]:
        """Give up what has been missing for too long; the pictures that this lets go."""
        units: list[Unit] = []
        wait_s = min(max(self._limits.wait_min_s, 4 * self.rtt_s + 0.1), self._limits.wait_max_s)
        while self._next is not None:
            hole = self._holes.get(self._next)
            if hole is None or now_s - hole.since_s < wait_s or not self._pieces:
                break
            self._skip_to(next(n for n in itertools.count(self._next) if n in self._pieces))
            self._lose()
            units += self._drain()
        return units

    def missing(self, now_s: float) -> list[int]:
        """The 16-bit numbers of packets to be asked for now; they count as asked for."""
        again_s = min(max(self._limits.ask_min_s, 1.25 * self.rtt_s), self._limits.ask_max_s)
        wanted = []
        for number, hole in self._holes.items():
            if hole.asked_s is None:
                is_due = now_s - hole.since_s >= self._limits.reorder_s
            else:
                is_due = now_s - hole.asked_s >= again_s and hole.tries < _MAX_TRIES
            if is_due:
                hole.asked_s = now_s
                hole.tries += 1
                wanted.append(number & 0xFFFF)
                if len(wanted) == _MAX_ASKED:
                    break
        return wanted

    # ── numbers ──

    def _number(self, sequence: int) -> int:
        """The place of a 16-bit sequence number in the whole life of the track."""
        if self._next is None:
            return _FIRST + sequence
        step = (sequence - self._highest + 0x8000 & 0xFFFF) - 0x8000
        return self._highest + step

    def _is_wanted(self, number: int, now_s: float) -> bool:
        """Of a packet that is not the newest."""
        hole = self._holes.pop(number, None)
        if hole is not None:
            self._n_old = 0
            if hole.tries:
                self.counts.recovered += 1
            if hole.tries == 1 and hole.asked_s is not None:
                self.rtt_s += (min(now_s - hole.asked_s, 1.0) - self.rtt_s) / 8
            return True
        self.counts.duplicates += 1
        if self._next is not None and number < self._next - _OLD:
            self._n_old += 1
            if self._n_old >= _N_OLD_TO_RESTART:
                self._n_old = 0
                self._restart(number)
                self._highest = number
                return True
        return False

    def _restart(self, number: int) -> None:
        """Nothing that came before goes on here."""
        self._give_up_held()
        self._next = number
        self._lose()

    def _give_up_held(self) -> None:
        lost = {piece.timestamp for piece in self._pieces.values() if not piece.is_padding}
        lost -= {piece.timestamp for piece in self._now.pieces}
        self.counts.pictures_lost += len(lost)
        self.counts.given_up += len(self._holes)
        self._pieces.clear()
        self._begins.clear()
        self._holes.clear()
        self._n_bytes = 0

    # ── holding and letting go ──

    def _hold(self, number: int, piece: Piece) -> None:
        self._pieces[number] = piece
        if piece.payload is None:
            return
        self._n_bytes += len(piece.payload.data)
        if piece.payload.starts and piece.payload.picture_id is not None:
            self._begins[piece.payload.picture_id] = number
        if len(self._pieces) > self._limits.max_packets or self._n_bytes > self._limits.max_bytes:
            self._restart(self._highest + 1)

    def _drain(self) -> list[Unit]:
        """Everything that nothing is missing before."""
        units: list[Unit] = []
        while self._next is not None:
            piece = self._take(self._next)
            if piece is not None:
                self._next += 1
                if not piece.is_padding:
                    self._collect(piece, units)
            elif not self._step_over_padding():
                break
        return units

    def _take(self, number: int) -> Piece | None:
        piece = self._pieces.pop(number, None)
        if piece is not None and piece.payload is not None:
            self._n_bytes -= len(piece.payload.data)
            if self._begins.get(piece.payload.picture_id or 0) == number:
                del self._begins[piece.payload.picture_id or 0]
        return piece

    def _step_over_padding(self) -> bool:
        """Go on behind a hole that cannot have held anything of a picture."""
        if self._picture_id is None or not self._is_in_step or self._now.pieces:
            return False
        number = self._begins.get(self._picture_id)
        if number is None:
            return False
        self._skip_to(number)
        return True

    def _skip_to(self, number: int) -> None:
        assert self._next is not None
        for missing in range(self._next, number):
            if self._holes.pop(missing, None) is not None:
                self.counts.given_up += 1
            self._take(missing)  # padding that waited behind the hole
        self._next = number

    # ── pictures ──

    def _collect(self, piece: Piece, units: list[Unit]) -> None:
        now = self._now
        if now.pieces and now.pieces[0].timestamp != piece.timestamp:
            self._finish(units)  # a sender that sets no markers
            now = self._now
        if not self._is_in_step and not self._falls_in(piece):
            return
        now.pieces.append(piece)
        if piece.payload is None:
            now.is_broken = True
        else:
            now.n_bytes += len(piece.payload.data)
        if now.n_bytes > self._limits.max_bytes or len(now.pieces) > self._limits.max_packets:
            self._lose()
            return
        if piece.marker:
            self._finish(units)

    def _falls_in(self, piece: Piece) -> bool:
        """Whether a picture begins here, after a loss."""
        begins = piece.payload is not None and piece.payload.starts
        if not begins and self._skipping is not None:
            begins = piece.timestamp != self._skipping
        if begins:
            self._is_in_step = True
            self._skipping = None
            return True
        if self._skipping is None and piece.timestamp != self._counted:
            self.counts.pictures_lost += 1
            self.counts.pictures_unreadable += piece.payload is None
        self._skipping = piece.timestamp
        if piece.marker:
            self._is_in_step = True
            self._skipping = None
        return False

    def _finish(self, units: list[Unit]) -> None:
        done, self._now = self._now, _Collected()
        payloads = [piece.payload for piece in done.pieces if piece.payload is not None]
        if done.is_broken or not payloads:
            self.counts.pictures_lost += 1
            self.counts.pictures_unreadable += 1
            self._after_loss = self._has_lost = True
            self._picture_id = None
            return
        first = done.pieces[0]
        data = b"".join(payload.data for payload in payloads)
        nals = 0
        for payload in payloads:
            nals |= payload.nals
        turns = [piece.orientation for piece in done.pieces if piece.orientation is not None]
        units.append(
            Unit(
                first.codec,
                data,
                first.timestamp,
                is_key(first.codec, data, nals),
                nals,
                self._after_loss,
                turns[-1] if turns else None,
            )
        )
        self._after_loss = False
        self._picture_id = _following(payloads[0])

    def _lose(self) -> None:
        """Something is gone for good: go on at the next beginning of a picture."""
        if self._now.pieces:
            self.counts.pictures_lost += 1
            self._counted = self._now.pieces[0].timestamp
        # Another timestamp behind a hole is no beginning: that one may have been in the hole.
        self._skipping = None
        self._now = _Collected()
        self._is_in_step = False
        self._picture_id = None
        self._after_loss = self._has_lost = True


def _following(payload: Payload) -> int | None:
    """The number of the next picture."""
    if payload.picture_id is None:
        return None
    return payload.picture_id + 1 & (1 << payload.picture_id_bits) - 1
