"""Watches and their events as JSON. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from liveedge.api.encode import closing
from liveedge.api.errors import error_object
from liveedge.api.reply import dump
from liveedge.service.watch import Missed
from liveedge.service.watch_events import (
    EndedEvent,
    ErrorEvent,
    ResultEvent,
    SkippedEvent,
    WatchEvent,
    WatchView,
)


def watch_event(watch_id: str, event: WatchEvent) -> bytes:
    """The data of one event."""
    return dump({"watch_id": watch_id, **event_fields(event)})


def event_fields(event: WatchEvent) -> dict[str, Any]:
    match event:
        case ResultEvent():
            return _result(event)
        case SkippedEvent():
            return {"at_ms": event.at_ms, "reason": event.reason, "count": event.count}
        case ErrorEvent():
            return {
                "at_ms": event.at_ms,
                "error": error_object(event.error),
                "in_a_row": event.in_a_row,
                "retry_at_ms": event.retry_at_ms,
            }
        case EndedEvent():
            return {"at_ms": event.at_ms, "reason": event.reason}


def missed_event(watch_id: str, missed: Missed) -> bytes:
    """What a listener is told before it resumes behind events that are not kept any more."""
    return dump(
        {
            "watch_id": watch_id,
            "missed": missed.count,
            "first_id": missed.first,
            "last_id": missed.last,
        }
    )


def watch_object(view: WatchView) -> dict[str, Any]:
    """`GET /watches/{id}`."""
    shown = asdict(view) | {"last_result": None, "last_error": None}
    if view.last_result is not None:
        shown["last_result"] = event_fields(view.last_result)
    if view.last_error is not None:
        shown["last_error"] = event_fields(view.last_error)
    return shown


def _result(event: ResultEvent) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "at_ms": event.at_ms,
        "number": event.number,
        "trigger": event.trigger,
        "change_score": event.change_score,
        "model": event.model,
        "text": event.text,
        "finish_reason": event.finish_reason,
        **closing([event.report]),
    }
    return {**shown, "json": _parsed(event.text)} if event.is_json else shown


def _parsed(text: str) -> Any:
    """None where the answer was cut off at its length."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
