"""The bodies that clients send, checked here and nowhere else.

Unknown fields are ignored at every level. An unknown content part type passes, because it is a 400
that comes later in the order of checks. An explicit null counts as absent.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    model_validator,
)

from liveedge.api.schema_tools import MAX_TOOLS, Tool, ToolCall, ToolChoice, check_choice, distinct
from liveedge.api.strict import StrictBody as _Body

MAX_TIMEOUT_MS = 3_600_000
MAX_STREAM_AGE_MS = 10**12
MAX_NUMBER = 2**31 - 1  # of tokens; the engine counts with no more than 64 bits
MAX_PIXELS = 10**15 - 1  # as in references

SomeText: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
UpToFour: TypeAlias = Annotated[list[SomeText], Field(max_length=4)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class MediaUrl(_Body):
    """`image_url` or `video_url` of a part."""

    url: str


class ContentPart(_Body):
    """One part of a message; which field it needs depends on its type."""

    type: str = Field(max_length=100)
    text: str | None = None
    image_url: MediaUrl | None = None
    video_url: MediaUrl | None = None

    @model_validator(mode="after")
    def _holds_what_its_type_says(self) -> Self:
        if self.type in ("text", "image_url", "video_url") and getattr(self, self.type) is None:
            raise ValueError(f"a part of type {self.type} needs the field {self.type}")
        return self


class ChatMessage(_Body):
    """One message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=MAX_TOOLS)
    tool_call_id: str | None = Field(None, description="of role tool: the call it answers")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} needs content")
        return self


class JsonSchema(_Body):
    """`response_format.json_schema`."""

    schema_: dict[str, Any] | None = Field(None, alias="schema")
    # For other servers: ours holds every answer to its schema, whatever these say.
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_Body):
    """What the answer has to look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("a response_format of type json_schema needs the field json_schema")
        return self


def _as_object(value: object) -> object:
    """A schema may come as text, as vLLM takes it."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError("this text is no JSON; send the schema as an object") from error


class StructuredOutputs(_Body):
    """What the answer has to look like, with the names of vLLM: exactly one of `choice`, `regex`,
    `json` and `json_object`."""

    choice: list[SomeText] | None = Field(
        None, min_length=1, description="the answer is exactly one of these texts"
    )
    regex: str | None = Field(
        None,
        description="the whole answer matches; no look-around, back references or word boundaries",
    )
    json_: (
        Annotated[
            dict[str, Any],
            BeforeValidator(_as_object, json_schema_input_type=str | dict[str, Any]),
        ]
        | None
    ) = Field(None, alias="json", description="a JSON schema, as an object or as text")
    json_object: bool | None = Field(None, description="true: any JSON object")
    # Known so that they can be refused by name.
    grammar: Any = Field(None, description="not supported")
    structural_tag: Any = Field(None, description="not supported")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        kinds = {
            "choice": self.choice is not None,
            "regex": self.regex is not None,
            "json": self.json_ is not None,
            "json_object": bool(self.json_object),
            "grammar": self.grammar is not None,
            "structural_tag": self.structural_tag is not None,
        }
        found = [name for name, is_set in kinds.items() if is_set]
        if len(found) != 1:
            raise ValueError(
                "structured_outputs needs exactly one of choice, regex, json and json_object,"
                f" got {' and '.join(found) or 'none'}"
            )
        return self


class StreamOptions(_Body):
    """`stream_options`."""

    include_usage: bool | None = None


class ChatBody(_Body):
    """`POST /chat/completions`."""

    model: str = Field(min_length=1)
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_NUMBER)
    max_tokens: int | None = Field(None, ge=1, le=MAX_NUMBER)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_NUMBER)  # 0 and -1: all
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    stop: (
        Annotated[
            list[SomeText],
            BeforeValidator(_as_list, json_schema_input_type=SomeText | UpToFour),
            Field(max_length=4),
        ]
        | None
    ) = None
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    n: int | None = Field(None, ge=1, le=8)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = Field(
        None, description="instead of response_format"
    )
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS), AfterValidator(distinct)] | None = (
        None
    )
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most")
    # The names before `tools`. Known so that they can be refused by name.
    functions: Any = Field(None, description="not supported; send tools")
    function_call: Any = Field(None, description="not supported; send tool_choice")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    thread_id: str | None = Field(None, max_length=256)
    timeout_ms: int | None = Field(None, ge=1, le=MAX_TIMEOUT_MS)
    max_age_ms: int | None = Field(None, ge=1, le=MAX_STREAM_AGE_MS)
    priority: Literal["interactive", "batch"] | None = None

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        plain = self.response_format is None or self.response_format.type == "text"
        if self.structured_outputs is not None and not plain:
            raise ValueError("response_format and structured_outputs exclude each other; send one")
        return self

    @model_validator(mode="after")
    def _chooses_what_is_offered(self) -> Self:
        check_choice(self.tool_choice, self.tools or [])
        return self

    @model_validator(mode="after")
    def _rivals_only_with_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


class SourceBody(_Body):
    """Where the frames of a new stream come from."""

    type: str = Field(min_length=1, max_length=40)
    url: str | None = Field(None, max_length=4096)


class StreamBody(_Body):
    """`POST /streams`."""

    source: SourceBody | None = None


class WindowBody(_Body):
    """`PUT /streams/{stream_id}/windows/{name}`."""

    model: str = Field(min_length=1)
    seconds: float = Field(
        gt=0, description="up to the live edge; at most as long as frames are kept"
    )
    # Beyond, products with times leave what a float holds.
    max_fps: float | None = Field(
        None, ge=1e-6, le=1e6, description="frames per second; 1 if left out"
    )
    max_pixels: int | None = Field(
        None, ge=1, le=MAX_PIXELS, description="of each frame, after its resize"
    )
    system: str | None = Field(
        None, description="text of the system message, if questions have one"
    )
