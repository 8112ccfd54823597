"""The frames of one stream, from the newest back to ten minutes ago.

Owns    the tiers, the stream's clock, the history's thread and everybody who waits for a new frame.
Thread  any. One lock guards all state and is held for microseconds, or for as long as it takes to
        copy a chunk out: pixels are converted, encoded and decoded without it. `history-<stream id>`
        records, oldest first.
Never   blocks a publisher, keeps a frame the limits do not allow, or forgets to count one.

With a folder, the history and the counts are in files (`journal`). A store made on a folder that
holds frames goes on with them: same indices, same clock, a gap. What had only been hot is evicted.
Where the files are lost, a `StoreMark` kept elsewhere sees to it that no index names two pictures.

Invariants (1 to 5 are those of `tiers`)
6. received == n_retained + sum(evicted) + sum(dropped), where dropped frames never got an index.
7. stream_time_ms == last_frame_at_ms - first_frame_at_ms.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from liveedge.core.clock import Clock
from liveedge.core.errors import FrameEvicted, LiveEdgeError, StreamNotFound
from liveedge.core.tasks import OwnedThread, TaskSet
from liveedge.frames.chunks import HistoryCodec, PictureHistory, Piece, StoredRun
from liveedge.frames.frame import CodedFrame, Frame, Pixels
from liveedge.frames.history import Arena, JpegCodec
from liveedge.frames.index import CORRUPT, IndexRow
from liveedge.frames.journal import EarlierRun, HistoryFiles, forget_history, open_history
from liveedge.frames.keeping import Recorder, Run
from liveedge.frames.rate import RateMeter
from liveedge.frames.segment import CursorPool, SegmentReader
from liveedge.frames.snapshot import Snapshot
from liveedge.frames.tiers import FrameTiers, InChunk, StoredFrame
from liveedge.frames.timeline import Timeline

log = logging.getLogger("liveedge.frames")

MAX_GAPS = 100
RECORD_EVERY_MS = 250  # on the stream clock; what comes sooner is recorded together
PREFAULT_PAUSE_S = 0.001  # between steps: the lock is not fair to publishers
INDICES_AHEAD = 10_000  # frames that may come before a mark has to be renewed


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
class StoreMark:
    """How far a stream had got, for somebody who keeps it elsewhere than the frames."""

    n_produced: int
    first_at_ms: int
    newest_ms: int  # on the stream clock
    width: int
    height: int


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
    kept_frames: int  # that came into the history as their source's packets, in this process
    encoded_frames: int  # as our own encode
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
        folder: Path | None = None,
    ) -> None:
        """`folder` is this stream's own, where its history shall outlive the process. One that has a
        history keeps its size, whatever `limits` says.

        Where the folder cannot be used the history is kept in memory, and `failure` says why.
        """
        self.stream_id = stream_id
        limits = limits or StoreLimits()
        self._clock = clock
        self._codec = codec or PictureHistory(JpegCodec())
        self._lock = threading.Lock()
        self._encoder_state = threading.Condition(self._lock)
        self._encoder: OwnedThread | None = None
        self._n_hurried = 0  # who wait for it
        self.failure: str | None = None
        self._files = None if folder is None else self._files_of(folder, limits)
        memory = None
        if self._files is not None:
            memory = self._files.frames
            limits = replace(limits, history_bytes=self._files.capacity_bytes)
        self.limits = limits
        self._tiers = FrameTiers(
            hot_bytes=limits.hot_bytes,
            retention_ms=round(limits.retention_s * 1000),
            max_frames=limits.max_frames,
            arena=Arena(limits.history_bytes, memory=memory),
            journal=self._files,
        )
        self._cursors = CursorPool()
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
        if self._files is not None and self._files.earlier is not None:
            self._go_on(self._files.earlier)
        self._save()

    @staticmethod
    def forget(folder: Path) -> None:
        """Delete what a closed store left in its folder, and the folder."""
        forget_history(folder)

    def go_on_after(self, mark: StoreMark) -> None:
        """Give no index again that was given up to `mark` or INDICES_AHEAD frames after it, and keep
        the clock. Before the first frame; does nothing where the files know as much as the mark."""
        with self._lock:
            is_ours = self._newest is not None and self._first_at_ms == mark.first_at_ms
            if is_ours and self._tiers.n_produced >= mark.n_produced:
                return
            n_unknown = self._tiers.n_retained
            index = max(self._tiers.n_produced, mark.n_produced + INDICES_AHEAD)
            self._received += index - self._tiers.n_produced
            self._tiers.skip_to(index)
            if not is_ours:
                self._gaps.clear()  # of another clock
            self._take_over_clock(mark.first_at_ms, mark.newest_ms, (mark.width, mark.height))
            self._save()
        log.warning(
            "stream %s: its history is lost (at least frames 0 to %d%s); its next frame has index %d",
            self.stream_id,
            mark.n_produced - 1,
            f"; {n_unknown} that were found are older or not its own" if n_unknown else "",
            index,
        )

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
            self._save()
            self._ensure_encoder()
            if self._n_hurried > 0 or self._tiers.is_due(RECORD_EVERY_MS):
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
            self._save()

    def mark_gap(self) -> None:
        """The publisher is away: the next frame ends the gap and carries `after_gap`."""
        with self._lock:
            self._timeline.restart_source()
            self._gap_is_open = self._newest is not None
            self._encoder_state.notify_all()  # nothing more comes to wait for

    # ── the readers' side ──

    @property
    def latest(self) -> Frame | None:
        """The newest frame while it is retained."""
        with self._lock:
            return self._tiers.latest

    def load(self, index: int) -> NDArray[np.uint8]:
        """RGB [height, width, 3] of a retained frame; nobody may write to it.

        Exact while the frame is hot, or where its source's packets are kept. Milliseconds, or as
        long as it takes to decode up to the frame; not for the event loop.
        Raises FrameEvicted, or StreamNotFound once closed.
        """
        return self.segment((index,)).load(index)

    def segment(self, indices: Sequence[int]) -> SegmentReader:
        """A reader for these frames, an index as often as it will be asked for. Costs nothing."""
        return SegmentReader(indices, places=self, codec=self._codec, pool=self._cursors)

    def locate(self, index: int) -> Frame | InChunk:
        """For readers: a hot frame itself, else where it is. Raises as `load` does."""
        with self._lock:
            found = self._tiers.find(index)
            if found is None:
                raise self._missing(index)
            return found

    def read_chunk(self, index: int, *, until: int) -> StoredRun:
        """For readers: what the frame is decoded from, up to the frame `until` where it is there."""
        with self._lock:
            run = self._tiers.read(index, until=until)
            if run is None:
                raise self._missing(index)
            return run

    def undecodable(self, index: int) -> FrameEvicted:
        """For readers: what to raise for a frame whose bytes do not give it."""
        return FrameEvicted(
            f"frame {index} of stream {self.stream_id} could not be decoded again; "
            "ask for a newer one"
        )

    def is_exact(self, index: int) -> bool:
        """Whether `load` gives the frame's own pixels; else it gives a copy of bounded quality."""
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

    def mark(self) -> StoreMark | None:
        """What `go_on_after` needs; None before the first frame."""
        with self._lock:
            newest = self._newest
            if newest is None:
                return None
            return StoreMark(
                n_produced=self._tiers.n_produced,
                first_at_ms=self._first_at_ms,
                newest_ms=newest.stream_time_ms,
                width=newest.width,
                height=newest.height,
            )

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
            self._n_hurried += 1
            self._encoder_state.notify_all()
            try:
                return self._encoder_state.wait_for(
                    lambda: self._final is not None or self._tiers.n_unencoded == 0, timeout_s
                )
            finally:
                self._n_hurried -= 1

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
        """End the stream's frames: all memory is freed, waiters return, later frames are dropped.

        Files stay, for a store that goes on with them or for `forget`.
        """
        with self._lock:
            if self._final is None:
                now_s = self._clock.monotonic_s()
                self._expire(now_s)
                self._save()
                self._final = replace(
                    self._counted(now_s), memory_bytes=0, reserved_bytes=0, n_unencoded=0
                )
            self._close_files()
            self._tiers.clear()
            self._encoder_state.notify_all()
            wakes, self._waiters = self._waiters, set()
            encoder = self._encoder
        for wake in wakes:
            wake()
        if encoder is not None:
            encoder.stop()

    # ── under the lock ──

    def _missing(self, index: int) -> LiveEdgeError:
        if self._final is not None:
            return StreamNotFound(
                f"stream {self.stream_id} has ended, and its frames went with it; create a new one"
            )
        return FrameEvicted(
            f"frame {index} of stream {self.stream_id} is not retained; "
            "ask for a newer one, or raise the stream's history limit"
        )

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
            kept_frames=tiers.n_exact,
            encoded_frames=tiers.n_encoded,
            gaps=tuple(gap for gap in self._gaps if gap.to_ms >= forgotten_ms),
        )

    # ── an earlier process ──

    def _save(self) -> None:
        """Note what would not be known after a kill: the counts, the clock, the gaps."""
        newest = self._newest
        if self._files is None or self._final is not None:
            return
        self._files.save_state(
            {
                "max_frames": self.limits.max_frames,
                "n_produced": self._tiers.n_produced,
                "first_at_ms": self._first_at_ms,
                "newest_ms": newest.stream_time_ms if newest else 0,
                "size_px": [newest.width, newest.height] if newest else [0, 0],
                "received": self._received,
                "corrupt": self._corrupt,
                "dropped": self._dropped,
                "evicted": self._tiers.evicted,
                "gaps": [(gap.from_ms, gap.to_ms) for gap in self._gaps],
            }
        )

    def _go_on(self, earlier: EarlierRun) -> None:
        """Take over the history, the counts and the clock of an earlier process."""
        state = earlier.state
        self._received, self._corrupt = state["received"], state["corrupt"]
        self._dropped.update(state["dropped"])
        if state["n_produced"] == 0:
            return
        self._gaps.extend(Gap(*gap) for gap in state["gaps"])
        width, height = state["size_px"]
        self._take_over_clock(state["first_at_ms"], state["newest_ms"], (width, height))
        self._tiers.restore(
            [self._row_of(frame) for frame in earlier.frames],
            list(earlier.chunks),
            n_produced=state["n_produced"],
            evicted=Counter(state["evicted"]),
        )

    def _take_over_clock(self, first_at_ms: int, newest_ms: int, size_px: tuple[int, int]) -> None:
        now_s = self._clock.monotonic_s()
        self._gap_is_open = True
        self._first_at_ms = first_at_ms
        # A wall clock that was set back meanwhile does not turn the stream's back.
        passed_ms = max(self._clock.wall_ms() - self._first_at_ms, newest_ms)
        self._first_arrived_s = now_s - passed_ms / 1000
        self._timeline = Timeline.resumed(first_arrived_s=self._first_arrived_s, time_ms=newest_ms)
        self._newest = _NewestFrame(newest_ms, self._first_arrived_s + newest_ms / 1000, *size_px)

    def _row_of(self, frame: StoredFrame) -> IndexRow:
        return IndexRow(
            index=frame.index,
            stream_time_ms=frame.stream_time_ms,
            arrived_s=self._first_arrived_s + frame.stream_time_ms / 1000,
            width=frame.width,
            height=frame.height,
            chunk=frame.first_index,
            flags=CORRUPT if frame.corrupt else 0,
        )

    def _files_of(self, folder: Path, limits: StoreLimits) -> HistoryFiles | None:
        try:
            return open_history(
                folder, capacity_bytes=limits.history_bytes, max_rows=limits.max_frames
            )
        except OSError as error:
            self.failure = error.strerror or str(error)
            log.warning("the history of %s is kept in memory only: %s", folder, self.failure)
            return None

    def _close_files(self) -> None:
        if self._files is not None:
            self._files.close()

    # ── the history's thread ──

    def _ensure_encoder(self) -> None:
        if self._encoder is None and self.limits.history_bytes > 0:
            self._encoder = OwnedThread(f"history-{self.stream_id}", self._record)
            self._encoder.start()

    def _record(self, _stopping: threading.Event) -> None:
        bytes_per_s = self.limits.history_bytes / self.limits.retention_s
        recorder = Recorder(self._codec, bytes_per_s=bytes_per_s)
        while (given := self._next_to_encode()) is not None:
            frame, must_begin = given
            while not self._finished(recorder.record(frame, must_begin=must_begin)):
                must_begin = True  # making room took the chunk that the frame continues
            run = recorder.take_check(frame.stream_time_ms)
            is_alike = None if run is None else self._replays_alike(run)
            if is_alike is not None:
                recorder.note_checked(frame.stream_time_ms)
            if run is not None and is_alike is False:
                log.warning(
                    "%s: its packets do not give its frames again; the history encodes them",
                    self.stream_id,
                )
                recorder.distrust(run)
                with self._lock:
                    self._tiers.drop_chunk_of(run.last_index)
                    self._tiers.drop_chunk_of(frame.index)  # it may have begun just as falsely

    def _next_to_encode(self) -> tuple[Frame, bool] | None:
        """Block for the oldest frame to record, and whether it has to begin a chunk; None once the
        stream has ended.

        The wait is spent on touching the history's memory, a step at a time: a frame never waits
        for more than one.
        """
        with self._encoder_state:
            while self._final is None:
                frame = self._tiers.next_to_encode()
                if frame is not None:
                    return frame, self._tiers.must_begin
                self._encoder_state.wait(PREFAULT_PAUSE_S if self._prefault_step() else None)
            return None

    def _finished(self, piece: Piece | None) -> bool:
        """Hand the piece over; False if it has to be made anew, as a beginning."""
        with self._encoder_state:
            if self._final is not None:
                return True
            has_taken = self._tiers.finish_encode(piece)
            self._encoder_state.notify_all()
            return has_taken

    def _replays_alike(self, run: Run) -> bool | None:
        """Decode a run of packets again and compare its last frame with the one that is still hot.

        None where there is nothing to compare any more.
        """
        index = run.last_index
        with self._lock:
            hot, stored = self._tiers.find(index), self._tiers.read(index, until=index)
        if not isinstance(hot, Frame) or stored is None:
            return None
        last: Pixels | None = None
        as_first = replace(stored, is_damaged=True)  # decoded in the way of the source
        with closing(self._codec.replay(as_first)) as frames:
            for at, pixels in frames:
                last = pixels if at == index else last
        return last is not None and np.array_equal(last.rgb(), hot.pixels.rgb())

    def _prefault_step(self) -> bool:
        """True while more remains."""
        if not self.limits.prefault:
            return False
        has_more = self._tiers.arena.prefault_step()
        if not has_more:
            self._encoder_state.notify_all()
        return has_more

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
