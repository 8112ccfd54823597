"""What a warm window holds, and when that changes: decided from the question and a snapshot alone.

A window is the beginning of a prompt, up to and including its last media part. Its frames are those
on the grid of the stream clock, so a window that slides shares its groups with the one before.
Pure: no clock, no task, no engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias

from liveedge.frames.frame import Frame
from liveedge.frames.refs import DEFAULT_MAX_FPS, Anchor, ImageRef, SegmentRef
from liveedge.frames.resolve import Pick
from liveedge.frames.snapshot import Snapshot
from liveedge.service.lookup import Found, Resolved, is_live, resolve
from liveedge.service.parts import Part, Reference, Upload
from liveedge.service.question import TextContent, Turn

MAX_REFERENCES = 16  # of one window: each is looked up at every tick
PROMPT_ID_BYTES = 6
PICTURE_FPS = DEFAULT_MAX_FPS  # how often a picture of the live edge is renewed

_KeyPart: TypeAlias = str | ImageRef | SegmentRef
_KeyTurn: TypeAlias = tuple[str, tuple[_KeyPart, ...], tuple[Mapping[str, Any], ...]]


@dataclass(frozen=True, slots=True)
class WindowKey:
    """Equal keys: prompts that begin alike, of one tenant, for one model.

    References are as asked, without what is no matter of the window: `edge` and `max_age_ms`.
    """

    tenant: str
    model_id: str
    turns: tuple[_KeyTurn, ...]
    tools: tuple[Mapping[str, Any], ...] = ()  # the template writes them before everything else


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """The beginning of a prompt that can be kept warm."""

    key: WindowKey
    turns: tuple[Turn, ...]
    parts: tuple[tuple[Part, ...], ...]  # of each turn; segments on the grid
    references: tuple[Reference, ...]  # those of `parts`, in order

    @property
    def stream_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.ref.stream_id for item in self.references))


@dataclass(frozen=True, slots=True)
class Change:
    """The first frame of a stream that may change what a window holds."""

    stream_id: str
    at_ms: int  # of the stream clock
    at_index: int | None = None

    def has_come(self, *, time_ms: int, index: int) -> bool:
        return time_ms >= self.at_ms or (self.at_index is not None and index >= self.at_index)


def plan_window(
    key_of: tuple[str, str],
    turns: Sequence[Turn],
    parts: Sequence[Sequence[Part]],
    *,
    max_age_ms: int | None,
    n_media: int | None = None,
    tools: tuple[Mapping[str, Any], ...] = (),
) -> WindowPlan | None:
    """The window of a question; None where it has none that could be kept warm.

    `key_of` is tenant and model id, `tools` what the model is told of, `n_media` cuts behind so many media parts. A window has at
    least one reference to the live edge and no upload: nobody can say whether it comes again.
    """
    cut = _cut(parts, n_media)
    if cut is None:
        return None
    references = [
        part for contents in cut for part in contents if not isinstance(part, TextContent)
    ]
    if len(references) > MAX_REFERENCES or not all(
        isinstance(item, Reference) and _is_kept(item, max_age_ms) for item in references
    ):
        return None
    if not any(isinstance(item, Reference) and is_live(item.ref) for item in references):
        return None
    kept = tuple(tuple(map(_on_grid, contents)) for contents in cut)
    heads = tuple(turns[: len(cut)])
    tenant, model_id = key_of
    key_turns = tuple(
        (turn.role, tuple(map(_key_part, contents)), turn.tool_calls)
        for turn, contents in zip(heads, kept, strict=True)
    )
    return WindowPlan(
        key=WindowKey(tenant, model_id, key_turns, tools),
        turns=heads,
        parts=kept,
        references=tuple(p for contents in kept for p in contents if isinstance(p, Reference)),
    )


def prompt_id(key: WindowKey, *, secret: bytes) -> str:
    """Tells windows apart by the texts around their media, without telling the texts.

    With `secret`, nobody can try out which text an id belongs to.
    """
    texts = [
        (role, [part if isinstance(part, str) else None for part in parts], calls)
        for role, parts, calls in key.turns
    ]
    written = json.dumps([texts, key.tools], sort_keys=True).encode()
    return hashlib.blake2b(written, key=secret, digest_size=PROMPT_ID_BYTES).hexdigest()


def resolve_window(
    references: Sequence[Reference], snapshots: Mapping[str, Snapshot]
) -> tuple[Resolved, ...]:
    """The frames of the window until the next change. Raises what a question would raise."""
    return tuple(
        resolve(replace(item, ref=_ahead(item.ref, snapshot)), snapshot)
        for item in references
        for snapshot in (snapshots[item.ref.stream_id],)
    )


def next_ticks(
    references: Sequence[Reference], snapshots: Mapping[str, Snapshot]
) -> tuple[Change, ...]:
    """The next tick of every reference to the live edge."""
    return tuple(
        Change(item.ref.stream_id, _next_tick_ms(item.ref, snapshots[item.ref.stream_id]))
        for item in references
        if is_live(item.ref)
    )


def next_changes(
    references: Sequence[Reference], found: Sequence[Found], snapshots: Mapping[str, Snapshot]
) -> tuple[Change, ...]:
    """The next tick of every reference to the live edge, or the frame that pushes its first one out,
    if that comes before."""
    return tuple(
        _next_change(item.ref, frames, snapshots[item.ref.stream_id])
        for item, frames in zip(references, found, strict=True)
        if is_live(item.ref)
    )


def _cut(parts: Sequence[Sequence[Part]], n_media: int | None) -> list[Sequence[Part]] | None:
    """Everything up to the last media part, or the `n_media`-th; None without any."""
    places = [
        (i, j)
        for i, contents in enumerate(parts)
        for j, part in enumerate(contents)
        if not isinstance(part, TextContent)
    ]
    if not places or (n_media is not None and n_media > len(places)):
        return None
    i, j = places[-1 if n_media is None else n_media - 1]
    return [*parts[:i], parts[i][: j + 1]]


def _is_kept(item: Reference, default_max_age_ms: int | None) -> bool:
    """Whether a window may hold it: a segment at the live edge, or frames that stay the same.

    The newest picture is another one with every frame: only a question that takes one of a moment
    ago has a use for a warm one.
    """
    ref = item.ref
    if is_live(ref):
        is_bounded = (ref.max_age_ms or default_max_age_ms) is not None
        return isinstance(ref, SegmentRef) or is_bounded
    anchors = [ref.anchor] if isinstance(ref, ImageRef) else [ref.start, ref.end]
    return all(anchor is not None and _is_absolute(anchor) for anchor in anchors)


def _is_absolute(anchor: Anchor) -> bool:
    return anchor.kind == "timestamp_ms" or (anchor.kind == "frame_index" and anchor.value >= 0)


def _on_grid(part: Part) -> Part:
    if not isinstance(part, Reference):
        return part
    if isinstance(part.ref, ImageRef):
        return replace(part, ref=replace(part.ref, max_age_ms=None))
    end = None if part.ref.at_live_edge else part.ref.end
    return replace(part, ref=replace(part.ref, end=end, edge="grid", max_age_ms=None))


def _key_part(part: Part) -> _KeyPart:
    assert not isinstance(part, Upload), "a window has no uploads"
    return part.text if isinstance(part, TextContent) else part.ref


# ── the grid ──


def _rate(ref: ImageRef | SegmentRef) -> Fraction:
    return ref.max_fps if isinstance(ref, SegmentRef) else PICTURE_FPS


def _next_tick_ms(ref: ImageRef | SegmentRef, snapshot: Snapshot) -> int:
    """The earliest stream time that belongs to a later tick than the newest frame's."""
    if not snapshot.ever_produced:
        return 0
    rate = _rate(ref)
    tick = snapshot.newest_ms * rate.numerator // (1000 * rate.denominator)
    return -((-(tick + 1) * 1000 * rate.denominator) // rate.numerator)


def _next_change(ref: ImageRef | SegmentRef, found: Found, snapshot: Snapshot) -> Change:
    tick_ms = _next_tick_ms(ref, snapshot)
    if isinstance(ref, ImageRef):
        return Change(ref.stream_id, tick_ms)
    step_ms = _step_ms(ref, snapshot)
    first = found.picks[0]
    assert first.tick is not None, "frames of a segment have ticks"
    if ref.start.kind == "frame_index" and ref.start.value < 0:
        n_ahead = 1 if step_ms else 0
        leaves_at = first.index - ref.start.value - 1 - n_ahead
        at_index = leaves_at if leaves_at >= snapshot.n_produced else None
        return Change(ref.stream_id, tick_ms, at_index)
    if ref.start.kind != "offset_ms" or ref.start.value >= 0:
        return Change(ref.stream_id, tick_ms)
    first_tick_ms = first.tick * 1000 * ref.max_fps.denominator // ref.max_fps.numerator
    leaves_ms = first_tick_ms + 1 - ref.start.value - step_ms
    if leaves_ms <= snapshot.newest_ms:  # no tick is in the segment: its one frame stands for them
        return Change(ref.stream_id, tick_ms)
    return Change(ref.stream_id, min(tick_ms, leaves_ms))


def _step_ms(ref: ImageRef | SegmentRef, snapshot: Snapshot) -> int:
    """Time to the next frame, if it is expected before the next tick; else 0."""
    if len(snapshot) < 2:
        return 0
    step_ms = int(snapshot.stream_time_ms[-1] - snapshot.stream_time_ms[-2])
    return step_ms if snapshot.newest_ms + step_ms < _next_tick_ms(ref, snapshot) else 0


def _ahead(ref: ImageRef | SegmentRef, snapshot: Snapshot) -> ImageRef | SegmentRef:
    """Without a first frame that the next frame of the camera pushes out.

    A camera whose frames fall on the ticks exactly has one frame more at a tick than between two:
    a window made for that instant would be wrong a moment later, until the next tick.
    """
    if isinstance(ref, ImageRef) or not is_live(ref) or ref.start.value >= 0:
        return ref
    step_ms = _step_ms(ref, snapshot)
    if not step_ms or ref.start.kind == "timestamp_ms":
        return ref
    ahead = 1 if ref.start.kind == "frame_index" else step_ms
    start = replace(ref.start, value=min(ref.start.value + ahead, -1))
    return replace(ref, start=start)


def full_segment(stream_id: str, newest: Frame, n_frames: int, max_fps: Fraction) -> Found:
    """What a segment will hold once the stream is long enough, if its frames stay of this size."""
    step_ms = 1000 / max_fps
    picks = tuple(
        Pick(
            stream_id=stream_id,
            index=n,
            stream_time_ms=int(n * step_ms),
            captured_at_ms=newest.captured_at_ms,
            arrived_s=newest.arrived_s,
            width=newest.pixels.width,
            height=newest.pixels.height,
            corrupt=False,
            tick=n,
        )
        for n in range(n_frames)
    )
    return Found(picks, at_live_edge=True)
