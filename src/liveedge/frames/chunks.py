"""Chunks: runs of frames that decode without anything before them, and the ring that holds them.

A chunk is the source's own packets from a key frame on, or frames that we encoded. Each of its frames
is one entry of the arena, so a frame can be read while its chunk still grows. Bytes go by whole
chunks, the oldest first; a frame that left by its age keeps its bytes while later ones need them.

Thread  the ring has none of its own: callers hold the store's lock. A codec is called from every
        stream's history thread and from many readers at once.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from liveedge.frames.frame import Frame, Pixels, RgbPixels
from liveedge.frames.history import Arena, PictureCodec

_LENGTH = struct.Struct("<I")
PICTURE_FORMAT = b"picture"  # of `PictureHistory`: a chunk is one picture of its codec

Packets: TypeAlias = tuple[bytes, ...]
Replay: TypeAlias = Generator[tuple[int, Pixels], None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One frame as the history is to hold it."""

    format: bytes  # what a decoder has to know; the same within a chunk
    packets: Packets
    is_key: bool  # begins a chunk
    exact: bool  # gives the frame's own pixels again

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.packets))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A chunk from its beginning up to some frame, copied out of the ring."""

    format: bytes
    pieces: tuple[tuple[int, Packets], ...]  # frame index and what it is decoded from
    is_damaged: bool  # the decoder has to behave as the first one did, errors and all


class PieceEncoder(Protocol):
    """Encodes the frames of one stream, in order. One thread."""

    @property
    def encode_s(self) -> float:
        """What a frame costs, lately; 0 before the first."""
        ...

    def encode(self, frame: Frame, *, begin: bool) -> Piece:
        """The frame as a piece, a key piece where asked or needed.

        OSError or ValueError when it cannot.
        """
        ...


class HistoryCodec(Protocol):
    """How frames become pieces and pieces become frames."""

    def keep(self, frame: Frame) -> Piece | None:
        """The frame as its source sent it; None where that is not known. Copies and decodes nothing."""
        ...

    def encoder(self, *, bytes_per_s: float) -> PieceEncoder:
        """An encoder for one stream that stays below this rate where it can."""
        ...

    def replay(self, run: StoredRun) -> Replay:
        """The frames of the run, in order; one that cannot be decoded again is missing."""
        ...

    def replay_s(self, format: bytes, *, n_pixels: int) -> float:
        """About how long a frame of this size takes to decode, on this machine with nothing else to do."""
        ...


class PictureHistory:
    """Every frame a picture by itself: the slow reference of `HistoryCodec`."""

    def __init__(self, codec: PictureCodec) -> None:
        self._codec = codec
        self.encode_s = 0.0

    def keep(self, frame: Frame) -> None:
        return None

    def encoder(self, *, bytes_per_s: float) -> PieceEncoder:
        return self

    def encode(self, frame: Frame, *, begin: bool) -> Piece:
        data = self._codec.encode(frame.pixels.rgb())
        return Piece(format=PICTURE_FORMAT, packets=(data,), is_key=True, exact=False)

    def replay(self, run: StoredRun) -> Replay:
        for index, packets in run.pieces:
            yield index, RgbPixels(self._codec.decode(packets[-1]))

    def replay_s(self, format: bytes, *, n_pixels: int) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a frame's piece is in the arena."""

    index: int
    offset: int
    size: int


@dataclass(slots=True, eq=False)
class Chunk:
    """One chunk of the ring."""

    first_index: int
    exact: bool
    entries: list[Entry] = field(default_factory=list)
    n_alive: int = 0  # frames of it that are retained
    is_damaged: bool = False


class ChunkRing:
    """The chunks of one stream, oldest first, in an arena.

    Invariant  the entries of the arena are those of the chunks, in order.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._chunks: deque[Chunk] = deque()
        self._by_first: dict[int, Chunk] = {}
        self._is_open = False

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Chunk]:
        """Oldest first."""
        return iter(self._chunks)

    @property
    def open(self) -> Chunk | None:
        """The newest chunk, while it can go on."""
        return self._chunks[-1] if self._is_open else None

    @property
    def oldest(self) -> Chunk | None:
        return self._chunks[0] if self._chunks else None

    def chunk(self, first_index: int) -> Chunk:
        return self._by_first[first_index]

    def close_open(self) -> None:
        """The next frame begins a chunk."""
        self._is_open = False

    def append(self, index: int, data: bytes, *, begins: bool, exact: bool) -> Chunk:
        """Add the entry of a frame; room has been made. A beginning opens a new chunk."""
        if begins:
            self._add(Chunk(index, exact))
            self._is_open = True
        chunk = self.open
        assert chunk is not None, f"frame {index} continues nothing"
        offset = self.arena.write(index, data)
        chunk.entries.append(Entry(index, offset, len(data)))
        chunk.n_alive += 1
        return chunk

    def pop_oldest(self) -> Chunk:
        """Free the bytes of the oldest chunk."""
        chunk = self._chunks.popleft()
        del self._by_first[chunk.first_index]
        for entry in chunk.entries:
            popped = self.arena.pop_oldest()
            assert popped == entry.index, (popped, entry.index)
        if not self._chunks:
            self._is_open = False
        return chunk

    def read(self, chunk: Chunk, *, until: int) -> StoredRun:
        """Copy the chunk up to the frame `until`, or to its end."""
        n = bisect_right(chunk.entries, until, key=lambda entry: entry.index)
        format_, pieces = b"", list[tuple[int, Packets]]()
        for entry in chunk.entries[:n]:
            data = self.arena.read((entry.offset, entry.size))
            if not pieces:
                format_, data = split_format(data)
            pieces.append((entry.index, unpack(data)))
        return StoredRun(format=format_, pieces=tuple(pieces), is_damaged=chunk.is_damaged)

    def restore(self, chunks: list[Chunk]) -> None:
        """Take over what was found in the arena, oldest first. Nothing may follow an old chunk."""
        for chunk in chunks:
            self._add(chunk)
        self.arena.restore([(e.index, e.offset, e.size) for c in chunks for e in c.entries])

    def clear(self) -> None:
        self._chunks.clear()
        self._by_first.clear()
        self._is_open = False
        self.arena.close()

    def _add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._by_first[chunk.first_index] = chunk


def pack(piece: Piece, *, begins: bool) -> bytes:
    """The bytes of an entry: the format where a chunk begins, then each packet with its length."""
    parts: list[bytes] = []
    for part in (piece.format, *piece.packets) if begins else piece.packets:
        parts += (_LENGTH.pack(len(part)), part)
    return b"".join(parts)


def unpack(data: bytes) -> Packets:
    """The packets of an entry without its format."""
    packets, at = [], 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        packets.append(data[at : at + size])
        at += size
    return tuple(packets)


def split_format(data: bytes) -> tuple[bytes, bytes]:
    """The format of a chunk's first entry, and the rest."""
    (size,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size + size
    return data[_LENGTH.size : at], data[at:]
