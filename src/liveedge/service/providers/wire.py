"""OpenAI's chat completions as other servers speak them: a question as a request, pieces of an
answer as events. Pure.

A server is not believed: what it sends is checked before it is used, and `Malformed` tells what was
wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from liveedge.engine.request import (
    FrameInput,
    ImagePart,
    Message,
    Part,
    TextPart,
    TokenLogprob,
    VideoPart,
)
from liveedge.service.question import Question, TextDelta, ToolCallDelta, Turn

Picture: TypeAlias = Callable[[FrameInput, int | None], str]  # frame, max_pixels to a data URL
Clip: TypeAlias = Callable[[Sequence[FrameInput], int | None], str]
Delta: TypeAlias = TextDelta | ToolCallDelta
Reason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]

MAX_CALLS = 128  # tool calls of one choice
MAX_CHOICES = 64  # in one piece; more than one of a choice is odd already
MAX_TOKENS = 1 << 16  # with log probabilities, rivals included, in one piece
MAX_ID_CHARS = 256
MAX_COUNT = 2**53
LEAST_LOGPROB = -9999.0
_REASONS: Mapping[str, Reason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_FILTERED = ("content_filter", "content_policy_violation")


class Malformed(ValueError):
    """What a server sent is no piece of an answer; says what it is instead."""


# ── the request ──


def request_of(
    question: Question,
    messages: Sequence[Message],
    *,
    picture: Picture,
    clip: Clip | None,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """The body. `messages` are the question's turns with their frames; without `clip` a segment is
    sent as pictures, each behind its time."""
    options = dict(question.sent)
    # Our bound on it may be lower than what was sent; its name is the client's.
    length = "max_completion_tokens" if "max_completion_tokens" in options else "max_tokens"
    options.pop("max_tokens", None)
    options[length] = question.sampling.max_tokens
    return {
        **extra,
        **options,
        "model": question.model,
        "messages": [
            _message(turn, message, picture, clip)
            for turn, message in zip(question.turns, messages, strict=True)
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _message(turn: Turn, message: Message, picture: Picture, clip: Clip | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": _content(message, picture, clip)}
    if message.tool_calls:
        shown["tool_calls"] = list(message.tool_calls)
        shown["content"] = shown["content"] or None
    if turn.tool_call_id is not None:
        shown["tool_call_id"] = turn.tool_call_id
    return shown


def _content(
    message: Message, picture: Picture, clip: Clip | None
) -> str | Sequence[Mapping[str, Any]]:
    """Words alone are sent as words: not every server reads a list of them."""
    if not message.content:
        return ""
    first = message.content[0]
    if len(message.content) == 1 and isinstance(first, TextPart):
        return first.text
    return [shown for part in message.content for shown in _parts(part, picture, clip)]


def _parts(part: Part, picture: Picture, clip: Clip | None) -> Sequence[Mapping[str, Any]]:
    match part:
        case TextPart():
            return [_text(part.text)]
        case ImagePart():
            return [_image(picture(part.frame, part.max_pixels))]
        case VideoPart() if clip is not None:
            url = clip(single(part.frames), part.max_pixels)
            return [{"type": "video_url", "video_url": {"url": url}}]
        case VideoPart():
            return [
                shown
                for frame in single(part.frames)
                for shown in (
                    _text(f"<{frame.time_s:.1f} seconds>"),
                    _image(picture(frame, part.max_pixels)),
                )
            ]


def single(frames: Sequence[FrameInput]) -> list[FrameInput]:
    """Each frame once: some were doubled to make pairs, which is our model's affair."""
    pairs = zip([None, *frames], frames, strict=False)
    return [frame for before, frame in pairs if before is None or before.key != frame.key]


def _text(text: str) -> Mapping[str, Any]:
    return {"type": "text", "text": text}


def _image(url: str) -> Mapping[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


# ── the answer ──


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a server says an answer cost; 0 where it does not say."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    image_tokens: int = 0


@dataclass(slots=True)
class _Choice:
    n_deltas: int = 0
    calls: dict[int, bool] = field(default_factory=dict)  # by index: whether it has a name
    reason: Reason | None = None


class Reader:
    """Reads one answer, chunk by chunk or whole."""

    def __init__(self, n: int) -> None:
        self.spent = Spent()
        self._choices = [_Choice() for _ in range(n)]

    @property
    def has_begun(self) -> bool:
        return any(choice.n_deltas for choice in self._choices)

    @property
    def is_blocked(self) -> bool:
        """Ended by a filter, with not a word said."""
        return not self.has_begun and any(c.reason == "content_filter" for c in self._choices)

    @property
    def reasons(self) -> tuple[Reason, ...] | None:
        """Why each choice ended; None while one has not."""
        reasons = tuple(choice.reason for choice in self._choices if choice.reason is not None)
        return reasons if len(reasons) == len(self._choices) else None

    def read(self, chunk: object) -> list[Delta]:
        """A chunk of a stream, or a whole answer. Raises Malformed."""
        if not isinstance(chunk, dict):
            raise Malformed("a piece of its answer is no JSON object")
        if isinstance(chunk.get("usage"), dict):
            self.spent = _spent(chunk["usage"])
        choices = chunk.get("choices")
        if choices is None and "usage" in chunk:
            return []
        if not isinstance(choices, list):
            raise Malformed("a piece of its answer has no choices")
        if len(choices) > MAX_CHOICES:
            raise Malformed(f"a piece of its answer has more than {MAX_CHOICES} choices")
        return [delta for choice in choices for delta in self._choice(choice)]

    def _choice(self, shown: object) -> list[Delta]:
        if not isinstance(shown, dict):
            raise Malformed("a choice of its answer is no JSON object")
        index = _count(shown.get("index", 0))
        if index is None or index >= len(self._choices):
            raise Malformed(f"it answered a choice that was not asked for, with {self._n} asked")
        choice = self._choices[index]
        if choice.reason is not None:  # some repeat themselves behind the end
            return []
        delta = shown.get("delta") or shown.get("message") or {}
        if not isinstance(delta, dict):
            raise Malformed("a piece of its answer is no JSON object")
        found = _deltas(index, choice, delta, shown.get("logprobs"))
        choice.n_deltas += len(found)
        reason = shown.get("finish_reason")
        if reason is not None:
            choice.reason = _REASONS.get(str(reason), "stop")
        return found

    @property
    def _n(self) -> int:
        return len(self._choices)


def error_in(chunk: object) -> str | None:
    """What a server says went wrong, sent in place of an answer; None where it is an answer."""
    if not isinstance(chunk, dict) or not chunk.get("error"):
        return None
    error = chunk["error"]
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:300]


def is_safety_block(body: object) -> bool:
    """Whether a refusal (400, as JSON) is about content."""
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and any(
        error.get(name) in _FILTERED for name in ("code", "type")
    )


def _deltas(index: int, choice: _Choice, delta: Mapping[str, Any], logprobs: object) -> list[Delta]:
    found: list[Delta] = []
    text = delta.get("content") or delta.get("refusal") or ""
    if not isinstance(text, str):
        raise Malformed("the text of its answer is no text")
    tokens = _logprobs(logprobs)
    if text or tokens:
        found.append(TextDelta(choice=index, text=_whole(text), logprobs=tokens))
    calls = delta.get("tool_calls") or []
    if not isinstance(calls, list):
        raise Malformed("the tool calls of its answer are no list")
    if len(calls) > MAX_CALLS:
        raise Malformed(f"a piece of its answer has more than {MAX_CALLS} tool calls")
    for place, call in enumerate(calls):
        found.append(_call(index, choice, place, call))
    return found


def _call(index: int, choice: _Choice, place: int, call: object) -> ToolCallDelta:
    number = _count(call.get("index", place)) if isinstance(call, dict) else None
    if not isinstance(call, dict) or number is None or number >= MAX_CALLS:
        raise Malformed("a tool call of its answer is malformed")
    function = call.get("function") or {}
    name = function.get("name") if isinstance(function, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    is_first = number not in choice.calls
    if is_first and not isinstance(name, str):
        raise Malformed("a tool call of its answer has no name")
    choice.calls[number] = True
    call_id = call.get("id")
    if not isinstance(call_id, str) or not 0 < len(call_id) <= MAX_ID_CHARS:
        call_id = f"call_{index}_{number}"
    return ToolCallDelta(
        choice=index,
        index=number,
        id=_whole(call_id) if is_first else None,
        name=_whole(str(name)) if is_first else None,
        arguments=_whole(arguments) if isinstance(arguments, str) else "",
    )


def _logprobs(block: object) -> tuple[TokenLogprob, ...]:
    content = block.get("content") if isinstance(block, dict) else None
    if not isinstance(content, list):
        return ()
    if sum(1 + len(_objects(item.get("top_logprobs"))) for item in _objects(content)) > MAX_TOKENS:
        raise Malformed(f"a piece of its answer has more than {MAX_TOKENS} log probabilities")
    return tuple(
        TokenLogprob(token=token, token_bytes=data, logprob=logprob, top=rivals)
        for token, data, logprob, rivals in (
            (*_token(item), tuple(map(_token, _objects(item.get("top_logprobs")))))
            for item in _objects(content)
        )
    )


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _token(item: Mapping[str, Any]) -> tuple[str, bytes, float]:
    token = _whole(str(item.get("token", "")))
    data, logprob = item.get("bytes"), item.get("logprob")
    is_bytes = isinstance(data, list) and all(type(b) is int and 0 <= b < 256 for b in data)
    return (
        token,
        bytes(data) if is_bytes and data is not None else token.encode(),
        _logprob(logprob),
    )


def _logprob(value: object) -> float:
    try:
        number = float(value) if isinstance(value, (int, float)) else LEAST_LOGPROB
    except OverflowError:  # whole numbers of JSON have no end
        return LEAST_LOGPROB
    return number if math.isfinite(number) else LEAST_LOGPROB


def _spent(usage: Mapping[str, Any]) -> Spent:
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    return Spent(
        prompt_tokens=_count(usage.get("prompt_tokens")) or 0,
        completion_tokens=_count(usage.get("completion_tokens")) or 0,
        cached_tokens=_count(details.get("cached_tokens")) or 0,
        image_tokens=_count(details.get("image_tokens")) or 0,
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def _whole(text: str) -> str:
    """Without halves of characters, which no UTF-8 can carry."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
