"""Which frames of a camera are looked at: the grid of the stream clock, as the wire format has it.

A trailing clip holds, for every tick `k / max_fps` inside it, the first frame at or after the tick;
the last one is replaced by the newest frame. Pure numbers, for frames that come evenly.
"""

from __future__ import annotations

import math

from liveedge.bench.scenario import Media

_TINY = 1e-9  # of a tick: rounding must not move a frame to the next one


def is_one(media: Media) -> bool:
    """A picture, no clip."""
    return media.frames == 1 and not media.seconds


def clip_s(media: Media) -> float:
    """Seconds of the clip."""
    return media.seconds or media.frames / media.max_fps


def step(media: Media, fps: float) -> int:
    """Frames of the camera from one of the clip to the next, where they are taken by number."""
    return max(1, round(fps / media.max_fps))


def n_held(media: Media, fps: float) -> int:
    """How many of the newest frames of a camera a question can reach."""
    if is_one(media):
        return 1
    if media.distinct or media.clip == "images":
        return (media.frames - 1) * step(media, fps) + 1
    return math.ceil(clip_s(media) * fps) + 1


def frames_of(newest: int, media: Media, fps: float) -> list[int]:
    """Numbers of the frames of a question, oldest first; frame `n` is from `n / fps`."""
    if is_one(media):
        return [newest]
    if media.distinct or media.clip == "images":
        apart = step(media, fps)
        numbers = range(newest - (media.frames - 1) * apart, newest + 1, apart)
        return [number for number in numbers if number >= 0]
    return _trailing(newest, media, fps)


def _trailing(newest: int, media: Media, fps: float) -> list[int]:
    first_tick = math.floor((newest / fps - clip_s(media)) * media.max_fps + _TINY) + 1
    last_tick = math.floor(newest / fps * media.max_fps + _TINY)
    ticks = range(max(0, first_tick), last_tick + 1)
    numbers = (math.ceil(tick / media.max_fps * fps - _TINY) for tick in ticks)
    picked = sorted({number for number in numbers if number <= newest})
    return [*picked[:-1], newest]
