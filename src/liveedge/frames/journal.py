"""The history of one stream in files, so that the end of the process takes nothing of it.

Owns    a folder with two files that are mapped and shared: `frames`, the bytes of the arena, and
        `index`: what the store counts, and a row for every frame whose bytes are in the arena.
Thread  none of its own; callers hold the store's lock.
Never   waits for a disk (the system writes the maps out when it likes), and never believes a file:
        every row and every byte of a frame is checked by sums when an earlier run is taken over.

A process that is killed leaves whole what it had written: bytes first, then the row that names them.
A machine that loses power may leave anything; what does not match its sums is not taken over.

    0      magic, version, capacity, rows, sum
    4096   state, twice, written in turn: sequence, length, sum, JSON
    20480  rows: that of frame i at i modulo the number of rows
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from liveedge.frames.chunks import Chunk, Entry
from liveedge.frames.tiers import StoredFrame

log = logging.getLogger("liveedge.frames")

VERSION = 1
_MAGIC = b"LIVEEDGE"
_HEADER = struct.Struct("<8sIQQ")
_SUM = struct.Struct("<I")
_STATE_HEAD = struct.Struct("<QI")  # sequence and length, before the sum
_STATE_AT = 4096
_STATE_BYTES = 8192
_ROWS_AT = _STATE_AT + 2 * _STATE_BYTES
# index, first, position, size, offset, sum of the bytes, stream time, width, height, flags; then
# the row's own sum, and whether the frame is retained, which may change.
_ROW = struct.Struct("<QQIIQIqIIB")
_ROW_BYTES = 64
_RETAINED_AT = _ROW.size + _SUM.size
_CORRUPT, _EXACT, _DAMAGED = 1, 2, 4
_SPARE_ROWS = 1024  # for frames that are gone while their chunk needs their bytes
_ASIDE = ".unreadable"


class FolderUnreadable(Exception):
    """The files are not ours, or damaged beyond use. Caught by `open_history`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFrame:
    """A frame of an earlier run whose bytes are all there."""

    stored: StoredFrame
    size: int
    is_retained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """What an earlier process left: its counts, and whole chunks, oldest first."""

    state: Mapping[str, Any]
    chunks: tuple[Chunk, ...]
    frames: tuple[StoredFrame, ...]  # the retained ones


def open_history(folder: Path, *, capacity_bytes: int, max_rows: int) -> HistoryFiles:
    """The files of a stream, made where there are none. Files of no use are set aside.

    Files that are there keep the capacity with which they were made: it is `capacity_bytes` of them.

    OSError where there can be none: no room, no permission, or another process has them.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return HistoryFiles(folder, capacity_bytes=capacity_bytes, max_rows=max_rows)
    except FolderUnreadable as error:
        aside = folder.with_name(folder.name + _ASIDE)
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        log.warning(
            "the history of %s cannot be read (%s); it is now %s", folder.name, error, aside
        )
        folder.mkdir(mode=0o700)
        return HistoryFiles(folder, capacity_bytes=capacity_bytes, max_rows=max_rows)


def forget_history(folder: Path) -> None:
    """Delete the files of a stream, and those of it that were set aside."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder.with_name(folder.name + _ASIDE), ignore_errors=True)


class HistoryFiles:
    """The open files of one stream, as the `Journal` of its tiers."""

    def __init__(self, folder: Path, *, capacity_bytes: int, max_rows: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._n_rows = max_rows + _SPARE_ROWS
        self._sequence = 0
        self._header: bytes | None = None  # until there is a state: files without it are new ones
        self._index_file = _opened(folder / "index")
        try:
            fcntl.flock(self._index_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._index, self.frames, self.earlier = self._map(folder)
        except BaseException:
            os.close(self._index_file)
            raise

    # ── while the stream runs ──

    def put(self, stored: StoredFrame, data: bytes) -> None:
        flags = _CORRUPT * stored.corrupt | _EXACT * stored.exact | _DAMAGED * stored.damaged
        row = _ROW.pack(
            stored.index,
            stored.first_index,
            stored.position,
            len(data),
            stored.offset,
            zlib.crc32(data),
            stored.stream_time_ms,
            stored.width,
            stored.height,
            flags,
        )
        at = self._row_at(stored.index)
        row += _SUM.pack(zlib.crc32(row)) + b"\1"
        self._index[at : at + len(row)] = row

    def evict(self, index: int) -> None:
        if self._has_row(index):
            self._index[self._row_at(index) + _RETAINED_AT] = 0

    def free(self, index: int) -> None:
        if self._has_row(index):
            at = self._row_at(index)
            self._index[at : at + _ROW_BYTES] = bytes(_ROW_BYTES)

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Note what the store counts; a state torn by the end of the process is the one before."""
        data = json.dumps(state, separators=(",", ":")).encode()
        assert len(data) <= _STATE_BYTES - _STATE_HEAD.size - _SUM.size, len(data)
        self._sequence += 1
        block = _STATE_HEAD.pack(self._sequence, len(data)) + data
        at = _STATE_AT + self._sequence % 2 * _STATE_BYTES
        block = _SUM.pack(zlib.crc32(block)) + block
        self._index[at : at + len(block)] = block
        if self._header is not None:
            self._index[: len(self._header)] = self._header
            self._header = None

    def close(self) -> None:
        """Let the files go; `frames` is closed by the arena."""
        if not self._index.closed:
            self._index.close()
            os.close(self._index_file)

    def _row_at(self, index: int) -> int:
        return _ROWS_AT + index % self._n_rows * _ROW_BYTES

    def _has_row(self, index: int) -> bool:
        at = self._row_at(index)
        return self._index[at : at + _ROW_BYTES] != _NO_ROW and self._index[
            at : at + 8
        ] == index.to_bytes(8, "little")

    # ── opening ──

    def _map(self, folder: Path) -> tuple[mmap.mmap, mmap.mmap | None, EarlierRun | None]:
        found = os.pread(self._index_file, _HEADER.size + _SUM.size, 0)
        is_new = not found.strip(b"\0")
        if not is_new:
            self.capacity_bytes = _capacity_in(found)
        header = _HEADER.pack(_MAGIC, VERSION, self.capacity_bytes, self._n_rows)
        header += _SUM.pack(zlib.crc32(header))
        index = self._mapped_index(is_same=found == header)
        state, self._sequence = (None, 0) if is_new else _newest_state(index)
        if not is_new and state is None:
            index.close()
            raise FolderUnreadable("no state in it is whole")
        frames, has_frames = self._mapped_frames(folder, is_same=found == header)
        earlier = None
        if state is not None:
            rows = self._found(index, frames, state) if frames is not None and has_frames else []
            earlier = _earlier(state, rows)
            self._say_lost(folder, index, earlier)
        index[_ROWS_AT:] = self._rows_of(() if earlier is None else earlier.chunks, index)
        self._header = header
        return index, frames, earlier

    def _say_lost(self, folder: Path, index: mmap.mmap, earlier: EarlierRun) -> None:
        """Frames that the rows name, and whose bytes are not there or not whole."""
        rows = np.frombuffer(index[_ROWS_AT:], np.uint8).reshape(-1, _ROW_BYTES)
        n_lost = int((rows[:, _RETAINED_AT] == 1).sum()) - len(earlier.frames)
        if n_lost > 0:
            log.warning("%d frames of the history of %s are lost or damaged", n_lost, folder.name)

    def _rows_of(self, chunks: Sequence[Chunk], index: mmap.mmap) -> bytes:
        """Theirs and no others: a row ahead of the state (after a loss of power) would name an older
        picture once its index has been given to a new frame."""
        rows = bytearray(self._n_rows * _ROW_BYTES)
        for entry in (entry for chunk in chunks for entry in chunk.entries):
            at = self._row_at(entry.index)
            rows[at - _ROWS_AT : at - _ROWS_AT + _ROW_BYTES] = index[at : at + _ROW_BYTES]
        return bytes(rows)

    def _mapped_index(self, *, is_same: bool) -> mmap.mmap:
        size = _ROWS_AT + self._n_rows * _ROW_BYTES
        if is_same and os.fstat(self._index_file).st_size != size:
            raise FolderUnreadable("the index was cut")
        os.ftruncate(self._index_file, size)
        return _mapped(self._index_file, size)

    def _mapped_frames(self, folder: Path, *, is_same: bool) -> tuple[mmap.mmap | None, bool]:
        """The map, and whether what stands in it may be used."""
        if self.capacity_bytes == 0:
            return None, False
        file = _opened(folder / "frames")
        has_size = os.fstat(file).st_size == self.capacity_bytes
        try:
            if not has_size:
                os.ftruncate(file, self.capacity_bytes)
            return _mapped(file, self.capacity_bytes), is_same and has_size
        except OSError:
            if not has_size:
                os.ftruncate(file, 0)  # what it got of a full disk helps nobody
            raise
        finally:
            os.close(file)  # the map holds it

    def _found(
        self, index: mmap.mmap, frames: mmap.mmap, state: Mapping[str, Any]
    ) -> list[FoundFrame]:
        """Every row that is whole, with whole bytes, by index."""
        rows = index[_ROWS_AT : _ROWS_AT + self._n_rows * _ROW_BYTES]
        used = np.flatnonzero(np.frombuffer(rows, np.uint8).reshape(-1, _ROW_BYTES).any(axis=1))
        found = []
        with memoryview(frames) as data:
            for slot in used.tolist():
                row = rows[slot * _ROW_BYTES : (slot + 1) * _ROW_BYTES]
                frame = _read_row(row, data)
                if frame is not None and frame.stored.index % self._n_rows == slot:
                    found.append(frame)
        found.sort(key=lambda frame: frame.stored.index)
        return list(_plausible(found, state))


_NO_ROW = bytes(_ROW_BYTES)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _mapped(file: int, size: int) -> mmap.mmap:
    """Blocks are taken now: on a full disk a map without them would end the process."""
    os.posix_fallocate(file, 0, size)
    return mmap.mmap(file, size)


def _capacity_in(found: bytes) -> int:
    """Of the frames that the header was written for."""
    if len(found) < _HEADER.size + _SUM.size:
        raise FolderUnreadable("the index was cut")
    magic, version, capacity_bytes, _ = _HEADER.unpack_from(found)
    (checksum,) = _SUM.unpack_from(found, _HEADER.size)
    if magic != _MAGIC or checksum != zlib.crc32(found[: _HEADER.size]):
        raise FolderUnreadable("it is no index of ours")
    if version != VERSION:
        raise FolderUnreadable(f"it has version {version}, this program reads {VERSION}")
    return int(capacity_bytes)


def _newest_state(index: mmap.mmap) -> tuple[Mapping[str, Any] | None, int]:
    """The newer of the two states that is whole, and its sequence."""
    whole: list[tuple[int, bytes]] = []
    for at in (_STATE_AT, _STATE_AT + _STATE_BYTES):
        block = index[at : at + _STATE_BYTES]
        (checksum,) = _SUM.unpack_from(block)
        sequence, length = _STATE_HEAD.unpack_from(block, _SUM.size)
        end = _SUM.size + _STATE_HEAD.size + length
        if length > 0 and end <= _STATE_BYTES and zlib.crc32(block[_SUM.size : end]) == checksum:
            whole.append((sequence, block[_SUM.size + _STATE_HEAD.size : end]))
    if not whole:
        return None, 0
    sequence, data = max(whole)
    return json.loads(data), sequence


def _read_row(row: bytes, data: memoryview) -> FoundFrame | None:
    (checksum,) = _SUM.unpack_from(row, _ROW.size)
    if checksum != zlib.crc32(row[: _ROW.size]):
        return None
    index, first, position, size, offset, data_sum, time_ms, width, height, flags = (
        _ROW.unpack_from(row)
    )
    if offset + size > len(data) or zlib.crc32(data[offset : offset + size]) != data_sum:
        return None
    stored = StoredFrame(
        index=index,
        first_index=first,
        position=position,
        offset=offset,
        stream_time_ms=time_ms,
        width=width,
        height=height,
        corrupt=bool(flags & _CORRUPT),
        exact=bool(flags & _EXACT),
        damaged=bool(flags & _DAMAGED),
    )
    return FoundFrame(stored=stored, size=size, is_retained=bool(row[_RETAINED_AT]))


def _plausible(found: list[FoundFrame], state: Mapping[str, Any]) -> Iterator[FoundFrame]:
    """Those that the store can have written: not ahead of its counts, in time's order."""
    time_ms = 0
    oldest = state["n_produced"] - state["max_frames"]
    for frame in found:
        stored = frame.stored
        is_known = (
            stored.index < state["n_produced"] and stored.stream_time_ms <= state["newest_ms"]
        )
        if is_known and stored.stream_time_ms >= time_ms and stored.width and stored.height:
            time_ms = stored.stream_time_ms
            is_recent = stored.index >= oldest
            yield frame if is_recent else replace(frame, is_retained=False)


def _earlier(state: Mapping[str, Any], found: list[FoundFrame]) -> EarlierRun:
    chunks = _in_ring_order(_chunks_of(found))
    kept = {entry.index for chunk in chunks for entry in chunk.entries}
    retained = [f.stored for f in found if f.is_retained and f.stored.index in kept]
    return EarlierRun(state=state, chunks=tuple(chunks), frames=tuple(retained))


def _chunks_of(found: list[FoundFrame]) -> list[Chunk]:
    """Chunks from their beginning to the first frame that is missing."""
    chunks: list[Chunk] = []
    for frame in found:
        stored = frame.stored
        if stored.position == 0 and stored.first_index == stored.index:
            chunks.append(Chunk(stored.index, stored.exact))
        elif not chunks or not _continues(chunks[-1], stored):
            continue
        chunk = chunks[-1]
        chunk.entries.append(Entry(stored.index, stored.offset, frame.size))
        chunk.n_alive += frame.is_retained
        chunk.is_damaged |= stored.damaged
    return chunks


def _continues(chunk: Chunk, stored: StoredFrame) -> bool:
    return chunk.first_index == stored.first_index and len(chunk.entries) == stored.position


def _in_ring_order(chunks: list[Chunk]) -> list[Chunk]:
    """The newest chunks that lie in the arena one behind the other, the beginning met once at most."""
    kept: list[Chunk] = []
    newest_end = next_offset = None
    has_wrapped = False
    for chunk in reversed(chunks):
        for entry in reversed(chunk.entries):
            end = entry.offset + entry.size
            if newest_end is None or next_offset is None:
                newest_end = end
            elif end > next_offset:
                if has_wrapped or entry.offset < newest_end:
                    return kept[::-1]
                has_wrapped = True
            elif has_wrapped and entry.offset < newest_end:
                return kept[::-1]
            next_offset = entry.offset
        kept.append(chunk)
    return kept[::-1]
