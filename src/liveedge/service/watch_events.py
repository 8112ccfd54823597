"""What happens to a watch, as values: its events, and what is told about it. `api` encodes both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, TypeAlias

from liveedge.core.errors import LiveEdgeError
from liveedge.service.question import Report

Trigger: TypeAlias = Literal["first", "every", "change"]
SkipReason: TypeAlias = Literal["busy", "stale", "unchanged"]
EndedReason: TypeAlias = Literal[
    "until",
    "max_results",
    "deleted",
    "stream_ended",
    "key_ended",
    "expired",
    "server_stopping",
    "failed",
]
SKIP_REASONS: tuple[SkipReason, ...] = ("busy", "stale", "unchanged")
END_REASONS: tuple[EndedReason, ...] = (
    "until",
    "max_results",
    "deleted",
    "stream_ended",
    "key_ended",
    "expired",
    "server_stopping",
    "failed",
)
KINDS = ("result", "skipped", "error", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultEvent:
    """An answer."""

    kind: ClassVar[str] = "result"
    at_ms: int
    number: int  # of this result, from 1
    trigger: Trigger
    change_score: float | None  # of the picture that was asked about, where changes are watched
    model: str  # that answered
    text: str
    is_json: bool  # the answer was held to a form of JSON
    finish_reason: str
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedEvent:
    """A moment at which nothing was asked; stands for `count` of them."""

    kind: ClassVar[str] = "skipped"
    at_ms: int
    reason: SkipReason
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """A question without an answer."""

    kind: ClassVar[str] = "error"
    at_ms: int
    error: LiveEdgeError
    in_a_row: int  # failures
    retry_at_ms: int  # nothing is asked before


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEvent:
    """Nothing comes after it."""

    kind: ClassVar[str] = "ended"
    at_ms: int
    reason: EndedReason


WatchEvent: TypeAlias = ResultEvent | SkippedEvent | ErrorEvent | EndedEvent


class EncodeEvent(Protocol):
    """How events become bytes, once for all listeners."""

    def __call__(self, watch_id: str, event: WatchEvent) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchView:
    """Everything about one watch but its texts."""

    id: str
    state: Literal["active", "ended"]
    model: str
    streams: tuple[str, ...]
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
    expires_at_ms: int | None  # unless somebody listens or looks; None: somebody listens, or ended
    asked: int
    answered: int
    skipped: Mapping[str, int]  # by reason
    errors: Mapping[str, int]  # by code
    backed_off: int  # moments that passed in silence, because of an error before
    change_score: float | None
    last_event_id: int
    dropped_events: int
    listeners: int
    is_asking: bool
    last_result: ResultEvent | None = field(repr=False)
    last_error: ErrorEvent | None
