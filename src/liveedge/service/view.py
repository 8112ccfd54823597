"""What is told about a stream: every key of the wire, from counters read at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from liveedge.frames.store import StoreCounters
from liveedge.media.source import Health, SourceStatus

EndReason: TypeAlias = Literal["expired", "deleted"]
WindowState: TypeAlias = Literal["warming", "warm", "stale", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapView:
    """A time without a publisher, on the stream clock."""

    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """Never the URL."""

    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowView:
    """One warm window; field names are the wire's. Never the text before its media."""

    name: str
    kind: Literal["auto", "explicit"]
    model: str
    seconds: float | None  # None: it does not begin so long before the live edge
    max_fps: float
    max_pixels: int | None
    frames: int
    tokens: int
    prompt_id: str  # equal for equal texts around the media, while the server runs
    prompt_tokens_before_media: int | None  # None: it was not warm yet
    state: WindowState
    reason: str | None  # of the last failure
    age_ms: int | None  # of the newest warm frame
    warmed_at_ms: int | None
    hits: int  # answers that reused its frames
    updates: int
    superseded: int
    errors: dict[str, int]
    cost_ms_per_s: float  # of the device


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """`GET /streams/{id}`; field names are the wire's."""

    id: str
    state: Literal["active", "ended"]
    source: SourceView
    last_pull: int | None
    stream_time_ms: int
    first_frame_at_ms: int | None
    last_frame_at_ms: int | None
    last_frame_index: int | None
    first_available_frame_at_ms: int | None
    first_available_frame_index: int | None
    created_at_ms: int
    recent_fps: float
    retained_frame_count: int
    evicted_frame_count: int
    expires_at_ms: int | None
    ttl_seconds: int
    ended_at_ms: int | None
    end_reason: EndReason | None
    audio: bool
    health: Health
    health_reason: str
    width: int | None
    height: int | None
    codec: str | None
    dropped: dict[str, int]
    evicted: dict[str, int]
    corrupt_frames: int
    reconnects: int
    gaps: tuple[GapView, ...]
    memory_bytes: int
    reserved_bytes: int
    windows: tuple[WindowView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeView:
    """The part of a view that the lease decides."""

    id: str
    source_type: str
    created_at_ms: int
    expires_at_ms: int | None  # None once ended
    ttl_seconds: int
    ended_at_ms: int | None = None
    end_reason: EndReason | None = None


def make_view(
    life: LifeView, counters: StoreCounters, status: SourceStatus, *, last_pull_ms: int | None
) -> StreamView:
    """Everything about one stream."""
    has_ended = life.ended_at_ms is not None
    return StreamView(
        id=life.id,
        state="ended" if has_ended else "active",
        source=SourceView(type=life.source_type),
        last_pull=last_pull_ms,
        stream_time_ms=counters.stream_time_ms,
        first_frame_at_ms=counters.first_frame_at_ms,
        last_frame_at_ms=counters.last_frame_at_ms,
        last_frame_index=counters.last_frame_index,
        first_available_frame_at_ms=counters.first_available_frame_at_ms,
        first_available_frame_index=counters.first_available_frame_index,
        created_at_ms=life.created_at_ms,
        recent_fps=0.0 if has_ended else round(counters.recent_fps, 2),
        retained_frame_count=counters.retained,
        evicted_frame_count=counters.evicted,
        expires_at_ms=life.expires_at_ms,
        ttl_seconds=life.ttl_seconds,
        ended_at_ms=life.ended_at_ms,
        end_reason=life.end_reason,
        audio=False,
        health="ended" if has_ended else status.health,
        health_reason=f"the stream has {_how(life)}" if has_ended else status.reason,
        width=counters.width,
        height=counters.height,
        codec=status.codec,
        dropped=dict(counters.dropped_by_reason),
        evicted=dict(counters.evicted_by_reason),
        corrupt_frames=counters.corrupt,
        reconnects=status.reconnects,
        gaps=tuple(GapView(from_ms=gap.from_ms, to_ms=gap.to_ms) for gap in counters.gaps),
        memory_bytes=0 if has_ended else counters.memory_bytes,
        reserved_bytes=0 if has_ended else counters.reserved_bytes,
    )


def _how(life: LifeView) -> str:
    return "been deleted" if life.end_reason == "deleted" else "expired: no keepalive came"
