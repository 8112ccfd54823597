"""`ovs://` references to the frames of a stream that a question looks at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from liveedge.bench.scenario import Media
from liveedge.bench.sources.grid import clip_s, is_one, step
from liveedge.client.http import image_part, video_part

Part: TypeAlias = Mapping[str, Any]
BEYOND = 1_000_000_000  # a frame number that no stream comes to: an end that is not the live edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A stream as it was when questions began: what media that repeat are counted from."""

    stream_id: str
    newest: int  # frame index
    stream_time_ms: int  # of that frame


def references(stream: Opened, media: Media, *, fps: float) -> Sequence[Part]:
    """The media parts of a question."""
    bounds = {"max_age_ms": media.max_age_ms, "max_pixels": media.max_pixels}
    query: dict[str, object] = {key: value for key, value in bounds.items() if value}
    if is_one(media) or media.clip == "images":
        last = stream.newest if media.repeats else -1
        ago = [n * step(media, fps) for n in reversed(range(media.frames))]
        return [image_part(stream.stream_id, frame_index=last - back, **query) for back in ago]
    return [video_part(stream.stream_id, **_span(stream, media, fps), **query)]


def _span(stream: Opened, media: Media, fps: float) -> dict[str, object]:
    if media.repeats:
        return _fixed(stream, media) | {"max_fps": media.max_fps}
    # A tick that lies exactly at the start would be one frame too many.
    if not media.distinct:
        back_ms = round(clip_s(media) * 1000) - 1
        return {"start_offset_ms": -back_ms, "max_fps": media.max_fps}
    # Each frame has a tick of its own, so that neighbours are encoded in pairs as in any other clip.
    back_ms = round(media.frames * 1000 / fps) - 1
    return {"start_offset_ms": -back_ms, "end_frame_index": BEYOND, "max_fps": fps}


def _fixed(stream: Opened, media: Media) -> dict[str, object]:
    """From tick to tick, so that it holds as many frames as it should."""
    n_ticks = round(clip_s(media) * media.max_fps)
    end = math.floor(stream.stream_time_ms / 1000 * media.max_fps)
    start = max(0, end - n_ticks)
    return {
        "start_timestamp_ms": math.floor(start * 1000 / media.max_fps),
        "end_timestamp_ms": math.ceil(end * 1000 / media.max_fps),
    }
