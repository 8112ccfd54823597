"""What a server says, read into the record of its request. Pure: documents and moments in, fields out.

Content is what a reader of the answer could act on: characters of `content` (or of a refusal), and
pieces of a tool call (its name or its arguments). No content: the role alone, empty strings, white
space before anything else, reasoning (`reasoning`, `reasoning_content`: nobody acts on it), usage, comments.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

from liveedge.bench.record import Record

MAX_MESSAGE = 300  # characters of what a server says about a failure
MAX_CODE = 100
MAX_TEXT = 64 << 10  # characters kept of an answer
MAX_NUMBER = 1e15  # of tokens, ms or Unix ms: what is above is nonsense, and sums of it overflow
MAX_STAGES = 64  # kept of what a server times, and of what it says of a frame
MAX_NAME = 64  # characters of their names
MAX_FRAMES = 1024  # kept of an answer's evidence
_EVIDENCE = frozenset({"usage", "overshoot", "liveedge"})
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an answer is none, as its code and message."""

    code: str
    message: str


def decoded(data: str) -> Any:
    """JSON, or None where it is none (no document of interest is null)."""
    data = data.strip()
    try:
        document, end = _decode(data)  # `json.loads` takes twice as long for a chunk
    except (ValueError, RecursionError):
        return None
    return document if end == len(data) else None


def read_chunk(
    record: Record, at_s: float, document: Any, content_s: list[float]
) -> Problem | None:
    """One event of a stream. `content_s` gets the moment where it brings content."""
    if not isinstance(document, dict):
        return Problem("malformed_event", "an event of the stream is no JSON object")
    if document.get("error"):
        return problem_of(document, "error_event")
    brought = [_read_delta(record, choice) for choice in _objects(document.get("choices"))]
    if any(brought):  # of each: all are to be read
        content_s.append(at_s)
        if record.first_content_s is None:
            record.first_content_s = at_s
    if not _EVIDENCE.isdisjoint(document):
        _read_evidence(record, document)
    return None


def read_whole(record: Record, at_s: float, document: Any) -> Problem | None:
    """A plain answer: its content is there at once, when it is whole."""
    if not isinstance(document, dict):
        return Problem("unreadable", "the answer is no JSON object")
    if document.get("error"):
        return problem_of(document, "error_answer")
    choices = _objects(document.get("choices"))
    if not choices:
        return Problem("no_choices", "the answer has no choices")
    for choice in choices:
        message = _object(choice.get("message"))
        record.text = (record.text + _text(message))[:MAX_TEXT]
        if _text(message).strip() or _calls(message):
            record.first_content_s, record.content_s = at_s, (at_s,)
        _read_end(record, choice)
    _read_evidence(record, document)
    return unfinished(record)


def unfinished(record: Record) -> Problem | None:
    """A whole answer has content and says why it ended."""
    if record.finish_reason is None:
        return Problem("no_finish_reason", "the answer ended without a finish_reason")
    if record.first_content_s is None:
        return Problem("no_content", f"the answer ended ({record.finish_reason}) without content")
    return None


def problem_of(document: Any, default_code: str) -> Problem:
    """What an error says, in whichever of the shapes that servers use."""
    if document is None:
        return Problem(default_code, "the answer is no JSON")
    outer = _object(document)
    detail = outer.get("detail")
    inner = outer.get("error") or (detail.get("error") if isinstance(detail, dict) else None)
    if isinstance(inner, dict):
        code = inner.get("code") or inner.get("type") or default_code
        return _problem(code, inner.get("message"))
    message = outer.get("message") or detail or outer.get("details") or inner
    return _problem(inner or outer.get("code") or default_code, message)


def _problem(code: Any, message: Any) -> Problem:
    said = message if isinstance(message, str) else json.dumps(message)
    return Problem(text_of(str(code)[:MAX_CODE]), text_of(said[:MAX_MESSAGE]))


def _read_delta(record: Record, choice: dict[str, Any]) -> bool:
    """Whether it brings content."""
    delta = _object(choice.get("delta"))
    _read_end(record, choice)
    if text := _text(delta):
        record.text = (record.text + text)[:MAX_TEXT]
    has_begun = record.first_content_s is not None
    return bool(text if has_begun else text.strip()) or _calls(delta)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str) and content:
        return content
    refusal = message.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def _calls(message: dict[str, Any]) -> bool:
    for call in _objects(message.get("tool_calls")):
        function = _object(call.get("function"))
        if function.get("name") or function.get("arguments"):
            return True
    return False


def _read_end(record: Record, choice: dict[str, Any]) -> None:
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        record.finish_reason = text_of(reason[:MAX_CODE])


def _read_evidence(record: Record, document: dict[str, Any]) -> None:
    """Tokens, and what the server says it saw; each where it is given."""
    if usage := _object(document.get("usage")):
        record.prompt_tokens = _count(usage.get("prompt_tokens"))
        record.completion_tokens = _count(usage.get("completion_tokens"))
        details = _object(usage.get("prompt_tokens_details"))
        record.cached_tokens = _count(details.get("cached_tokens"))
    cache = _object(_object(document.get("overshoot")).get("cache"))
    if record.cached_tokens is None and cache:
        record.cached_tokens = _count(cache.get("cached_input_tokens"))
    if evidence := _object(document.get("liveedge")):
        frames = _objects(evidence.get("frames"))[:MAX_FRAMES]
        record.frames = [_plain(frame) for frame in frames]
        record.age_ms = number(evidence.get("age_ms"))
        record.evidence_at_ms = number(evidence.get("evidence_at_ms"))
        stages = itertools.islice(_object(evidence.get("timings_ms")).items(), MAX_STAGES)
        record.timings_ms = {
            text_of(name[:MAX_NAME]): ms
            for name, value in stages
            if (ms := number(value)) is not None
        }


def _plain(frame: dict[str, Any]) -> dict[str, Any]:
    """What a frame's evidence has that is no table and no list, within bounds."""
    found: dict[str, Any] = {}
    for key, value in itertools.islice(frame.items(), MAX_STAGES):
        if isinstance(value, str):
            found[text_of(key[:MAX_NAME])] = text_of(value[:MAX_CODE])
        elif value is None or isinstance(value, bool) or number(value) is not None:
            found[text_of(key[:MAX_NAME])] = value
    return found


def number(value: Any) -> float | None:
    """A finite number that can be reckoned with, or None for everything that JSON may hold in its place."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= MAX_NUMBER else None  # nan is not, either


def _count(value: Any) -> int | None:
    """Of tokens: nobody counts below 0."""
    found = number(value)
    return None if found is None or found < 0 else int(found)


def text_of(said: str) -> str:
    """As it can be written: halves of a character (JSON may cut one between two events) are put
    together, and what stays a half is replaced."""
    if said.isascii():
        return said
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
