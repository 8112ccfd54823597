"""The frames of one stream, from the newest back to ten minutes ago.

Owns    the tiers, the stream's clock, the encoder thread and everybody who waits for a new frame.
Thread  any. One lock guards all state and is held for microseconds: pixels are converted,
        compressed and decompressed without it. `history-<stream id>` compresses, oldest first.
Never   blocks a publisher, keeps a frame the limits do not allow, or forgets to count one.

Invariants (1 to 4 are those of `tiers`)
5. received == n_retained + sum(evicted) + sum(dropped), where dropped frames never got an index.
6. stream_time_ms == last_frame_at_ms - first_frame_at_ms.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from liveedge.core.clock import Clock
from liveedge.core.errors import FrameEvicted, StreamNotFound
from liveedge.core.tasks import OwnedThread, TaskSet
from liveedge.frames.frame import CodedFrame, Frame, Pixels
from liveedge.frames.history import HistoryCodec, JpegCodec
from liveedge.frames.rate import RateMeter
from liveedge.frames.snapshot import Snapshot
from liveedge.frames.tiers import Compressed, FrameTiers
from liveedge.frames.timeline import Timeline

MAX_GAPS = 100
PREFAULT_PAUSE_S = 0.001  # between steps: the lock is not fair to publishers


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """What one stream may hold. Memory is `reserved_bytes`, whatever its cameras do."""

    hot_bytes: int = 64 * 2**20  # raw frames: 1.8 s of 854x480 RGB at 30 frames a second
    history_bytes: int = 256 * 2**20  # compressed frames; 0: no history
    retention_s: float = 600.0
    max_frames: int = 36_000  # index rows: 600 s at 60 frames a second
    prefault: bool = True  # touch the history's memory while nothing is to be compressed

    def __post_init__(self) -> None:
        for name, lowest in (("hot_bytes", 1), ("history_bytes", 0), ("max_frames", 1)):
            if getattr(self, name) < lowest:
                raise ValueError(f"{name} is {getattr(self, name)}, needs at least {lowest}")
        if not self.retention_s > 0:
            raise ValueError(f"retention_s is {self.retention_s}, needs to be above 0")

    @property
    def reserved_bytes(self) -> int:
        """The most that pixels, raw and compressed, take; one frame of any size comes on top."""
        return self.hot_bytes + self.history_bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without a publisher, on the stream clock: from the last frame to the next."""

    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCounters:
    """Everything that can be counted, read at one instant."""

    received: int
    retained: int
    evicted: int
    evicted_by_reason: Mapping[str, int]
    dropped_by_reason: Mapping[str, int]
    corrupt: int  # of those that got an index
    memory_bytes: int  # what the frames hold
    reserved_bytes: int  # what the stream may come to hold; set aside from the first frame on
    recent_fps: float  # over about 5 s
    stream_time_ms: int  # of the newest frame; 0 before the first
    first_frame_at_ms: int | None
    last_frame_at_ms: int | None
    last_frame_index: int | None
    last_arrived_s: float | None  # monotonic: the watchdog's and freshness' truth
    first_available_frame_at_ms: int | None
    first_available_frame_index: int | None
    width: int | None  # of the newest frame
    height: int | None
    n_unencoded: int  # hot frames the history still waits for
    gaps: tuple[Gap, ...]

    @property
    def dropped(self) -> int:
        return sum(self.dropped_by_reason.values())


class FrameStore:
    """All retained frames of one stream."""

    def __init__(
        self,
        stream_id: str,
        *,
        clock: Clock,
        limits: StoreLimits | None = None,
        codec: HistoryCodec | None = None,
    ) -> None:
        self.stream_id = stream_id
        self.limits = limits or StoreLimits()
        self._clock = clock
        self._codec = codec or JpegCodec()
        self._lock = threading.Lock()
        self._encoder_state = threading.Condition(self._lock)
        self._encoder: OwnedThread | None = None
        self._tiers = FrameTiers(
            hot_bytes=self.limits.hot_bytes,
            history_bytes=self.limits.history_bytes,
            retention_ms=round(self.limits.retention_s * 1000),
            max_frames=self.limits.max_frames,
        )
        self._timeline = Timeline()
        self._rate = RateMeter()
        self._newest: _NewestFrame | None = None
        self._first_at_ms = 0
        self._first_arrived_s = 0.0
        self._received = 0
        self._corrupt = 0
        self._dropped: Counter[str] = Counter()
        self._gap_is_open = False
        self._gaps: deque[Gap] = deque(maxlen=MAX_GAPS)
        self._waiters: set[Callable[[], None]] = set()
        self._final: StoreCounters | None = None  # set once closed

    # ── the publisher's side ──

    def publish(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None = None,
        corrupt: bool = False,
        coded: CodedFrame | None = None,
    ) -> Frame | None:
        """Take in the newest frame; None once the stream has ended. Costs microseconds.

        `source_time_s` is the source's own timestamp from any origin; it refines the spacing.
        `coded` is what the frame was decoded from.
        """
        with self._lock:
            self._received += 1
            if self._final is not None:
                self._dropped["ended"] += 1
                return None
            frame = self._stamped(pixels, source_time_s=source_time_s, corrupt=corrupt, coded=coded)
            self._tiers.append(frame)
            self._ensure_encoder()
            self._encoder_state.notify_all()
            wakes, self._waiters = self._waiters, set()
        for wake in wakes:
            wake()
        return frame

    def count_dropped(self, reason: str, *, n: int = 1) -> None:
        """Count frames that arrived and could not be published, such as undecodable ones."""
        with self._lock:
            self._received += n
            self._dropped[reason] += n

    def mark_gap(self) -> None:
        """The publisher is away: the next frame ends the gap and carries `after_gap`."""
        with self._lock:
            self._timeline.restart_source()
            self._gap_is_open = self._newest is not None

    # ── the readers' side ──

    @property
    def latest(self) -> Frame | None:
        """The newest frame while it is retained."""
        with self._lock:
            return self._tiers.latest

    def load(self, index: int) -> NDArray[np.uint8]:
        """RGB [height, width, 3] of a retained frame; nobody may write to it.

        Exact while the frame is hot, else through the codec. Milliseconds; not for the event loop.
        Raises FrameEvicted, or StreamNotFound once closed.
        """
        with self._lock:
            found, is_over = self._tiers.find(index), self._final is not None
        if is_over:
            raise StreamNotFound(
                f"stream {self.stream_id} has ended, and its frames went with it; create a new one"
            )
        if found is None:
            raise FrameEvicted(
                f"frame {index} of stream {self.stream_id} is not retained; "
                "ask for a newer one, or raise the stream's history limit"
            )
        if isinstance(found, Compressed):
            return self._codec.decode(found.data)
        return found.pixels.rgb()

    def is_exact(self, index: int) -> bool:
        """Whether `load` gives the frame's own pixels; else it gives its compressed copy."""
        with self._lock:
            return self._tiers.is_exact(index)

    def snapshot(self) -> Snapshot:
        """What is retained now. Well under a millisecond for 18,000 frames."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._expire(now_s)
            return self._tiers.index.snapshot(
                stream_id=self.stream_id,
                taken_at_s=now_s,
                first_at_ms=self._first_at_ms,
                newest_ms=self._newest.stream_time_ms if self._newest else 0,
            )

    def counters(self) -> StoreCounters:
        """The counters now; once closed, those of the end, without memory."""
        with self._lock:
            if self._final is not None:
                return replace(
                    self._final, received=self._received, dropped_by_reason=dict(self._dropped)
                )
            now_s = self._clock.monotonic_s()
            self._expire(now_s)
            return self._counted(now_s)

    async def wait_newer(self, than_index: int | None, timeout_s: float) -> Frame | None:
        """The newest frame once it is newer than `than_index` (None: any); None when the time is
        over or the stream has ended."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        loop = asyncio.get_running_loop()
        while True:
            arrived = asyncio.Event()

            def wake(event: asyncio.Event = arrived) -> None:
                _call_soon(loop, event.set)

            frame, is_over = self._newer_or_subscribe(than_index, wake)
            left_s = deadline_s - self._clock.monotonic_s()
            if frame is not None or is_over or left_s <= 0:
                self._unsubscribe(wake)
                return frame
            try:
                await self._first_of(arrived, left_s)
            finally:
                self._unsubscribe(wake)

    def wait_newer_blocking(self, than_index: int | None, timeout_s: float) -> Frame | None:
        """`wait_newer` for a thread."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            arrived = threading.Event()
            frame, is_over = self._newer_or_subscribe(than_index, arrived.set)
            left_s = deadline_s - self._clock.monotonic_s()
            if frame is not None or is_over or left_s <= 0:
                self._unsubscribe(arrived.set)
                return frame
            self._clock.wait(arrived, left_s)
            self._unsubscribe(arrived.set)

    def wait_encoded(self, timeout_s: float) -> bool:
        """Block until the history has caught up (True) or the real time is over (False)."""
        with self._encoder_state:
            return self._encoder_state.wait_for(
                lambda: self._final is not None or self._tiers.n_unencoded == 0, timeout_s
            )

    def wait_prefaulted(self, timeout_s: float) -> bool:
        """Block until the process has its final size (True) or the real time is over (False)."""
        with self._encoder_state:
            arena = self._tiers.arena
            return self._encoder_state.wait_for(
                lambda: self._final is not None or arena.touched_bytes == arena.capacity_bytes,
                timeout_s,
            )

    @property
    def n_waiting(self) -> int:
        """Calls of `wait_newer` in progress."""
        return len(self._waiters)

    def close(self) -> None:
        """End the stream's frames: all memory is freed, waiters return, later frames are dropped."""
        with self._lock:
            if self._final is None:
                now_s = self._clock.monotonic_s()
                self._expire(now_s)
                self._final = replace(
                    self._counted(now_s), memory_bytes=0, reserved_bytes=0, n_unencoded=0
                )
            self._tiers.clear()
            self._encoder_state.notify_all()
            wakes, self._waiters = self._waiters, set()
            encoder = self._encoder
        for wake in wakes:
            wake()
        if encoder is not None:
            encoder.stop()

    # ── under the lock ──

    def _stamped(
        self,
        pixels: Pixels,
        *,
        source_time_s: float | None,
        corrupt: bool,
        coded: CodedFrame | None,
    ) -> Frame:
        arrived_s = self._clock.monotonic_s()
        if self._newest is None:
            self._first_at_ms = self._clock.wall_ms()
            self._first_arrived_s = arrived_s
        time_ms = self._timeline.stamp_ms(arrived_s=arrived_s, source_s=source_time_s)
        frame = Frame(
            index=self._tiers.n_produced,
            stream_time_ms=time_ms,
            captured_at_ms=self._first_at_ms + time_ms,
            arrived_s=arrived_s,
            pixels=pixels,
            corrupt=corrupt,
            after_gap=self._gap_is_open,
            coded=coded,
        )
        self._close_gap(time_ms)
        self._newest = _NewestFrame(time_ms, arrived_s, pixels.width, pixels.height)
        self._corrupt += corrupt
        self._rate.record(arrived_s)
        return frame

    def _close_gap(self, to_ms: int) -> None:
        if self._gap_is_open and self._newest is not None:
            self._gaps.append(Gap(self._newest.stream_time_ms, to_ms))
        self._gap_is_open = False

    def _expire(self, now_s: float) -> None:
        if self._newest is not None:
            self._tiers.expire(int((now_s - self._first_arrived_s) * 1000))

    def _counted(self, now_s: float) -> StoreCounters:
        tiers, newest = self._tiers, self._newest
        newest_ms = newest.stream_time_ms if newest else 0
        oldest = tiers.index.first_index
        oldest_ms = None if oldest is None else tiers.index.stream_time_ms(oldest)
        forgotten_ms = newest_ms - round(self.limits.retention_s * 1000)
        return StoreCounters(
            received=self._received,
            retained=tiers.n_retained,
            evicted=tiers.evicted.total(),
            evicted_by_reason=dict(tiers.evicted.items()),
            dropped_by_reason=dict(self._dropped),
            corrupt=self._corrupt,
            memory_bytes=tiers.memory_bytes,
            reserved_bytes=self.limits.reserved_bytes,
            recent_fps=self._rate.per_second(now_s),
            stream_time_ms=newest_ms,
            first_frame_at_ms=self._first_at_ms if newest else None,
            last_frame_at_ms=self._first_at_ms + newest_ms if newest else None,
            last_frame_index=tiers.n_produced - 1 if newest else None,
            last_arrived_s=newest.arrived_s if newest else None,
            first_available_frame_at_ms=(
                None if oldest_ms is None else self._first_at_ms + oldest_ms
            ),
            first_available_frame_index=oldest,
            width=newest.width if newest else None,
            height=newest.height if newest else None,
            n_unencoded=tiers.n_unencoded,
            gaps=tuple(gap for gap in self._gaps if gap.to_ms >= forgotten_ms),
        )

    # ── the encoder thread ──

    def _ensure_encoder(self) -> None:
        if self._encoder is None and self.limits.history_bytes > 0:
            self._encoder = OwnedThread(f"history-{self.stream_id}", self._encode)
            self._encoder.start()

    def _encode(self, _stopping: threading.Event) -> None:
        while (frame := self._next_to_encode()) is not None:
            data = self._compressed(frame)
            with self._encoder_state:
                if self._final is not None:
                    return
                self._tiers.finish_encode(data)
                self._encoder_state.notify_all()

    def _next_to_encode(self) -> Frame | None:
        """Block for the oldest frame to compress; None once the stream has ended.

        The wait is spent on touching the history's memory, a step at a time: a frame never waits
        for more than one.
        """
        with self._encoder_state:
            while self._final is None:
                frame = self._tiers.next_to_encode()
                if frame is not None:
                    return frame
                self._encoder_state.wait(PREFAULT_PAUSE_S if self._prefault_step() else None)
            return None

    def _prefault_step(self) -> bool:
        """True while more remains."""
        if not self.limits.prefault:
            return False
        has_more = self._tiers.arena.prefault_step()
        if not has_more:
            self._encoder_state.notify_all()
        return has_more

    def _compressed(self, frame: Frame) -> bytes | None:
        try:
            return self._codec.encode(frame.pixels.rgb())
        except (OSError, ValueError):  # a size or layout the codec does not take: counted as such
            return None

    # ── waiting ──

    def _newer_or_subscribe(
        self, than_index: int | None, wake: Callable[[], None]
    ) -> tuple[Frame | None, bool]:
        """The newest frame if it is newer, and whether the stream has ended; else be woken once."""
        with self._lock:
            latest = self._tiers.latest
            if latest is not None and (than_index is None or latest.index > than_index):
                return latest, False
            if self._final is None:
                self._waiters.add(wake)
            return None, self._final is not None

    def _unsubscribe(self, wake: Callable[[], None]) -> None:
        with self._lock:
            self._waiters.discard(wake)

    async def _first_of(self, arrived: asyncio.Event, timeout_s: float) -> None:
        """Wait for the event or for the clock."""
        tasks = TaskSet("wait_newer")
        timer = tasks.start(self._clock.sleep(timeout_s), name="timeout")
        timer.add_done_callback(lambda _: arrived.set())
        try:
            await arrived.wait()
        finally:
            await tasks.close()


@dataclass(frozen=True, slots=True)
class _NewestFrame:
    """What stays known of the newest frame when its pixels are gone."""

    stream_time_ms: int
    arrived_s: float
    width: int
    height: int


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop is closed: nobody waits there any more
        return
