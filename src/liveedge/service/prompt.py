"""From the parts of a question to messages for the engine, and the list of frames it will see.

Pure. Frames of one segment that fall into one temporal group stay together; a run of groups of
equal size becomes one video part, because a model's video has one size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from liveedge.engine.request import (
    FrameInput,
    ImagePart,
    MediaUse,
    Message,
    Part as EnginePart,
    TextPart,
    VideoPart,
)
from liveedge.frames.pairs import pair_ticks
from liveedge.frames.refs import ImageRef
from liveedge.frames.resolve import Pick
from liveedge.service.lookup import Found
from liveedge.service.parts import Part, Reference, Upload
from liveedge.service.question import FrameUse, TextContent, Turn
from liveedge.service.tools import template_calls
from liveedge.service.uploads import Uploaded, UploadedFrame

Load: TypeAlias = Callable[[str, int], NDArray[np.uint8]]  # stream id and index to RGB; may raise
LoadOne: TypeAlias = Callable[[int], NDArray[np.uint8]]
LoadSegment: TypeAlias = Callable[[str, Sequence[int]], LoadOne]  # stream id and indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One frame in the prompt: what goes to the engine and what is told to the client."""

    frame: FrameInput
    stream_id: str | None = None
    frame_index: int | None = None
    timestamp_ms: int | None = None
    captured_at_ms: int | None = None
    arrived_s: float | None = None  # monotonic
    corrupt: bool = False

    def used(self, *, n_tokens: int, warm: bool) -> FrameUse:
        return FrameUse(
            stream_id=self.stream_id,
            frame_index=self.frame_index,
            timestamp_ms=self.timestamp_ms,
            captured_at_ms=self.captured_at_ms,
            width=self.frame.width,
            height=self.frame.height,
            n_tokens=n_tokens,
            warm=warm,
            corrupt=self.corrupt,
        )


Pair: TypeAlias = tuple[
    Shown, Shown
]  # a temporal group; the same one twice where it has no partner


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Messages for the engine, and the frames in the order in which the model reads them."""

    messages: tuple[Message, ...]
    shown: tuple[Shown, ...]  # a doubled frame once
    n_broken: int = 0  # undecodable frames of uploaded clips

    def uses(self, media: Sequence[MediaUse]) -> tuple[FrameUse, ...]:
        """Every frame with what the engine says of it."""
        pairs = zip(self.shown, media, strict=True)
        return tuple(shown.used(n_tokens=fact.n_tokens, warm=fact.warm) for shown, fact in pairs)

    @property
    def newest(self) -> Shown | None:
        """The newest stream frame: the evidence of the answer."""
        streamed = [shown for shown in self.shown if shown.captured_at_ms is not None]
        return max(streamed, key=lambda shown: shown.captured_at_ms or 0, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """What the media parts of a question turned out to be, by the part's place."""

    tenant: str  # part of every frame's key, so that no cache crosses tenants
    found: Mapping[str, Found]
    uploaded: Mapping[str, Uploaded]
    load: Load
    # Frames that are decoded together where they are asked for in order, as `FrameStore.segment`.
    load_segment: LoadSegment | None = None
    is_exact: Callable[[str, int], bool] = lambda _stream_id, _index: True  # as of FrameStore

    def loader(self, stream_id: str, indices: Sequence[int]) -> LoadOne:
        """Loads these frames, each as often as it is named."""
        if self.load_segment is None:
            return partial(self.load, stream_id)
        return self.load_segment(stream_id, indices)


def make_prompt(turns: Sequence[Turn], parts: Sequence[Sequence[Part]], media: Media) -> Prompt:
    """The question as the engine reads it. `parts` are the parsed parts of each turn."""
    shown: list[Shown] = []
    messages = []
    for turn, contents in zip(turns, parts, strict=True):
        content: list[EnginePart] = []
        for part in contents:
            content += _engine_parts(part, media, shown)
        calls = template_calls(turn)
        messages.append(Message(role=turn.role, content=tuple(content), tool_calls=calls))
    n_broken = sum(upload.n_broken for upload in media.uploaded.values())
    return Prompt(messages=tuple(messages), shown=tuple(shown), n_broken=n_broken)


def _engine_parts(part: Part, media: Media, shown: list[Shown]) -> Sequence[EnginePart]:
    """The part for the engine; frames it shows are appended to `shown`."""
    match part:
        case TextContent():
            return [TextPart(part.text)]
        case Reference() if isinstance(part.ref, ImageRef):
            (pick,) = media.found[part.where].picks
            load = partial(media.load, pick.stream_id)
            shown.append(_streamed(pick, media, load=load, time_s=0.0))
            return [ImagePart(frame=shown[-1].frame, max_pixels=part.ref.max_pixels)]
        case Reference():
            pairs = _stream_pairs(media.found[part.where].picks, media)
            return _videos(pairs, shown, max_pixels=part.ref.max_pixels)
        case Upload(kind="image"):
            shown.append(_sent(media.uploaded[part.where].frames[0], media, time_s=None))
            return [ImagePart(frame=shown[-1].frame)]
        case Upload():
            return _videos(_clip_pairs(media.uploaded[part.where].frames, media), shown)


def _videos(
    pairs: Sequence[Pair], shown: list[Shown], *, max_pixels: int | None = None
) -> list[VideoPart]:
    videos = []
    for _, run in groupby(pairs, key=lambda pair: (pair[0].frame.width, pair[0].frame.height)):
        groups = list(run)
        frames = tuple(one.frame for pair in groups for one in pair)
        videos.append(VideoPart(frames=frames, max_pixels=max_pixels))
    for first, second in pairs:
        shown += [first] if first is second else [first, second]
    return videos


def _stream_pairs(picks: Sequence[Pick], media: Media) -> list[Pair]:
    began_ms = picks[0].stream_time_ms
    pairs = pair_ticks(picks)
    load = media.loader(picks[0].stream_id, [pick.index for pair in pairs for pick in pair])
    shown = {
        pick.index: _streamed(
            pick, media, load=load, time_s=(pick.stream_time_ms - began_ms) / 1000
        )
        for pick in picks
    }
    return [(shown[a.index], shown[b.index]) for a, b in pairs]


def _clip_pairs(frames: Sequence[UploadedFrame], media: Media) -> list[Pair]:
    """Neighbours of equal size share a group; a frame without a partner stands twice."""
    began_s = frames[0].time_s
    shown = [_sent(frame, media, time_s=frame.time_s - began_s) for frame in frames]
    pairs: list[Pair] = []
    for _, run in groupby(shown, key=lambda one: (one.frame.width, one.frame.height)):
        row = list(run)
        row += row[-1:] * (len(row) % 2)
        pairs += list(zip(row[::2], row[1::2], strict=True))
    return pairs


def _streamed(pick: Pick, media: Media, *, load: LoadOne, time_s: float) -> Shown:
    frame = FrameInput(
        key=f"{media.tenant}/{pick.stream_id}/{pick.index}",
        width=pick.width,
        height=pick.height,
        load=partial(load, pick.index),
        is_exact=partial(media.is_exact, pick.stream_id, pick.index),
        time_s=time_s,
    )
    return Shown(
        frame=frame,
        stream_id=pick.stream_id,
        frame_index=pick.index,
        timestamp_ms=pick.stream_time_ms,
        captured_at_ms=pick.captured_at_ms,
        arrived_s=pick.arrived_s,
        corrupt=pick.corrupt,
    )


def _sent(uploaded: UploadedFrame, media: Media, *, time_s: float | None) -> Shown:
    """`time_s` is None for a picture, which has no time."""
    pixels = uploaded.pixels
    frame = FrameInput(
        key=f"{media.tenant}/upload/{uploaded.key}",
        width=pixels.width,
        height=pixels.height,
        load=pixels.rgb,
        time_s=time_s or 0.0,
    )
    timestamp_ms = None if time_s is None else round(time_s * 1000)
    return Shown(frame=frame, timestamp_ms=timestamp_ms, corrupt=uploaded.corrupt)
