"""What routes about watches answer, for the document of the API: like `answers.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from liveedge.api.answers import ErrorObject, LiveEdgeBlock, OvershootBlock, Usage
from liveedge.service.watch_events import EndedReason, SkipReason, Trigger


class WatchResult(BaseModel):
    """An answer. `json` is there where it was held to JSON; null where it was cut off."""

    at_ms: int
    number: int
    trigger: Trigger
    change_score: float | None
    model: str
    text: str
    finish_reason: str
    usage: Usage
    overshoot: OvershootBlock
    liveedge: LiveEdgeBlock
    json_: Annotated[Any, Field(serialization_alias="json")] = None


class WatchFailure(BaseModel):
    """A question without an answer."""

    at_ms: int
    error: ErrorObject
    in_a_row: int
    retry_at_ms: int


class ShownWatch(BaseModel):
    """Everything about one watch but its texts."""

    id: str
    state: Literal["active", "ended"]
    model: str
    streams: list[str]
    every_ms: int | None
    on: Literal["change"] | None
    change_threshold: float | None
    debounce_ms: int | None
    min_interval_ms: int | None
    max_age_ms: int | None
    priority: str
    until: int | None
    max_results: int | None
    created_at_ms: int
    ended_at_ms: int | None
    end_reason: EndedReason | None
    expires_at_ms: int | None
    asked: int
    answered: int
    skipped: dict[str, int]
    errors: dict[str, int]
    backed_off: int
    change_score: float | None
    last_event_id: int
    dropped_events: int
    listeners: int
    is_asking: bool
    last_result: WatchResult | None
    last_error: WatchFailure | None


class WatchList(BaseModel):
    """The watches of the key."""

    object: Literal["list"]
    data: list[ShownWatch]


class DeletedWatch(BaseModel):
    """The watch has ended."""

    id: str
    deleted: Literal[True]


class WatchEvent(BaseModel):
    """The JSON of one event; which fields it has depends on its kind.

    `result` and `error`: those of WatchResult and WatchFailure. `skipped`: at_ms, reason, count.
    `ended`: at_ms, reason. `missed`: missed, first_id, last_id, of events that are not kept any more.
    """

    watch_id: str
    at_ms: int | None = None
    reason: SkipReason | EndedReason | None = None
    count: int | None = None
    missed: int | None = None
    first_id: int | None = None
    last_id: int | None = None
    number: int | None = None
    trigger: Trigger | None = None
    change_score: float | None = None
    model: str | None = None
    text: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    overshoot: OvershootBlock | None = None
    liveedge: LiveEdgeBlock | None = None
    json_: Annotated[Any, Field(serialization_alias="json")] = None
    error: ErrorObject | None = None
    in_a_row: int | None = None
    retry_at_ms: int | None = None
