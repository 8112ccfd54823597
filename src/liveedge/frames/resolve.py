"""A reference and a snapshot in, the frames it names out.

Pure: no clock, no lock, no pixels. All references of a request are resolved over snapshots taken
at one instant, so that they agree about what "now" is.

Order of decisions (numbers as in the errors' documentation; 1 to 3 happen before a snapshot exists)
4. no frame has ever arrived: `FrameNotYetProduced`
5. image: index beyond the newest, evicted, before the beginning; nothing near a time
6. segment: start beyond the newest; end not after start, compared before clipping; nothing retained
7. sampling on the fixed grid of the stream clock
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.core.errors import FrameEvicted, FrameNotYetProduced, SegmentEmpty, SegmentInvalid
from liveedge.frames.refs import Anchor, ImageRef, SegmentRef
from liveedge.frames.snapshot import Snapshot

Numbers: TypeAlias = NDArray[Any]  # int64, or Python integers where int64 could overflow
_INT64_SAFE = 2**62


@dataclass(frozen=True, slots=True)
class Pick:
    """A chosen frame: everything about it but its pixels."""

    stream_id: str
    index: int
    stream_time_ms: int
    captured_at_ms: int
    arrived_s: float
    width: int
    height: int
    corrupt: bool
    tick: int | None = (
        None  # segments: k of the latest grid tick k / max_fps at or before the frame
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentPick:
    """The frames of a segment, oldest first, each once; at least one.

    They can be counted before thousands of them become objects, which takes long.
    """

    snapshot: Snapshot = field(repr=False)
    rows: tuple[int, ...]  # of the snapshot
    max_fps: Fraction
    at_live_edge: bool

    @property
    def n_frames(self) -> int:
        return len(self.rows)

    @property
    def picks(self) -> tuple[Pick, ...]:
        """All frames, made anew: about 5 microseconds each."""
        return self._picks(self.rows)

    @property
    def newest(self) -> Pick:
        return self._picks(self.rows[-1:])[0]

    def _picks(self, rows: Sequence[int]) -> tuple[Pick, ...]:
        times = self.snapshot.stream_time_ms[list(rows)]
        return _picks(self.snapshot, rows, _ticks(times, self.max_fps).tolist())


@dataclass(frozen=True, slots=True)
class _Bound:
    """One end of a segment: a lifetime index or a stream time."""

    is_index: bool
    value: int


def resolve_image(ref: ImageRef, snapshot: Snapshot) -> Pick:
    """Find the one frame an image reference names."""
    _require_any_frame(snapshot)
    if ref.anchor.kind == "frame_index":
        return _picks(snapshot, [_row_of_index(ref.anchor.value, snapshot)], [None])[0]
    if len(snapshot) == 0:
        raise SegmentEmpty(f"stream {snapshot.stream_id} retains no frame any more")
    row = _row_near(_time_of(ref.anchor, snapshot), ref, snapshot)
    return _picks(snapshot, [row], [None])[0]


def resolve_segment(ref: SegmentRef, snapshot: Snapshot) -> SegmentPick:
    """Find the frames a segment reference names, sampled on the grid."""
    _require_any_frame(snapshot)
    start = _bound(ref.start, snapshot)
    if start.is_index and start.value >= snapshot.n_produced:
        raise FrameNotYetProduced(
            f"start_frame_index {ref.start.value} is beyond the newest frame of stream "
            f"{snapshot.stream_id}, {snapshot.n_produced - 1}"
        )
    end = None if ref.end is None or ref.at_live_edge else _bound(ref.end, snapshot)
    if end is not None and _is_reversed(start, end, snapshot):
        raise SegmentInvalid(
            f"the end ({_named(end)}) is not after the start ({_named(start)}); "
            "the end is exclusive and must come later"
        )
    first, stop = _row_range(start, end, snapshot)
    if first >= stop:
        raise SegmentEmpty(_why_empty(start, end, snapshot))
    rows = _sampled(snapshot, first, stop, start, ref.max_fps)
    if end is None and ref.edge == "newest":
        rows = [*rows[:-1], stop - 1]
    elif not rows:
        rows = [first]  # shorter than the grid: a frame is there, so it is shown
    return SegmentPick(
        snapshot=snapshot, rows=tuple(rows), max_fps=ref.max_fps, at_live_edge=end is None
    )


def _require_any_frame(snapshot: Snapshot) -> None:
    if not snapshot.ever_produced:
        raise FrameNotYetProduced(
            f"stream {snapshot.stream_id} has not produced a frame yet; wait for its camera or publisher, or push one"
        )


def _row_of_index(asked: int, snapshot: Snapshot) -> int:
    index = asked if asked >= 0 else snapshot.n_produced + asked
    if index >= snapshot.n_produced:
        raise FrameNotYetProduced(
            f"frame {index} of stream {snapshot.stream_id} is beyond the newest, "
            f"{snapshot.n_produced - 1}"
        )
    if index < 0:
        raise SegmentEmpty(
            f"frame_index {asked} is before the beginning of stream {snapshot.stream_id}, "
            f"which has produced {snapshot.n_produced} frames"
        )
    row = int(np.searchsorted(snapshot.index, index))
    if row == len(snapshot) or snapshot.index[row] != index:
        raise FrameEvicted(
            f"frame {index} of stream {snapshot.stream_id} is no longer retained"
            + _retained_span(snapshot)
        )
    return row


def _row_near(target_ms: int, ref: ImageRef, snapshot: Snapshot) -> int:
    """The nearest frame in the direction; of equally near ones the earliest."""
    times = snapshot.stream_time_ms
    after = int(np.searchsorted(times, target_ms, side="left"))
    candidates = []
    if ref.direction != "forward":
        before = int(np.searchsorted(times, target_ms, side="right")) - 1
        if before >= 0:  # the earliest of those that share that time
            candidates.append(int(np.searchsorted(times, times[before], side="left")))
    if ref.direction != "backward" and after < len(times):
        candidates.append(after)
    near = [row for row in candidates if abs(int(times[row]) - target_ms) <= ref.tolerance_ms]
    if not near:
        raise SegmentEmpty(
            f"stream {snapshot.stream_id} retains no frame within {ref.tolerance_ms} ms of "
            f"{target_ms} ms ({ref.direction})"
            + _gap_at(target_ms, target_ms, snapshot)
            + _retained_span(snapshot)
            + _way_out(target_ms, ref, snapshot)
        )
    return min(near, key=lambda row: (abs(int(times[row]) - target_ms), row))


def _time_of(anchor: Anchor, snapshot: Snapshot) -> int:
    """Stream time of a time anchor. With nothing retained the newest stands for the oldest."""
    if anchor.kind == "timestamp_ms":
        return anchor.value
    if anchor.value < 0 or len(snapshot) == 0:
        return snapshot.newest_ms + anchor.value
    return int(snapshot.stream_time_ms[0]) + anchor.value


def _bound(anchor: Anchor, snapshot: Snapshot) -> _Bound:
    if anchor.kind != "frame_index":
        return _Bound(is_index=False, value=_time_of(anchor, snapshot))
    if anchor.value < 0:
        return _Bound(is_index=True, value=snapshot.n_produced + anchor.value)
    return _Bound(is_index=True, value=anchor.value)


def _is_reversed(start: _Bound, end: _Bound, snapshot: Snapshot) -> bool:
    """Compare before clipping. An index and a time compare through the frame's time; where that
    is forgotten with the frame, only what is certain counts."""
    if start.is_index == end.is_index:
        return end.value <= start.value
    if start.is_index:
        return start.value >= 0 and end.value <= _earliest_ms(start.value, snapshot)
    if end.value < 0:  # before the first frame, so before every time
        return True
    latest_ms = _latest_ms(end.value, snapshot)
    return latest_ms is not None and latest_ms <= start.value


def _earliest_ms(index: int, snapshot: Snapshot) -> int:
    """The frame's time, or the earliest it can have been."""
    row = int(np.searchsorted(snapshot.index, index, side="right")) - 1
    return int(snapshot.stream_time_ms[row]) if row >= 0 else 0


def _latest_ms(index: int, snapshot: Snapshot) -> int | None:
    """The frame's time, or the latest it can have been; None for a frame of the future."""
    if index >= snapshot.n_produced:
        return None
    row = int(np.searchsorted(snapshot.index, index, side="left"))
    return int(snapshot.stream_time_ms[row]) if row < len(snapshot) else snapshot.newest_ms


def _row_range(start: _Bound, end: _Bound | None, snapshot: Snapshot) -> tuple[int, int]:
    """Rows of the retained frames from the start to before the end."""

    def row_of(bound: _Bound) -> int:
        column = snapshot.index if bound.is_index else snapshot.stream_time_ms
        return int(np.searchsorted(column, bound.value, side="left"))

    return row_of(start), len(snapshot) if end is None else row_of(end)


def _sampled(
    snapshot: Snapshot, first: int, stop: int, start: _Bound, max_fps: Fraction
) -> list[int]:
    """For every tick inside the segment the row of the first frame at or after it, each row once.

    Every frame belongs to the latest tick at or before it; the ticks between it and its elder
    choose it too, and give it once. So the first frame of each tick stands for all of them.
    """
    times = snapshot.stream_time_ms[first:stop]
    ticks = _ticks(times, max_fps)
    is_first = np.ones(len(times), dtype=bool)
    is_first[1:] = ticks[1:] != ticks[:-1]
    # A start by time may lie between two frames; one by index, or clipped, is its frame's time.
    from_ms = int(times[0])
    if not start.is_index:
        from_ms = max(start.value, int(snapshot.stream_time_ms[0]))
    lowest_tick = -((-from_ms * max_fps.numerator) // (1000 * max_fps.denominator))
    inside = (ticks >= lowest_tick).astype(bool)
    rows: list[int] = (first + np.flatnonzero(is_first & inside)).tolist()
    return rows


def _ticks(times_ms: Numbers, max_fps: Fraction) -> Numbers:
    """Latest tick at or before each time, exactly: a frame at 100000 ms with 4.35 fps has 435."""
    largest = (int(times_ms[-1]) + 1) * max_fps.numerator
    exact_in_int64 = max(largest, 1000 * max_fps.denominator) < _INT64_SAFE
    times = times_ms.astype(np.int64 if exact_in_int64 else object)
    ticks: Numbers = times * max_fps.numerator // (1000 * max_fps.denominator)
    return ticks


def _picks(
    snapshot: Snapshot, rows: Sequence[int], ticks: Sequence[int | None]
) -> tuple[Pick, ...]:
    chosen = np.asarray(rows, dtype=np.intp)
    columns = (  # in the order of the fields of Pick
        snapshot.index,
        snapshot.stream_time_ms,
        snapshot.captured_at_ms,
        snapshot.arrived_s,
        snapshot.width,
        snapshot.height,
        snapshot.corrupt,
    )
    values = zip(*(column[chosen].tolist() for column in columns), ticks, strict=True)
    return tuple(Pick(snapshot.stream_id, *fields) for fields in values)


def _named(bound: _Bound) -> str:
    return f"frame {bound.value}" if bound.is_index else f"{bound.value} ms of stream time"


def _retained_span(snapshot: Snapshot) -> str:
    if len(snapshot) == 0:
        return "; nothing is"
    return (
        f"; retained are frames {snapshot.index[0]} to {snapshot.index[-1]}, "
        f"{snapshot.stream_time_ms[0]} to {snapshot.stream_time_ms[-1]} ms of stream time"
    )


def _gap_at(from_ms: int, to_ms: int, snapshot: Snapshot) -> str:
    """The neighbours of a time in which there is nothing."""
    times = snapshot.stream_time_ms
    after = int(np.searchsorted(times, to_ms, side="left"))
    before = int(np.searchsorted(times, from_ms, side="right")) - 1
    if before < 0 or after != before + 1 or after == len(times):
        return ""
    return (
        f"; that lies in the gap from {times[before]} to {times[after]} ms, between frames"
        f" {snapshot.index[before]} and {snapshot.index[after]}"
    )


def _way_out(target_ms: int, ref: ImageRef, snapshot: Snapshot) -> str:
    """The parameters that give the nearest frame of all."""
    far_ms = np.abs(snapshot.stream_time_ms - target_ms)
    row = int(np.argmin(far_ms))
    is_before = snapshot.stream_time_ms[row] < target_ms
    is_blind = ref.direction == ("forward" if is_before else "backward")
    turned = "direction=nearest and " if is_blind else ""
    return f"; {turned}tolerance_ms={far_ms[row]} would give frame {snapshot.index[row]}"


def _why_empty(start: _Bound, end: _Bound | None, snapshot: Snapshot) -> str:
    until = "the live edge" if end is None else f"before {_named(end)}"
    is_timed = end is not None and not start.is_index and not end.is_index
    gap = _gap_at(start.value, end.value, snapshot) if end is not None and is_timed else ""
    return (
        f"stream {snapshot.stream_id} retains no frame from {_named(start)} to {until}"
        + gap
        + _retained_span(snapshot)
    )
