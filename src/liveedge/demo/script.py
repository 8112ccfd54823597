"""The questions of the demonstration: what is asked about which moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from liveedge.client.http import image_part, video_part
from liveedge.sim.questions import KINDS, STATE_SCHEMA

Moment: TypeAlias = Literal["now", "last 2 s", "frame", "same frame", "10 s ago"]

PAST_S = 10.0
CLIP_S = 2.0
CLIP_FPS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One scripted question."""

    moment: Moment
    kind: str
    phrasing: int = 0  # which of the kind's phrasings
    as_json: bool = False

    @property
    def question(self) -> str:
        return KINDS[self.kind].phrasings[self.phrasing]

    @property
    def response_format(self) -> Mapping[str, Any] | None:
        if not self.as_json:
            return None
        schema = {"name": "state", "strict": True, "schema": STATE_SCHEMA}
        return {"type": "json_schema", "json_schema": schema}


SCRIPT = (
    Step(moment="now", kind="door"),
    Step(moment="now", kind="display"),
    Step(moment="now", kind="count"),
    Step(moment="now", kind="person", phrasing=1),
    Step(moment="frame", kind="lamp"),
    Step(moment="same frame", kind="display", phrasing=2),
    Step(moment="last 2 s", kind="belt"),
    Step(moment="last 2 s", kind="box_event", phrasing=1),
    Step(moment="now", kind="state", as_json=True),
    Step(moment="10 s ago", kind="lamp", phrasing=4),
)


def media_part(step: Step, stream_id: str, *, exact_index: int) -> dict[str, Any]:
    """The content part that names the step's moment; `exact_index` is the frame for "frame"."""
    match step.moment:
        case "now":
            return image_part(stream_id, frame_index=-1)
        case "frame" | "same frame":
            return image_part(stream_id, frame_index=exact_index)
        case "last 2 s":
            offset_ms = -round(CLIP_S * 1000)
            return video_part(stream_id, start_offset_ms=offset_ms, max_fps=CLIP_FPS)
        case "10 s ago":
            offset_ms = -round(PAST_S * 1000)
            return image_part(stream_id, offset_ms=offset_ms, tolerance_ms=500)
