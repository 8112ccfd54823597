"""What routes answer, as types for the document of the API alone: nothing is built or checked by them.

Answers are made in `encode.py`; a test holds each of them against its schema here, so that neither
can change alone. Views of the services (`StreamView` and others) are their own schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from liveedge.service.publishing import PublishView, RoomView
from liveedge.service.view import SourceView, StreamView


class _Answer(BaseModel):
    model_config = ConfigDict(
        json_schema_serialization_defaults_required=False, serialize_by_alias=True
    )


# ── errors ──


class ErrorObject(_Answer):
    """The object under `error`, as OpenAI clients read it; also that of an event mid-stream."""

    message: str
    type: str
    code: str
    upstream: Annotated[
        dict[str, Any] | None,
        Field(
            description="of another server that was to answer: provider, status, body, rate_limits"
        ),
    ] = None


class FlatError(_Answer):
    """An error of a route about streams, and 401 and 503 of every route."""

    detail: str
    error: ErrorObject


class ErrorDetail(_Answer):
    """`detail` of a chat error: where hosted clients look."""

    error: ErrorObject


class ChatError(_Answer):
    """An error of a chat route. Both objects are the same."""

    detail: ErrorDetail
    error: ErrorObject


class ValidationFault(_Answer):
    """One thing that is wrong with a body."""

    loc: list[str | int]
    msg: str
    type: str


class ValidationError(_Answer):
    """422 of a chat route."""

    error: Literal["validation_error"]
    message: str
    details: list[ValidationFault]


class RegionDetail(_Answer):
    """Which region answers here, and which was asked for."""

    error: Literal["region_error"]
    expected_region: str
    requested_region: str


class RegionError(_Answer):
    """409 of a request that names another region."""

    detail: RegionDetail


# ── chat ──


class FunctionCall(_Answer):
    """Which function, and its arguments as JSON text."""

    name: str
    arguments: str


class CalledTool(_Answer):
    """One call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(_Answer):
    """The answer. Content is null where it is calls alone."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[CalledTool] = []


class Rival(_Answer):
    """A token that could have stood there."""

    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(Rival):
    """A token of the answer."""

    top_logprobs: list[Rival]


class Logprobs(_Answer):
    """Of one choice, in OpenAI's shape."""

    content: list[TokenLogprob]
    refusal: None


FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class Choice(_Answer):
    """One of `n` answers."""

    index: int
    message: Message
    finish_reason: FinishReason
    logprobs: Logprobs | None


class PromptTokens(_Answer):
    """Parts of the prompt's tokens."""

    cached_tokens: int
    image_tokens: int


class Usage(_Answer):
    """Tokens. The prompt is counted once, whatever `n` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens


class CacheReport(_Answer):
    """What was reused."""

    thread_id: str | None
    cache_hit: bool
    cached_input_tokens: int


class OvershootBlock(_Answer):
    """The hosted API's extension."""

    cache: CacheReport


class SeenFrame(_Answer):
    """A frame that the model saw. Those of uploads have no stream."""

    stream_id: str | None
    frame_index: int | None
    timestamp_ms: int | None
    captured_at_ms: int | None
    width: int
    height: int
    tokens: int
    warm: bool
    corrupt: bool


class TokenCounts(_Answer):
    """Of the prompt."""

    prefilled: int
    reused: int


class Fallback(_Answer):
    """Why another model answered than the one that was asked."""

    requested: str
    because: str


class LiveEdgeBlock(_Answer):
    """Exactly what the model saw, how old it was, and where the time went."""

    provider: Annotated[str | None, Field(description="where it was not our own model")] = None
    fallback: Fallback | None = None
    frames: list[SeenFrame]
    evidence_at_ms: int | None
    age_ms: int | None
    timings_ms: dict[str, float]
    tokens: TokenCounts
    undecodable_frames: int


class _Closing(_Answer):
    usage: Usage
    overshoot: OvershootBlock
    liveedge: LiveEdgeBlock


class ChatCompletion(_Closing):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]


class FunctionDelta(_Answer):
    """A piece of a call. The name comes with its first one."""

    name: str | None = None
    arguments: str


class ToolCallDelta(_Answer):
    """A piece of a call. Id and type come with its first one."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(_Answer):
    """What is new. The role comes with the first chunk of a choice, the last has nothing."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(_Answer):
    """A piece of one of `n` answers."""

    index: int
    delta: Delta
    finish_reason: FinishReason | None
    logprobs: Logprobs | None


class ChatCompletionChunk(_Answer):
    """The JSON of one event. The stream ends with `data: [DONE]`, or with an event that holds `error`.

    `usage` and `overshoot` come in the last chunk, with `include_usage`; `liveedge` there, and with
    each `finish_reason`.
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    overshoot: OvershootBlock | None = None
    liveedge: LiveEdgeBlock | None = None


class BrokenStream(_Answer):
    """The last event of an answer that failed after it had begun."""

    error: ErrorObject


# ── streams ──


class StreamList(_Answer):
    """The streams of the key."""

    object: Literal["list"]
    data: list[StreamView]


class CreatedStream(_Answer):
    """A new stream. `publish` is null where nobody publishes into it."""

    id: str
    state: Literal["active"]
    source: SourceView
    publish: PublishView | None
    expires_at_ms: int
    ttl_seconds: int


class KeptStream(_Answer):
    """A renewed lease, with a fresh token for publishers."""

    id: str
    expires_at_ms: int
    ttl_seconds: int
    stream_time_ms: int
    publish: PublishView | None


class DeletedStream(_Answer):
    """The stream has ended."""

    id: str
    deleted: Literal[True]


class ViewedStream(_Answer):
    """Where a stream can be watched."""

    id: str
    view: RoomView


class PushedFrame(_Answer):
    """The acknowledgement of a pushed picture."""

    frame_index: int
    timestamp_ms: int
    captured_at_ms: int
    width: int
    height: int
    clock_offset_ms: Annotated[
        int | None, Field(description="how far a time that was sent is from the server's clock")
    ] = None


class DeletedWindow(_Answer):
    """The window has ended."""

    name: str
    deleted: Literal[True]


# ── the server ──


class Model(_Answer):
    """A model that can be asked."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    status: Literal["ready", "unavailable"]
    max_model_len: int | None
    modalities: list[str] | None
    alias_of: str | None = None


class ModelList(_Answer):
    """The models that can be asked."""

    object: Literal["list"]
    data: list[Model]


class Healthy(_Answer):
    """The process is alive."""

    status: Literal["ok"]


class Ready(_Answer):
    """The model answers."""

    status: Literal["ready"]
    model: str


class Version(_Answer):
    """Name and version of the server, and its wall clock."""

    name: Literal["liveedge"]
    version: str
    now_ms: int


EXAMPLES: dict[type[Any], Any] = {
    CreatedStream: {
        "id": "8f2d3f0e-5f0a-4c57-9b5c-0d2a6d2f0d6a",
        "state": "active",
        "source": {"type": "rtsp"},
        "publish": None,
        "expires_at_ms": 1767225900000,
        "ttl_seconds": 300,
    },
    FlatError: {
        "detail": "stream 8f2d is unknown",
        "error": {
            "message": "stream 8f2d is unknown",
            "type": "stream_error",
            "code": "stream_not_found",
        },
    },
}
