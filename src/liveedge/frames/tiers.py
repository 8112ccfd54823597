"""The three tiers of a stream's frames as one state machine: latest, hot ring, history.

Owns    which frames are retained, where their pixels are, and why the others are gone.
Thread  none of its own; every call is made under the store's lock and does a bounded amount of work.
Never   reads a clock, converts or compresses pixels.

The path of a frame: `append` puts it into the hot ring as decoded. The history's thread asks for the
oldest frame that it has not had (`next_to_encode`), makes a piece of it without the lock and hands
that back (`finish_encode`); it goes into the chunk ring while the raw frame stays hot. When the hot
ring is over its bytes, its oldest frame leaves: in the history already, it lives on there; not yet,
it is evicted and counted. So a slow encoder costs old frames, evenly thinned, and never a moment of
publishing. Full, the history gives up its oldest chunk, with every frame in it.

Invariants
1. n_retained + sum(evicted) == n_produced.
2. A retained frame is hot, in the encoder's hands, or in a chunk: its pixels can be loaded.
3. hot_bytes <= the cap, except for the newest frame alone and the one in the encoder's hands.
4. Frames are given to the encoder oldest first, each at most once.
5. A chunk in the ring is whole from its beginning on, even where frames of it are evicted.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from liveedge.frames.chunks import Chunk, ChunkRing, Piece, StoredRun, pack
from liveedge.frames.frame import Frame
from liveedge.frames.history import Arena
from liveedge.frames.index import CORRUPT, ENCODE_FAILED, REPLAY_DIFFERS, FrameIndex, IndexRow

EvictReason: TypeAlias = Literal[
    "retention",  # older than the stream keeps
    "history_full",  # the history's bytes were needed for newer frames
    "index_full",  # more frames than the index has rows
    "encoder_behind",  # left the hot ring before it was compressed
    "encode_failed",  # the codec refused it
    "replay_differs",  # its source's packets did not give it again
    "restart",  # it was only in the memory of a process that ended, or its file is lost
]


@dataclass(frozen=True, slots=True)
class InChunk:
    """Where a frame of the history is."""

    first_index: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFrame:
    """What a journal has to know of a frame in the history, beside its bytes."""

    index: int
    first_index: int  # of its chunk
    position: int  # in it
    offset: int
    stream_time_ms: int
    width: int
    height: int
    corrupt: bool
    exact: bool
    damaged: bool  # of the chunk, up to here


class Journal(Protocol):
    """Notes of the history that outlive the process."""

    def put(self, stored: StoredFrame, data: bytes) -> None:
        """The bytes of a frame are in the arena."""
        ...

    def evict(self, index: int) -> None:
        """The frame is gone; its bytes may still be needed."""
        ...

    def free(self, index: int) -> None:
        """The bytes of the frame are gone too."""
        ...


class FrameTiers:
    """Every retained frame of one stream."""

    def __init__(
        self,
        *,
        hot_bytes: int,
        retention_ms: int,
        max_frames: int,
        arena: Arena,
        journal: Journal | None = None,
    ) -> None:
        self.index = FrameIndex(max_rows=max_frames)
        self.chunks = ChunkRing(arena)
        self.evicted: Counter[EvictReason] = Counter()
        self.n_exact = 0  # frames that came into the history as their source's packets, ever
        self.n_encoded = 0  # as our own encode, ever
        self._journal = journal
        self._hot: deque[Frame] = deque()
        self._hot_bytes = 0
        self._hot_bytes_cap = hot_bytes
        self._retention_ms = retention_ms
        self._encode_from = 0  # lowest index not yet given to the encoder
        self._given_ms = 0  # stream time of the frame given last
        self._encoding: Frame | None = None

    def restore(
        self,
        rows: list[IndexRow],
        chunks: list[Chunk],
        *,
        n_produced: int,
        evicted: Counter[EvictReason],
    ) -> None:
        """Begin with the history of an earlier process; what it held otherwise went with it."""
        self.index.restore(rows, next_index=n_produced)
        self.chunks.restore(chunks)
        self._encode_from = n_produced
        n_gone = n_produced - len(rows)
        if evicted.total() > n_gone:  # a power loss brought some back: their reasons are not known
            evicted = Counter()
        self.evicted = evicted
        if n_gone > evicted.total():
            self.evicted["restart"] += n_gone - evicted.total()
        self._free_dead()

    def skip_to(self, n_produced: int) -> None:
        """Begin at this index: whatever came before is lost, and counted so."""
        while self.index.first_index is not None:
            self._evict_oldest("restart")
        self.evicted["restart"] += n_produced - self.n_produced
        self.index.restore([], next_index=n_produced)
        self._encode_from = n_produced

    @property
    def arena(self) -> Arena:
        return self.chunks.arena

    @property
    def latest(self) -> Frame | None:
        """The newest frame, while it is retained."""
        return self._hot[-1] if self._hot else None

    @property
    def n_produced(self) -> int:
        return self.index.next_index

    @property
    def n_retained(self) -> int:
        return self.index.n_alive

    @property
    def n_hot(self) -> int:
        return len(self._hot)

    @property
    def n_unencoded(self) -> int:
        """Frames the encoder holds or still has to get."""
        if self.arena.capacity_bytes == 0 or not self._hot:
            return 0 if self._encoding is None else 1
        waiting = self.index.next_index - max(self._encode_from, self._hot[0].index)
        return waiting + (self._encoding is not None)

    @property
    def memory_bytes(self) -> int:
        """What the retained frames hold: pixels, raw and compressed."""
        return self.raw_bytes + self.arena.used_bytes

    @property
    def raw_bytes(self) -> int:
        """Frames as decoded: the hot ring and what is in the encoder's hands."""
        frame = self._encoding
        outside = 0 if frame is None or self._is_hot(frame.index) else frame.nbytes
        return self._hot_bytes + outside

    def append(self, frame: Frame) -> None:
        """Take in the newest frame; the oldest make room."""
        self.expire(frame.stream_time_ms)
        if self.index.n_rows == self.index.max_rows:
            self._evict_oldest("index_full")
        self.index.append(frame)
        self._hot.append(frame)
        self._hot_bytes += frame.nbytes
        while self._hot_bytes > self._hot_bytes_cap and len(self._hot) > 1:
            self._cool()

    def expire(self, now_ms: int) -> None:
        """Evict what is older than the retention at this stream time, even the newest."""
        oldest = self.index.first_index
        while (
            oldest is not None and now_ms - self.index.stream_time_ms(oldest) > self._retention_ms
        ):
            self._evict_oldest("retention")
            oldest = self.index.first_index

    @property
    def must_begin(self) -> bool:
        """Whether the next piece has to begin a chunk."""
        return self.chunks.open is None

    def is_due(self, every_ms: int) -> bool:
        """Whether the encoder shall be woken, after a frame came in.

        Not for each one: waking a thread takes longer than putting packets away. Not later than
        when a quarter of the hot ring waits.
        """
        newest, oldest = self._hot[-1], self._hot[0]
        n_waiting = newest.index + 1 - max(self._encode_from, oldest.index)
        is_late = newest.stream_time_ms - self._given_ms >= every_ms
        return is_late or n_waiting > len(self._hot) // 4

    def next_to_encode(self) -> Frame | None:
        """Give the oldest frame that was never given; it counts as retained until it is back."""
        assert self._encoding is None, "one frame at a time"
        if not self._hot or self.arena.capacity_bytes == 0:
            return None
        position = max(self._encode_from - self._hot[0].index, 0)
        if position >= len(self._hot):
            return None
        self._encoding = self._hot[position]
        self._encode_from = self._encoding.index + 1
        self._given_ms = self._encoding.stream_time_ms
        return self._encoding

    def finish_encode(self, piece: Piece | None) -> bool:
        """Take back the frame given last as a piece, or None when the codec refused it.

        False: the chunk that it continues is gone. The frame stays given, for a piece that begins one.
        """
        frame = self._encoding
        assert frame is not None, "nothing was given"
        if self.index.is_alive(frame.index):  # else expired meanwhile, and counted
            if piece is None:
                self.index.set_flag(frame.index, ENCODE_FAILED)
            elif not self._store(frame, piece):
                return False
        elif piece is not None:
            self.chunks.close_open()  # what follows would miss it
        self._encoding = None
        if not self._has_pixels(frame.index):
            self._evict(frame.index, self._why_not_encoded(frame.index))
        return True

    def find(self, index: int) -> Frame | InChunk | None:
        """Where a retained frame is held now; None when it is not retained."""
        if not self.index.is_alive(index):
            return None
        if self._is_hot(index):
            return self._hot[index - self._hot[0].index]
        if self._encoding is not None and self._encoding.index == index:
            return self._encoding
        first = self.index.chunk(index)
        assert first is not None, f"frame {index} is retained without pixels"
        return InChunk(first, *self.index.size_px(index))

    def read(self, index: int, *, until: int) -> StoredRun | None:
        """The chunk of a retained frame up to the frame `until`; None when there is no such chunk."""
        first = self.index.chunk(index) if self.index.is_alive(index) else None
        if first is None:
            return None
        return self.chunks.read(self.chunks.chunk(first), until=until)

    def is_exact(self, index: int) -> bool:
        """Whether the frame's own pixels can be loaded, not only a copy of lesser quality."""
        if not self.index.is_alive(index):
            return False
        encoding = self._encoding
        if self._is_hot(index) or (encoding is not None and encoding.index == index):
            return True
        first = self.index.chunk(index)
        # After a loss a decoder shows what it had before, and the next one had something else.
        is_clean = not self.index.has_flag(index, CORRUPT)
        return first is not None and self.chunks.chunk(first).exact and is_clean

    def drop_chunk_of(self, index: int) -> None:
        """Evict the chunk that holds the frame: its packets do not give its frames."""
        first = self.index.chunk(index) if self.index.is_alive(index) else None
        if first is None:
            return
        chunk = self.chunks.chunk(first)
        if chunk is self.chunks.open:
            self.chunks.close_open()
        for entry in chunk.entries:
            if self.index.is_alive(entry.index):
                self.index.set_flag(entry.index, REPLAY_DIFFERS)  # for those that are hot
                self._forget_place(entry.index, "replay_differs")
            if self._journal is not None:
                self._journal.free(entry.index)
        chunk.n_alive = 0
        self._free_dead()

    def clear(self) -> None:
        """Free everything; what was produced and evicted stays counted, the rest is not."""
        self._hot.clear()
        self._hot_bytes = 0
        self._encoding = None
        self.index.clear()
        self.chunks.clear()

    def _has_pixels(self, index: int) -> bool:
        """Whether the frame is held somewhere, or gone and counted already."""
        if not self.index.is_alive(index) or self._is_hot(index):
            return True
        return self.index.chunk(index) is not None

    def _is_hot(self, index: int) -> bool:
        return bool(self._hot) and index >= self._hot[0].index

    def _cool(self) -> None:
        """The oldest hot frame leaves the ring, and the store unless the history has it."""
        frame = self._pop_oldest_hot()
        if frame is self._encoding or self.index.chunk(frame.index) is not None:
            return
        self._evict(frame.index, self._why_not_encoded(frame.index))

    def _pop_oldest_hot(self) -> Frame:
        frame = self._hot.popleft()
        self._hot_bytes -= frame.nbytes
        return frame

    def _why_not_encoded(self, index: int) -> EvictReason:
        if self.index.has_flag(index, ENCODE_FAILED):
            return "encode_failed"
        if self.index.has_flag(index, REPLAY_DIFFERS):
            return "replay_differs"
        was_given = index < self._encode_from
        no_history = self.arena.capacity_bytes == 0
        return "history_full" if was_given or no_history else "encoder_behind"

    def _store(self, frame: Frame, piece: Piece) -> bool:
        if not piece.is_key and self.chunks.open is None:
            return False
        data = pack(piece, begins=piece.is_key)
        if not self.arena.fits(len(data)):
            self.chunks.close_open()
            return True
        while self.arena.offset_for(len(data)) is None:
            self._drop_oldest_chunk()
        if not piece.is_key and self.chunks.open is None:  # it had to make room for itself
            return False
        chunk = self.chunks.append(frame.index, data, begins=piece.is_key, exact=piece.exact)
        chunk.is_damaged |= frame.corrupt or len(piece.packets) > 1
        self.index.set_chunk(frame.index, chunk.first_index)
        self.n_exact += piece.exact
        self.n_encoded += not piece.exact
        if self._journal is not None:
            self._journal.put(_stored(frame, chunk), data)
        return True

    def _drop_oldest_chunk(self) -> None:
        chunk = self._pop_oldest_chunk()
        for entry in chunk.entries:
            if self.index.is_alive(entry.index):
                self._forget_place(entry.index, "history_full")

    def _forget_place(self, index: int, reason: EvictReason) -> None:
        """The frame is in no chunk any more; unless it is hot, it is gone."""
        self.index.set_chunk(index, None)
        if not self._is_hot(index):
            self._evict(index, reason)

    def _pop_oldest_chunk(self) -> Chunk:
        chunk = self.chunks.pop_oldest()
        if self._journal is not None:
            for entry in chunk.entries:
                self._journal.free(entry.index)
        return chunk

    def _evict_oldest(self, reason: EvictReason) -> None:
        oldest = self.index.first_index
        assert oldest is not None
        if self._is_hot(oldest):
            self._pop_oldest_hot()
        self._evict(oldest, reason)
        self._free_dead()

    def _evict(self, index: int, reason: EvictReason) -> None:
        first = self.index.chunk(index)
        if first is not None:
            self.chunks.chunk(first).n_alive -= 1
            if self._journal is not None:
                self._journal.evict(index)
        self.index.kill(index)
        self.evicted[reason] += 1

    def _free_dead(self) -> None:
        """Free the oldest chunks of which no frame is retained."""
        while (oldest := self.chunks.oldest) is not None and oldest.n_alive == 0:
            self._pop_oldest_chunk()


def _stored(frame: Frame, chunk: Chunk) -> StoredFrame:
    return StoredFrame(
        index=frame.index,
        first_index=chunk.first_index,
        position=len(chunk.entries) - 1,
        offset=chunk.entries[-1].offset,
        stream_time_ms=frame.stream_time_ms,
        width=frame.pixels.width,
        height=frame.pixels.height,
        corrupt=frame.corrupt,
        exact=chunk.exact,
        damaged=chunk.is_damaged,
    )
