"""The three tiers of a stream's frames as one state machine: latest, hot ring, history.

Owns    which frames are retained, where their pixels are, and why the others are gone.
Thread  none of its own; every call is made under the store's lock and does a bounded amount of work.
Never   reads a clock, converts or compresses pixels.

The path of a frame: `append` puts it into the hot ring as decoded. The encoder asks for the oldest
frame not yet compressed (`next_to_encode`), compresses it without the lock and hands the bytes back
(`finish_encode`); they go into the arena while the raw frame stays hot. When the hot ring is over its
bytes, its oldest frame leaves: compressed already, it lives on in the history; not yet, it is evicted
and counted. So a slow encoder costs old frames, evenly thinned, and never a moment of publishing.

Invariants
1. n_retained + sum(evicted) == n_produced.
2. A retained frame is hot, in the encoder's hands, or in the arena: its pixels can be loaded.
3. hot_bytes <= the cap, except for the newest frame alone and the one in the encoder's hands.
4. Frames are given to the encoder oldest first, each at most once.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

from liveedge.frames.frame import Frame
from liveedge.frames.history import Arena
from liveedge.frames.index import ENCODE_FAILED, FrameIndex

EvictReason: TypeAlias = Literal[
    "retention",  # older than the stream keeps
    "history_full",  # the history's bytes were needed for newer frames
    "index_full",  # more frames than the index has rows
    "encoder_behind",  # left the hot ring before it was compressed
    "encode_failed",  # the codec refused it
]


@dataclass(frozen=True, slots=True)
class Compressed:
    """A frame as the history holds it."""

    data: bytes


class FrameTiers:
    """Every retained frame of one stream."""

    def __init__(
        self, *, hot_bytes: int, history_bytes: int, retention_ms: int, max_frames: int
    ) -> None:
        self.index = FrameIndex(max_rows=max_frames)
        self.arena = Arena(history_bytes)
        self.evicted: Counter[EvictReason] = Counter()
        self._hot: deque[Frame] = deque()
        self._hot_bytes = 0
        self._hot_bytes_cap = hot_bytes
        self._retention_ms = retention_ms
        self._encode_from = 0  # lowest index not yet given to the encoder
        self._encoding: Frame | None = None

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
        """Raw pixels held: the hot ring and what is in the encoder's hands."""
        frame = self._encoding
        outside = 0 if frame is None or self._is_hot(frame.index) else frame.pixels.nbytes
        return self._hot_bytes + outside

    def append(self, frame: Frame) -> None:
        """Take in the newest frame; the oldest make room."""
        self.expire(frame.stream_time_ms)
        if self.index.n_rows == self.index.max_rows:
            self._evict_oldest("index_full")
        self.index.append(frame)
        self._hot.append(frame)
        self._hot_bytes += frame.pixels.nbytes
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
        return self._encoding

    def finish_encode(self, data: bytes | None) -> None:
        """Take back the frame given last, compressed, or None when the codec refused it."""
        frame, self._encoding = self._encoding, None
        assert frame is not None, "nothing was given"
        if not self.index.is_alive(frame.index):
            return  # expired meanwhile, and counted
        if data is None:
            self.index.set_flag(frame.index, ENCODE_FAILED)
        elif self.arena.fits(len(data)):
            self._store(frame.index, data)
        if not self._is_hot(frame.index) and self.index.place(frame.index) is None:
            self._evict(frame.index, self._why_not_encoded(frame.index))

    def find(self, index: int) -> Frame | Compressed | None:
        """A retained frame as it is held now; None when it is not retained."""
        if not self.index.is_alive(index):
            return None
        if self._is_hot(index):
            return self._hot[index - self._hot[0].index]
        if self._encoding is not None and self._encoding.index == index:
            return self._encoding
        place = self.index.place(index)
        assert place is not None, f"frame {index} is retained without pixels"
        return Compressed(self.arena.read(place))

    def is_exact(self, index: int) -> bool:
        """Whether the frame's own pixels are still here, not only a compressed copy."""
        encoding = self._encoding
        return self._is_hot(index) or (encoding is not None and encoding.index == index)

    def clear(self) -> None:
        """Free everything; what was produced and evicted stays counted, the rest is not."""
        self._hot.clear()
        self._hot_bytes = 0
        self._encoding = None
        self.index.clear()
        self.arena.close()

    def _is_hot(self, index: int) -> bool:
        return bool(self._hot) and index >= self._hot[0].index

    def _cool(self) -> None:
        """The oldest hot frame leaves the ring, and the store unless the history has it."""
        frame = self._pop_oldest_hot()
        if frame is self._encoding or self.index.place(frame.index) is not None:
            return
        self._evict(frame.index, self._why_not_encoded(frame.index))

    def _pop_oldest_hot(self) -> Frame:
        frame = self._hot.popleft()
        self._hot_bytes -= frame.pixels.nbytes
        return frame

    def _why_not_encoded(self, index: int) -> EvictReason:
        if self.index.has_flag(index, ENCODE_FAILED):
            return "encode_failed"
        was_given = index < self._encode_from
        no_history = self.arena.capacity_bytes == 0
        return "history_full" if was_given or no_history else "encoder_behind"

    def _store(self, index: int, data: bytes) -> None:
        while self.arena.offset_for(len(data)) is None:
            self._drop_oldest_compressed()
        offset = self.arena.write(index, data)
        self.index.set_place(index, (offset, len(data)))

    def _drop_oldest_compressed(self) -> None:
        oldest = self.arena.pop_oldest()
        self.index.set_place(oldest, None)
        if not self._is_hot(oldest):
            self._evict(oldest, "history_full")

    def _evict_oldest(self, reason: EvictReason) -> None:
        oldest = self.index.first_index
        assert oldest is not None
        if self.arena.oldest == oldest:
            self.arena.pop_oldest()
        if self._is_hot(oldest):
            self._pop_oldest_hot()
        self._evict(oldest, reason)

    def _evict(self, index: int, reason: EvictReason) -> None:
        self.index.kill(index)
        self.evicted[reason] += 1
