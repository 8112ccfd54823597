"""From references to frames: all of a question against snapshots of one instant, fresh enough.

Resolution itself is pure (`frames.resolve`); here are the instant, the freshness bound, the choice
of frames that are warm already, and the wait for a newer frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from liveedge.core.clock import Clock
from liveedge.core.errors import FrameStale
from liveedge.frames.refs import ImageRef, SegmentRef
from liveedge.frames.resolve import Pick, SegmentPick, resolve_image, resolve_segment
from liveedge.frames.snapshot import Snapshot
from liveedge.frames.store import FrameStore
from liveedge.service.parts import Reference, naming

# A warm frame that is about to break its bound would break it before the first token.
RESERVE_SHARE = 0.1  # of the bound
MAX_RESERVE_MS = 100  # more than a warm answer takes to begin


@dataclass(frozen=True, slots=True)
class Found:
    """The frames of one reference, oldest first."""

    picks: tuple[Pick, ...]
    at_live_edge: bool


Resolved: TypeAlias = Pick | SegmentPick  # counted, not yet one object per frame


@dataclass(frozen=True, slots=True)
class _Stale:
    """A reference whose newest frame is older than its bound."""

    where: str
    stream_id: str
    age_ms: int
    bound_ms: int
    newest_index: int
    can_get_fresh: bool  # a newer frame of the stream may satisfy the bound

    def error(self) -> FrameStale:
        advice = (
            "no newer frame came before the deadline"
            if self.can_get_fresh
            else "the reference names the past; raise max_age_ms or ask for a newer frame"
        )
        return FrameStale(
            f"{self.where}: the newest frame used of stream {self.stream_id} is {self.age_ms} ms"
            f" old, max_age_ms is {self.bound_ms}; {advice}"
        )


async def find(
    references: Sequence[Reference],
    *,
    access: Callable[[], Mapping[str, FrameStore]],
    max_age_ms: int | None,
    deadline_s: float,
    clock: Clock,
    admit: Callable[[Sequence[Resolved]], None] = lambda _: None,
    warm: Callable[[], Sequence[Found] | None] = lambda: None,
) -> tuple[Found, ...]:
    """Resolve all references at one instant, waiting for newer frames where a bound asks for it.

    `access` gives the stores by stream id and raises when a stream is gone; it is asked again after
    every wait. `admit` raises when the frames are more than the asker can use. `warm` gives the
    frames of the same references that cost nothing: they are taken where the bounds allow it.
    """
    while True:
        stores = access()
        snapshots = {stream_id: store.snapshot() for stream_id, store in stores.items()}
        cheap = warm()
        if cheap is not None and _may_use(cheap, references, snapshots, max_age_ms):
            return tuple(cheap)
        resolved = [resolve(item, snapshots[item.ref.stream_id]) for item in references]
        admit(resolved)
        found = tuple(map(frames_of, resolved))
        stale = _first_stale(references, found, snapshots, max_age_ms)
        if stale is None:
            return found
        left_s = deadline_s - clock.monotonic_s()
        if not stale.can_get_fresh or left_s <= 0:
            raise stale.error()
        newer = await stores[stale.stream_id].wait_newer(stale.newest_index, left_s)
        if newer is None:
            access()  # a stream that ended is not found, which says more than stale
            raise stale.error()


def fresh_until_s(
    references: Sequence[Reference], found: Sequence[Found], default_ms: int | None
) -> float | None:
    """When the first of the bounds is broken, monotonic; None without a bound."""
    bounds = [
        (frames.picks[-1].arrived_s, item.ref.max_age_ms or default_ms)
        for item, frames in zip(references, found, strict=True)
    ]
    return min((arrived_s + ms / 1000 for arrived_s, ms in bounds if ms is not None), default=None)


def is_live(ref: ImageRef | SegmentRef) -> bool:
    """Whether other frames are meant when a new frame comes, up to the newest."""
    if isinstance(ref, SegmentRef):
        return ref.at_live_edge
    return ref.anchor.kind != "timestamp_ms" and ref.anchor.value < 0


def resolve(item: Reference, snapshot: Snapshot) -> Resolved:
    """The frames of one reference. Raises what `frames.resolve` raises, with the part's place."""
    with naming(item.where):
        if isinstance(item.ref, ImageRef):
            return resolve_image(item.ref, snapshot)
        return resolve_segment(item.ref, snapshot)


def frames_of(one: Resolved) -> Found:
    """One object per frame: about 5 microseconds each."""
    if isinstance(one, Pick):
        return Found((one,), at_live_edge=False)
    return Found(one.picks, one.at_live_edge)


def _may_use(
    warm: Sequence[Found],
    references: Sequence[Reference],
    snapshots: Mapping[str, Snapshot],
    default_ms: int | None,
) -> bool:
    """Only a bound allows frames that are not the newest; and all of them are still there."""
    is_bounded = all(
        (item.ref.max_age_ms or default_ms) is not None for item in references if is_live(item.ref)
    )
    return (
        is_bounded
        and _first_stale(references, warm, snapshots, default_ms, reserves=True) is None
        and all(
            _are_retained(frames.picks, snapshots[item.ref.stream_id])
            for item, frames in zip(references, warm, strict=True)
        )
    )


def _are_retained(picks: Sequence[Pick], snapshot: Snapshot) -> bool:
    indices = np.array([pick.index for pick in picks])
    rows = np.searchsorted(snapshot.index, indices)
    return bool(rows[-1] < len(snapshot) and (snapshot.index[rows] == indices).all())


def _first_stale(
    references: Sequence[Reference],
    found: Sequence[Found],
    snapshots: Mapping[str, Snapshot],
    default_ms: int | None,
    *,
    reserves: bool = False,
) -> _Stale | None:
    for item, frames in zip(references, found, strict=True):
        bound_ms = item.ref.max_age_ms or default_ms
        snapshot = snapshots[item.ref.stream_id]
        age_ms = (snapshot.taken_at_s - frames.picks[-1].arrived_s) * 1000
        if bound_ms is None:
            continue
        reserve_ms = min(RESERVE_SHARE * bound_ms, MAX_RESERVE_MS) if reserves else 0.0
        if age_ms <= bound_ms - reserve_ms:
            continue
        return _Stale(
            where=item.where,
            stream_id=snapshot.stream_id,
            age_ms=int(age_ms),
            bound_ms=bound_ms,
            newest_index=snapshot.n_produced - 1,
            can_get_fresh=frames.at_live_edge or _newest_age_ms(snapshot) > bound_ms,
        )
    return None


def _newest_age_ms(snapshot: Snapshot) -> float:
    return float((snapshot.taken_at_s - snapshot.arrived_s[-1]) * 1000)
