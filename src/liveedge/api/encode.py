"""Answers as JSON: chat completions whole and in chunks, models, streams. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from liveedge.engine.request import TokenLogprob
from liveedge.frames.frame import Frame
from liveedge.service.models import ModelEntry
from liveedge.service.publishing import PublishView
from liveedge.service.question import (
    AnsweredBy,
    AnswerEvent,
    ChoiceEnd,
    Report,
    TextDelta,
    ToolCallDelta,
)
from liveedge.service.view import StreamView


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every piece of one answer carries."""

    id: str
    created_s: int
    model: str

    def fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model}


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)  # by index
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end: ChoiceEnd | None = None


class Collector:
    """Gathers the events of one question; `completion` is the whole answer."""

    def __init__(self, head: Head, *, n: int, logprobs: bool) -> None:
        self.head = head
        self._logprobs = logprobs
        self._choices = [_Choice() for _ in range(n)]

    def add(self, event: AnswerEvent) -> None:
        choice = self._choices[event.choice]
        match event:
            case AnsweredBy():
                self.head = replace(self.head, model=event.model)
            case TextDelta():
                choice.text.append(event.text)
                choice.logprobs += event.logprobs
            case ToolCallDelta():
                call = choice.calls.setdefault(event.index, _Call(event.id or "", event.name or ""))
                call.arguments.append(event.arguments)
            case ChoiceEnd():
                choice.end = event

    @property
    def reports(self) -> list[Report]:
        return [choice.end.report for choice in self._choices if choice.end is not None]

    def completion(self) -> dict[str, Any]:
        choices = [self._choice(i, choice) for i, choice in enumerate(self._choices)]
        return {
            **self.head.fields("chat.completion"),
            "choices": choices,
            **closing(self.reports),
        }

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        assert choice.end is not None, "the engine ends every choice"
        return {
            "index": index,
            "message": _message("".join(choice.text), choice.calls.values()),
            "finish_reason": choice.end.reason,
            "logprobs": logprobs_block(choice.logprobs) if self._logprobs else None,
        }


def closing(reports: Sequence[Report]) -> dict[str, Any]:
    """`usage`, `overshoot` and `liveedge` of a whole answer."""
    return {
        "usage": usage_block(reports),
        "overshoot": overshoot_block(reports[0]),
        "liveedge": liveedge_block(reports[0]),
    }


def role_chunk(head: Head, choice: int) -> dict[str, Any]:
    """The first chunk of a choice."""
    return _chunk(head, choice, {"role": "assistant", "content": ""})


def text_chunk(head: Head, event: TextDelta, *, logprobs: bool) -> dict[str, Any]:
    """New text."""
    block = logprobs_block(event.logprobs) if logprobs else None
    return _chunk(head, event.choice, {"content": event.text}, logprobs=block)


def tool_call_chunk(head: Head, event: ToolCallDelta) -> dict[str, Any]:
    """A piece of a tool call; id, type and name come with its first one."""
    function: dict[str, Any] = {"arguments": event.arguments}
    call: dict[str, Any] = {"index": event.index, "function": function}
    if event.name is not None:
        function["name"] = event.name
        call |= {"id": event.id, "type": "function"}
    return _chunk(head, event.choice, {"tool_calls": [call]})


def end_chunk(head: Head, event: ChoiceEnd) -> dict[str, Any]:
    """The chunk with the finish reason, and what the choice rests on."""
    chunk = _chunk(head, event.choice, {}, finish_reason=event.reason)
    return {**chunk, "liveedge": liveedge_block(event.report)}


def usage_chunk(head: Head, reports: Sequence[Report]) -> dict[str, Any]:
    """The last chunk, sent when `include_usage` asks for it."""
    return {**head.fields("chat.completion.chunk"), "choices": [], **closing(reports)}


def usage_block(reports: Sequence[Report]) -> dict[str, Any]:
    """The prompt is counted once, whatever `n` is."""
    first = reports[0]
    completion_tokens = sum(report.completion_tokens for report in reports)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": first.prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": first.cached_tokens,
            "image_tokens": first.image_tokens,
        },
    }


def overshoot_block(report: Report) -> dict[str, Any]:
    """The hosted API's cache report."""
    return {
        "cache": {
            "thread_id": report.thread_id,
            "cache_hit": report.cached_tokens > 0,
            "cached_input_tokens": report.cached_tokens,
        }
    }


def liveedge_block(report: Report) -> dict[str, Any]:
    """Exactly what the model saw, how old it was, and where the time went."""
    return {
        **_origin(report),
        "frames": [
            {
                "stream_id": frame.stream_id,
                "frame_index": frame.frame_index,
                "timestamp_ms": frame.timestamp_ms,
                "captured_at_ms": frame.captured_at_ms,
                "width": frame.width,
                "height": frame.height,
                "tokens": frame.n_tokens,
                "warm": frame.warm,
                "corrupt": frame.corrupt,
            }
            for frame in report.frames
        ],
        "evidence_at_ms": report.evidence_at_ms,
        "age_ms": report.age_ms,
        "timings_ms": dict(report.timings_ms),
        "tokens": {
            "prefilled": report.prompt_tokens - report.cached_tokens,
            "reused": report.cached_tokens,
        },
        "undecodable_frames": report.corrupt_frames,
    }


def _origin(report: Report) -> dict[str, Any]:
    """Who answered, where that was not our own model as asked."""
    shown: dict[str, Any] = {}
    if report.provider is not None:
        shown["provider"] = report.provider
    if report.fallback is not None:
        shown["fallback"] = asdict(report.fallback)
    return shown


def logprobs_block(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's shape."""
    return {
        "content": [
            {
                **_token(token.token, token.token_bytes, token.logprob),
                "top_logprobs": [_token(*rival) for rival in token.top],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def model_object(entry: ModelEntry) -> dict[str, Any]:
    """One entry of `GET /models`."""
    shown: dict[str, Any] = {
        "id": entry.id,
        "object": "model",
        "created": entry.created_s,
        "owned_by": entry.owned_by,
        "status": entry.status,
        "max_model_len": entry.max_model_len,
        "modalities": None if entry.modalities is None else list(entry.modalities),
    }
    return shown if entry.alias_of is None else {**shown, "alias_of": entry.alias_of}


def stream_object(view: StreamView) -> dict[str, Any]:
    """`GET /streams/{id}`."""
    return asdict(view)


def created_stream(view: StreamView, publish: PublishView | None) -> dict[str, Any]:
    """`POST /streams`. `publish` is null for streams that nobody publishes into."""
    return {
        "id": view.id,
        "state": view.state,
        "source": {"type": view.source.type},
        "publish": publish and asdict(publish),
        "expires_at_ms": view.expires_at_ms,
        "ttl_seconds": view.ttl_seconds,
    }


def kept_stream(view: StreamView, publish: PublishView | None) -> dict[str, Any]:
    """`POST /streams/{id}/keepalive`."""
    return {
        "id": view.id,
        "expires_at_ms": view.expires_at_ms,
        "ttl_seconds": view.ttl_seconds,
        "stream_time_ms": view.stream_time_ms,
        "publish": publish and asdict(publish),
    }


def pushed_frame(frame: Frame, *, sent_ms: int | None) -> dict[str, Any]:
    """The acknowledgement of a pushed frame, with how far the client's clock is from its time.

    A time that was sent gives the spacing of frames; it is not believed as a date.
    """
    offset = {} if sent_ms is None else {"clock_offset_ms": sent_ms - frame.captured_at_ms}
    return {
        "frame_index": frame.index,
        "timestamp_ms": frame.stream_time_ms,
        "captured_at_ms": frame.captured_at_ms,
        "width": frame.pixels.width,
        "height": frame.pixels.height,
        **offset,
    }


def _message(text: str, calls: Iterable[_Call]) -> dict[str, Any]:
    """Content is null where the answer is calls alone, as OpenAI has it."""
    called = [call.shown() for call in calls]
    if not called:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": text or None, "tool_calls": called}


def _chunk(
    head: Head,
    choice: int,
    delta: dict[str, Any],
    *,
    finish_reason: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    shown = {"index": choice, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
    return {**head.fields("chat.completion.chunk"), "choices": [shown]}


def _token(token: str, data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token, "bytes": list(data), "logprob": max(logprob, -9999.0)}
